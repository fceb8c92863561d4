"""Where is measured: a folder of the run in a file system, or a whole disk that holds nothing."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..common import command

#: In the stage's scratch directory: the folders outside of it that the runner removes with it, one a line.
OUTSIDE_FILE = "outside"
BLKID_SECONDS = 20.0
_NOT_IN_A_SCOPE = re.compile(r"[^A-Za-z0-9._]+")


class TargetError(Exception):
    """The target cannot be used; the message says why, and what to do."""


@dataclass(frozen=True)
class StorageTarget:
    """A file system by one of its folders, or a block device. ``shared``: other nodes use it at the same time.
    ``name``: by which nodes are compared where the path differs between them."""

    path: Path
    shared: bool = False
    raw: bool = False
    name: str = ""

    @property
    def scope(self) -> str:
        """The part of the node that figures are about."""
        return "link:" + (_NOT_IN_A_SCOPE.sub("-", self.name or str(self.path)).strip("-")[-60:] or "root")


def in_memory(target: StorageTarget, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether the folder is no disk's but the memory's: tmpfs takes requests past a page cache that it is itself."""
    folder = str(target.path.resolve())
    best, kind = "", ""
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split(" ")[4])
        if (folder + "/").startswith(mount.rstrip("/") + "/") and len(mount) >= len(best):
            best, kind = mount, after.split(" ")[0]
    return kind in ("tmpfs", "ramfs")


def free_bytes(target: StorageTarget) -> tuple[int, int]:
    """How many bytes are free for this user, and how many there are. Raises ``TargetError``."""
    try:
        if target.raw:
            with target.path.open("rb", buffering=0) as device:
                size = device.seek(0, os.SEEK_END)
            return size, size
        space = shutil.disk_usage(target.path)
    except OSError as error:
        raise TargetError(f"{target.path}: {error.strerror}") from error
    return space.free, space.total


@contextmanager
def place(target: StorageTarget, work: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """The file that is written: in a folder of this run and node, which is removed afterwards, or the device itself.

    The folder is noted first: what a killed stage leaves behind, the runner removes. Raises ``TargetError``.
    """
    if target.raw:
        yield target.path
        return
    folder = target.path / f"gpuval-{environ.get('GPUVAL_RUN_ID', 'run')}-{environ.get('GPUVAL_NODE', 'node')}"
    try:
        if target.path != work:
            with (work / OUTSIDE_FILE).open("a", encoding="utf-8") as note:
                note.write(f"{folder}\n")
                note.flush()
                os.fsync(note.fileno())
        _remove(folder)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise TargetError(f"{error.filename or folder}: {error.strerror}") from error
    try:
        yield folder / "data"
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder of this program, and the files that fio made in it; never what a link leads to."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for entry in folder.iterdir():
        entry.unlink()
    folder.rmdir()


def refused(path: Path, root: Path = Path("/")) -> str:
    """Why a block device must not be written to, empty if it may: it has to be a whole disk, without partitions, file
    system or swap, and without other devices on top. Never raises.
    """
    try:
        status = path.stat()
        if not stat.S_ISBLK(status.st_mode):
            return "is not a block device"
        system = (root / f"sys/dev/block/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}").resolve(strict=True)
        if (system / "partition").exists():
            return "is a partition"
        if any((entry / "partition").exists() for entry in system.iterdir()):
            return "has partitions"
        if any(holder.name for holder in (system / "holders").iterdir()):
            return "is part of another device (RAID, LVM, dm-crypt)"
        # The kernel gives a disk that is mounted, or swap, or part of an array to no second owner.
        os.close(os.open(path, os.O_RDWR | os.O_EXCL))
    except OSError as error:
        return f"is in use or cannot be opened ({error.strerror})"
    # A file system that is not mounted, LVM, RAID. Exit code 2 is nothing.
    ended = command.run(["blkid", "-p", "-o", "export", path], BLKID_SECONDS)
    if ended.code == 2:
        return ""
    if ended.code != 0:
        return f"may hold data: blkid {ended.how()}, install it (util-linux)"
    kind = re.search(r"^(?:TYPE|PTTYPE)=(\S+)", ended.output, re.MULTILINE)
    return f"holds {kind.group(1) if kind else 'data'}: wipe it first (wipefs)"
