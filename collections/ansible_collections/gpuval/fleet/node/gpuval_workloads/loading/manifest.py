"""Reads ``SHA256SUMS``, a model's list of files: ``<64 hex digits> <path>`` a line. In the store, the list marks a
model as complete. Also hashes many files at once, and finds what damaged a file between the store and the disk."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath

NAME = "SHA256SUMS"
MAX_BYTES = 16 * 1024 * 1024
#: Suffixes of model files that can run code when read: Python, libraries, pickled weights. They are never loaded.
RUNS_CODE = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth", ".py", ".pyc", ".sh", ".so")
#: Prefix of a dataset's folder in the store and in the node's cache; the dataset's name follows.
DATASET_FOLDER = "datasets--gpuval--"
STORE, NETWORK, NODE, HEALED = "store", "network", "node", "healed"
CHUNK_BYTES = 4 * 1024 * 1024
REPORT_SECONDS = 5.0
#: Errors of file systems that do not support fsync or posix_fadvise.
_CANNOT_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EROFS)
_LINE = re.compile(r"(?P<digest>[0-9a-fA-F]{64}) [ *](?P<path>.+)")


class ModelManifestError(ValueError):
    """The manifest is malformed; the message names the line."""


def parse(text: str) -> Mapping[str, str]:
    """Return SHA-256 in lower-case hex by path, relative to the model's folder with ``/``, from a manifest's text.
    Raises ``ModelManifestError`` for an empty manifest, a malformed or repeated line, and a path that leaves the
    folder: it comes over the network and names files to write."""
    digests: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if not match:
            raise ModelManifestError(f"line {number} is not '<sha256>  <path>': {line[:120]!r}")
        path = match["path"]
        is_inside = not PurePosixPath(path).is_absolute() and not {"", ".", ".."} & {*path.split("/")}
        if not is_inside or not path.isprintable() or "\\" in path or path == NAME:
            where = "want a relative path inside the model's folder"
            raise ModelManifestError(f"line {number} names {path[:120]!r}: {where}")
        if path in digests:
            raise ModelManifestError(f"line {number} names {path!r} a second time")
        digests[path] = match["digest"].lower()
    if not digests:
        raise ModelManifestError("it names no file")
    return digests


def hash_files(root: Path, paths: Iterable[str], report: Callable[[int], None]) -> dict[str, str]:
    """Return SHA-256 in hex by path of files under `root` that are there. `report` is called with the bytes hashed so
    far at least every 5 s. Raises ``OSError`` when a file cannot be read."""
    counts: list[int] = []
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:  # hashlib releases the interpreter lock
        futures = {path: pool.submit(_hash_file, root / path, counts) for path in paths}
        pending = set(futures.values())
        while pending:
            _, pending = wait(pending, timeout=REPORT_SECONDS)
            if pending:
                report(sum(counts))
    digests = {path: future.result() for path, future in futures.items()}
    return {path: digest for path, digest in digests.items() if digest is not None}


def drop_from_cache(handle: int) -> None:
    """Drop an open file from the page cache: the next read is from the disk. Raises ``OSError`` if not stored."""
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def _hash_file(path: Path, counts: list[int]) -> str | None:
    digest = hashlib.sha256()
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    try:
        with path.open("rb", buffering=0) as file:
            drop_from_cache(file.fileno())
            while count := file.readinto(buffer):
                digest.update(view[:count])
                counts.append(count)
    except FileNotFoundError:
        return None
    return digest.hexdigest()


def origin_of(
    announced: str, first: str | None, read_again: str | None = None, sent: str | None = None, second: str | None = None
) -> str:
    """Return what damaged a file: store, network or node; or ``healed`` if a second copy is right. Several SHA-256 of
    the file, None for a missing one: ``announced`` is from the manifest, ``first`` from the file that did not match,
    ``read_again`` from a second read of it, ``sent`` of the store's data without the disk, ``second`` of a second
    copy."""
    rules = (  # the first rule that applies counts
        (STORE, first is None),  # the store lists the file, but did not send it
        (NODE, read_again != first),
        (STORE, sent == first),
        (NETWORK, sent != announced),
        (NODE, second != announced),
    )
    return next((origin for origin, applies in rules if applies), HEALED)
