"""File systems that the site provides, such as claims of a cluster, NFS, Lustre and GCS FUSE: their faults are not the
node's."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

#: Variable with the volumes of a pod that are not the node's own, as JSON: their names by folder.
VOLUMES_VARIABLE = "GPUVAL_VOLUMES"
MOUNTS = Path("/proc/self/mountinfo")
SLOW = "volume_slow"
#: Types of file systems that servers provide, or programs (FUSE).
NETWORK = re.compile(
    r"nfs4?|cifs|smb3|lustre|ceph|beegfs|gpfs|wekafs|9p|virtiofs|glusterfs|pvfs2|fuse\.(?!fuse-overlayfs).+"
)
#: Failure classes by texts of errors, in lower case; the first that fits counts.
FAULTS = (
    (("no space left on device", "quota exceeded", "disk full", "make room"), "volume_full"),
    (("read-only file system",), "volume_read_only"),
    (("permission denied", "operation not permitted"), "volume_denied"),
    (("no such file or directory",), "volume_missing"),
    (
        (
            *("input/output error", "stale file handle", "transport endpoint", "timed out", "structure needs cleaning"),
            *("wrong data", "host is down", "communication error", "remote i/o error"),
        ),
        "volume_fault",
    ),
)


@dataclass(frozen=True)
class MountedVolume:
    """The file system of a folder. ``kind``: its type. ``name``: for messages. ``of_site``: it is not the node's own.
    ``is_mounted_read_only``: by its mount, not by the file system itself after an error."""

    kind: str
    name: str
    of_site: bool
    is_mounted_read_only: bool

    def fault_in(self, text: str) -> str:
        """The failure class of an error on this volume; empty for an unknown error, and if it can be the node's."""
        text = text.lower()
        fault = next((name for signs, name in FAULTS if any(sign in text for sign in signs)), "")
        is_known = self.of_site or (fault == "volume_read_only" and self.is_mounted_read_only)
        return fault if is_known else ""


def volume_of(folder: Path, mounts: Path = MOUNTS) -> MountedVolume:
    """The file system of a folder, by the mounts of this process."""
    path = str(folder.resolve()) + "/"
    best, kind, source, options, of_super = "", "", "", "", ""
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        fields, more = before.split(" "), [*after.split(" "), "", ""]
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        if path.startswith(mount.rstrip("/") + "/") and len(mount) >= len(best):
            best, options, (kind, source, of_super) = mount, fields[5], more[:3]
    declared = json.loads(os.environ.get(VOLUMES_VARIABLE) or "{}")
    name = next((name for place, name in declared.items() if path.startswith(f"{place.rstrip('/')}/")), "")
    read_only = "ro" in options.split(",") and "ro" not in of_super.split(",")
    is_network = NETWORK.fullmatch(kind) is not None
    return MountedVolume(kind, name or f"{kind} {source}", bool(name) or is_network, read_only)
