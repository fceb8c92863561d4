"""Files of the controller that several processes read and write: replaced whole, and changed by one at a time."""

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...module_utils.atomic_file import replace_file

PRIVATE = 0o600
TURN_SECONDS = 0.05
#: Error numbers of file systems without locks: NFS without lockd, Lustre without `-o flock`.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def read(path: Path, most: int = -1) -> bytes:
    """The content of a regular file, or its first ``most`` bytes. Raises OSError, also for what is no file: opening a
    FIFO would wait for ever."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        return stream.read(most)


def read_private(path: Path) -> bytes:
    """The content of a file with a secret. Raises OSError, also if other users may read or write the file."""
    content = read(path)
    if path.stat().st_mode & 0o077:
        raise OSError(errno.EPERM, f"other users may read or write it: run chmod 600 {path}", str(path))
    return content


def move_folder_aside(path: Path) -> None:
    """Rename a folder that is in the place of a file, if one is."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.damaged-{secrets.token_hex(2)}"))


def make_folder(path: Path) -> None:
    """Make a folder. Whatever has its place, or that of a folder above it in the folder of a run, is renamed."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        obstacle = next(place for place in (path, *path.parents) if os.path.lexists(place))
        if not any((place / "run.json").is_file() for place in obstacle.parents):
            raise
        obstacle.rename(obstacle.with_name(f"{obstacle.name}.damaged-{secrets.token_hex(2)}"))
        path.mkdir(parents=True, exist_ok=True)


replace = replace_file


@contextmanager
def locked(path: Path, seconds: float, late: Exception | None) -> Iterator[None]:
    """Hold a lock file within the context. Waits up to `seconds`, then raises `late` if another process holds the lock.
    Without `late`, and on a file system without locks, continues without the lock."""
    with path.open("a") as stream:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    if late:
                        raise late from None
                    break
                time.sleep(TURN_SECONDS)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                break
        yield
