"""The targets of measurements: a folder of the run in a file system, or an empty disk."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuval_node.volumes import MOUNTS, volume_of

from ..common import command

#: File in the stage's scratch directory that lists folders elsewhere, which the runner also removes, one a line.
OUTSIDE_FILE = "outside"
BLKID_SECONDS = 20.0
_NOT_IN_A_SCOPE = re.compile(r"[^A-Za-z0-9._]+")


class TargetError(Exception):
    """The target cannot be used; the message says why, and what to do."""


@dataclass(frozen=True)
class StorageTarget:
    """A file system, given by a folder, or a block device (``raw``). ``shared``: other nodes measure it at the same
    time. ``name`` identifies the target if its path differs between nodes."""

    path: Path
    shared: bool = False
    raw: bool = False
    name: str = ""

    @property
    def scope(self) -> str:
        """Return the metric scope of the target's figures."""
        return "link:" + (_NOT_IN_A_SCOPE.sub("-", self.name or str(self.path)).strip("-")[-60:] or "root")


def in_memory(target: StorageTarget, mounts: Path = MOUNTS) -> bool:
    """Whether the folder is in memory (tmpfs), which accepts direct I/O although it is the page cache itself."""
    return volume_of(target.path, mounts).kind in ("tmpfs", "ramfs")


def free_bytes(target: StorageTarget) -> tuple[int, int]:
    """Return a target's free bytes (for this user) and total bytes. Raises ``TargetError``."""
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
def prepared_file(target: StorageTarget, work: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the file to write: in a folder of this run and node, listed for the runner and removed afterwards, or the
    device itself. Raises ``TargetError``."""
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
    """Remove a folder of this program and fio's files in it, without following links."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for entry in folder.iterdir():
        entry.unlink()
    folder.rmdir()


def refused(path: Path, root: Path = Path("/")) -> str:
    """Return why a block device must not be written, empty if it may: it must be a whole disk, without partitions, file
    system or swap, and not part of other devices. Never raises.
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
        # The kernel refuses an exclusive open of a disk that is mounted, swap, or part of an array.
        os.close(os.open(path, os.O_RDWR | os.O_EXCL))
    except OSError as error:
        return f"is in use or cannot be opened ({error.strerror})"
    # blkid finds unmounted file systems, LVM and RAID; its exit code 2 means that it found nothing.
    ended = command.run(["blkid", "-p", "-o", "export", path], BLKID_SECONDS)
    if ended.code == 2:
        return ""
    if ended.code != 0:
        return f"may hold data: blkid {ended.how()}, install it (util-linux)"
    kind = re.search(r"^(?:TYPE|PTTYPE)=(\S+)", ended.output, re.MULTILINE)
    return f"holds {kind.group(1) if kind else 'data'}: wipe it first (wipefs)"
