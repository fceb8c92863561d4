"""SHA-256 of many files at once. hashlib lets go of the interpreter lock, so threads use all cores."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Callable

CHUNK_BYTES = 4 * 1024 * 1024
REPORT_SECONDS = 5.0
#: File systems that know no such thing.
_CANNOT_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EROFS)


def hash_files(root: Path, paths: Iterable[str], report: Callable[[int], None]) -> dict[str, str]:
    """Return path -> SHA-256 in hex of files under `root`; a file that is not there is left out.

    `report` is called with the bytes hashed so far at least every 5 s. Raises ``OSError`` when a file cannot be read.
    """
    counter = _Counter()
    digests: dict[str, str] = {}
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        futures = {pool.submit(_hash_file, root / path, counter): path for path in paths}
        pending = set(futures)
        reported = time.monotonic()
        while pending:
            completed, pending = wait(pending, timeout=REPORT_SECONDS, return_when=FIRST_COMPLETED)
            for future in completed:
                digest = future.result()
                if digest is not None:
                    digests[futures[future]] = digest
            if time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                report(counter.value)
    return digests


def drop_from_cache(handle: int) -> None:
    """Have an open file read from its disk next: what was just written still lies in memory, right or not.

    Raises ``OSError`` when the disk did not take what was written.
    """
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


class _Counter:
    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.value += count


def _hash_file(path: Path, counter: _Counter) -> str | None:
    digest = hashlib.sha256()
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    try:
        with path.open("rb", buffering=0) as file:
            drop_from_cache(file.fileno())
            while count := file.readinto(buffer):
                digest.update(view[:count])
                counter.add(count)
    except FileNotFoundError:
        return None
    return digest.hexdigest()
