"""Files of the controller that several processes read and write: replaced by one rename, changed under a lock."""

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


def read(path: Path, max_bytes: int = -1) -> bytes:
    """The content of a regular file, or its first ``max_bytes`` bytes. Raises OSError, also for a FIFO or a device: to
    open one could block forever."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        return stream.read(max_bytes)


def read_private(path: Path) -> bytes:
    """The content of a file with a secret. Raises OSError, also if other users may read or write the file."""
    content = read(path)
    if path.stat().st_mode & 0o077:
        raise OSError(errno.EPERM, f"other users may read or write it: run chmod 600 {path}", str(path))
    return content


def move_folder_aside(path: Path) -> None:
    """Rename a folder at ``path``, if there is one, so that a file can be written there."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.damaged-{secrets.token_hex(2)}"))


def make_folder(path: Path) -> None:
    """Make a folder and those above it. In a run's folder what is in the way is renamed, else that is an OSError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        obstacle = next(above for above in (path, *path.parents) if os.path.lexists(above))
        if not any((above / "run.json").is_file() for above in obstacle.parents):
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
