"""A stage's scratch directory, and a temporary directory with a short name."""

from __future__ import annotations

import contextlib
import hashlib
import stat
from pathlib import Path

from gpuval_runner.environment import GANG_FILE
from gpuval_runner.layout import CACHE_MARK

#: Sockets made below TMPDIR (as by multiprocessing) need about 35 more bytes and have 107 in all (unix(7)).
LONGEST_TEMPORARY = 68
SHORT_BASE = Path("/tmp")  # noqa: S108 - the name is made with mode 0700 and must be ours


def temporary_directory(work: Path) -> Path:
    """Return the TMPDIR that goes with a scratch directory: inside it, or in /tmp where its name would be too long."""
    inside = work / "tmp"
    if len(str(inside).encode()) <= LONGEST_TEMPORARY:
        return inside
    return SHORT_BASE / f"gpuval-{hashlib.sha256(str(work).encode()).hexdigest()[:12]}"


def make(work: Path) -> Path:
    """Create an empty scratch directory and return its temporary directory. Raises ``OSError``."""
    remove(work)
    temporary = temporary_directory(work)
    for directory in (work, work / "cache"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary.mkdir(mode=0o700, exist_ok=temporary.parent == work)
    return temporary


def write_gang(work: Path, document: str) -> None:
    """Write the gang's document where its variable points, into the scratch directory. Raises ``OSError``."""
    if document:
        path = work / GANG_FILE
        path.write_text(document, encoding="utf-8")
        path.chmod(0o644)  # the directory's own mode limits access


def make_cache(models: Path) -> None:
    """Create the model cache if it is missing; its mark says that nothing else lay there. Raises ``OSError``."""
    models.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # a full disk: then the cache stays when the node is cleaned
        if not any(models.iterdir()):
            (models / CACHE_MARK).touch(mode=0o600)


def remove(work: Path) -> list[str]:
    """Remove a scratch directory and its temporary directory; returns what stayed and why."""
    problems: list[str] = []
    for directory in (temporary_directory(work), work):
        problems += remove_tree(directory)
    return problems


def remove_tree(directory: Path) -> list[str]:
    """Remove a directory that is ours, never through a link and never into another file system; returns what stayed."""
    try:
        status = directory.lstat()
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{directory}: {error.strerror}"]
    if not stat.S_ISDIR(status.st_mode):
        return _unlink(directory)
    problems: list[str] = []
    try:
        if stat.S_IMODE(status.st_mode) & 0o700 != 0o700:
            directory.chmod(0o700)
        entries = list(directory.iterdir())
    except OSError as error:
        return [f"{directory}: {error.strerror}"]
    for entry in entries:
        if entry.is_symlink() or not entry.is_dir():
            problems += _unlink(entry)
        elif entry.lstat().st_dev != status.st_dev:
            problems.append(f"{entry}: another file system is mounted here")
        else:
            problems += remove_tree(entry)
    try:
        directory.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        if not problems:
            problems.append(f"{directory}: {error.strerror}")
    return problems


def empty_directory(directory: Path) -> list[str]:
    """Remove all that is in a directory; returns what stayed."""
    problems: list[str] = []
    for entry in list(directory.iterdir()):
        problems += remove_tree(entry)
    return problems


def _unlink(path: Path) -> list[str]:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    return []
