"""File systems of the site (claims of a cluster, NFS, Lustre, GCS FUSE), whose faults are not the node's."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Optional

from .hardware.tools import run_bounded
from .hardware.tree import plain_mount

#: Environment variable with a pod's volumes that are not the node's own, as JSON: their names by folder.
VOLUMES_VARIABLE = "GPUVAL_VOLUMES"
MOUNTS = Path("/proc/self/mountinfo")
SLOW, FAULT = "volume_slow", "volume_fault"
#: A file system answers within milliseconds; one that hangs does not.
ANSWER_SECONDS = 5.0
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
        FAULT,
    ),
)
#: An error of a file, as Python prints it, and as C programs do.
_FILE_ERROR = re.compile(
    r"\[Errno \d+\] (?P<error>[^:]+): b?['\"](?P<path>/[^'\"\0]+)"
    r"|(?:^|[\s'\"`\u2018])(?P<file>/[^\s:'\"`\u2019\0]+)['\"\u2019]?: (?P<reason>[A-Z][\w ./-]+)$"
)


@dataclass(frozen=True)
class MountedVolume:
    """The file system of a folder. ``kind``: its type; ``name``: for messages; ``of_site``: whether it is the site's,
    not the node's; ``is_mounted_read_only``: by its mount, not by the file system itself after an error."""

    kind: str
    name: str
    of_site: bool
    is_mounted_read_only: bool

    def fault_in(self, text: str) -> str:
        """Return the failure class of an error `text` on this volume; empty if unknown, or if the node can cause it."""
        text = text.lower()
        fault = next((name for signs, name in FAULTS if any(sign in text for sign in signs)), "")
        is_known = self.of_site or (fault == "volume_read_only" and self.is_mounted_read_only)
        return fault if is_known else ""


class Mount(NamedTuple):
    """A mounted file system, from a process's mountinfo. ``super_options``: options of the file system itself."""

    folder: str
    options: str
    kind: str
    source: str
    super_options: str

    @property
    def prefix(self) -> str:
        return self.folder.rstrip("/") + "/"


def volume_of(folder: Path, mounts: Path = MOUNTS) -> MountedVolume:
    """Return the file system of a folder, by the mounts of this process."""
    return _volume_of_path(str(folder.resolve()) + "/", mounts)


def fault_in_error(line: str, binds: Optional[Sequence[str]] = None) -> str:
    """Return the failure class of an error of a file in a line of output, if the file is on a volume of the site; else
    empty. `binds`: HOST:INSIDE of the container that printed it; None without a container."""
    match = _FILE_ERROR.search(line)
    path = match and _path_outside(match["path"] or match["file"], binds)
    if not match or not path:
        return ""
    # a command of its own, because the volume may hang now
    resolved = run_bounded("realpath", ["realpath", "-m", "--", path], ANSWER_SECONDS)
    place = resolved.stdout.rstrip("\n") if resolved.ok else path
    return _volume_of_path(f"{place}/", MOUNTS).fault_in(match["error"] or match["reason"])


def _path_outside(path: str, binds: Optional[Sequence[str]]) -> str:
    """Return the path on this machine of a file in a container; empty for a file of the container's own."""
    pairs = [bind.split(":")[:2] for bind in (("/:/",) if binds is None else binds)]
    folders = [(inside.rstrip("/"), host) for host, inside in pairs]
    above = [pair for pair in folders if f"{path}/".startswith(f"{pair[0]}/")]
    inside, host = max(above, key=lambda pair: len(pair[0]), default=("", ""))  # a bind may lie within another
    return host.rstrip("/") + path[len(inside) :] if host else ""


def _volume_of_path(path: str, mounts: Path) -> MountedVolume:
    fitting = [mount for mount in reversed(_read_mounts(mounts)) if path.startswith(mount.prefix)]
    return _volume_at(max(fitting, key=lambda mount: len(mount.folder), default=Mount("", "", "", "", "")), path)


def find_hung_volume(pid: int) -> Optional[MountedVolume]:
    """Return a file system of the site, of those that process `pid` sees, that does not answer; None if all answer."""
    view = Path("/proc", str(pid))
    for mount in _read_mounts(view / "mountinfo"):
        volume = _volume_at(mount, mount.prefix)
        command = ["stat", "-f", f"{view}/root{mount.folder}"]
        if volume.of_site and run_bounded("stat", command, ANSWER_SECONDS).timed_out:
            return volume
    return None


def _read_mounts(mounts: Path) -> list[Mount]:
    rows = []
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        fields, more = before.split(" "), [*after.split(" "), "", ""]
        rows.append(Mount(plain_mount(fields[4]), fields[5], *more[:3]))
    return rows


def _volume_at(mount: Mount, path: str) -> MountedVolume:
    declared = json.loads(os.environ.get(VOLUMES_VARIABLE) or "{}")
    name = next((name for place, name in declared.items() if path.startswith(f"{place.rstrip('/')}/")), "")
    read_only = "ro" in mount.options.split(",") and "ro" not in mount.super_options.split(",")
    is_network = NETWORK.fullmatch(mount.kind) is not None
    return MountedVolume(mount.kind, name or f"{mount.kind} {mount.source}", bool(name) or is_network, read_only)
