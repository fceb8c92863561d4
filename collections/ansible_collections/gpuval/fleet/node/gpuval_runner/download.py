"""Downloads a large object by signed URL: resumed after interruptions, hashed on the way, every wait bounded."""

from __future__ import annotations

import hashlib
import http.client
import os
import random
import ssl
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Optional

from gpuval_runner.errors import RunnerError
from gpuval_runner.plan import Archive
from gpuval_runner.upload import UploadPace, is_passing, make_opener, reason

BLOCK_BYTES = 4 << 20
STALL_SECONDS = 60.0
PACE = UploadPace(first=1.0, longest=20.0)
#: Maximum number of tries in a row without progress. With the waits between tries, a store may be down for minutes.
MAX_FAILURES = 12

_DENIED = "the store refuses the archive ({code}): the signed URL has expired or the node's clock is wrong"
REFUSALS = {
    404: "the store has no such archive (404): put the image there again (gpuval.fleet.load)",
    401: _DENIED,
    403: _DENIED,
}

Progress = Callable[[int], None]


class DownloadError(RunnerError):
    """The object could not be downloaded; the message says why and holds no URL."""


class ChecksumError(DownloadError):
    """The downloaded object has another size or checksum than the plan names."""


def download(
    url: str,
    target: Path,
    expected: Archive,
    deadline: float,
    *,
    ca_file: Optional[str] = None,
    progress: Progress = lambda _count: None,
) -> int:
    """Download an object to ``<target>.part``, then rename that to `target`; returns the bytes received in this call.
    An earlier call's part file is resumed. `deadline` is in seconds of the monotonic clock; `progress` gets the number
    of bytes in the file. Raises ``DownloadError``, ``ChecksumError`` after removing the part file, or ``OSError`` for
    an error of the disk."""
    part = target.with_name(f"{target.name}.part")
    opener = make_opener(ca_file)
    received: list[int] = []
    failures = 0
    with part.open("ab") as stream:
        sha256 = hash_of(part, progress)
        if stream.tell() > expected.bytes:
            sha256 = _restart(stream)
        while stream.tell() < expected.bytes:
            before = stream.tell()
            try:
                sha256 = _receive(opener, url, stream, sha256, expected, deadline, progress, received)
            except _AwayError as error:
                failures = 1 if stream.tell() > before else failures + 1
                wait = PACE.wait(failures, random.random())  # noqa: S311 - jitter
                if failures >= MAX_FAILURES or time.monotonic() + wait >= deadline:
                    raise DownloadError(
                        f"{error} ({failures} times without progress, {stream.tell()} of {expected.bytes} bytes are "
                        "here and are kept): check the store and the network path to it, then run again"
                    ) from None
                time.sleep(wait)
        stream.flush()
        os.fsync(stream.fileno())
    if sha256.hexdigest() != expected.sha256:
        part.unlink()
        raise ChecksumError(
            f"the downloaded archive has SHA-256 {sha256.hexdigest()[:16]}..., the plan names "
            f"{expected.sha256[:16]}...: it was removed; put the image into the store again (gpuval.fleet.load)"
        )
    part.replace(target)
    return sum(received)


class _AwayError(Exception):
    """The store did not answer, or broke off its answer; another try may help."""


def _receive(
    opener: urllib.request.OpenerDirector,
    url: str,
    stream: Any,
    sha256: Any,
    expected: Archive,
    deadline: float,
    progress: Progress,
    received: list[int],
) -> Any:
    """Append the store's data to `stream`, and the size of each block to `received`. Returns the hash of the whole
    file, a new one if the store began at byte 0."""
    position = stream.tell()
    request = urllib.request.Request(url, headers={"Range": f"bytes={position}-"} if position else {})  # noqa: S310 - http(s), says load_store
    timeout = max(1.0, min(STALL_SECONDS, deadline - time.monotonic()))
    try:
        answer = opener.open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        code = error.code
        if code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and position:
            return _restart(stream)
        if is_passing(code):
            raise _AwayError(f"the store answers {code}") from None
        raise DownloadError(REFUSALS.get(code, "the store refuses the archive with {code}").format(code=code)) from None
    except (http.client.HTTPException, OSError) as error:
        if isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError):
            raise DownloadError(f"the store cannot be trusted: {reason(error, url)}") from None
        raise _AwayError(f"the store does not answer: {reason(error, url)}") from None
    with answer:
        # Content-Range tells where the answer begins: rclone's S3 server has the status 200 for a range, too.
        content_range = answer.headers.get("Content-Range", "").strip().lower()
        if position and not content_range.startswith(f"bytes {position}-"):
            sha256 = _restart(stream)
        while stream.tell() < expected.bytes:
            if time.monotonic() >= deadline:
                raise DownloadError(
                    f"{stream.tell()} of {expected.bytes} bytes came before the time was over and are kept: "
                    "run again, or give the image stage more time (image_timeout_seconds)"
                )
            try:  # without the write below: an error of the disk is no reason to try again
                block = answer.read(min(BLOCK_BYTES, expected.bytes - stream.tell()))
            except (http.client.HTTPException, OSError) as error:
                raise _AwayError(f"the store does not answer: {reason(error, url)}") from None
            if not block:
                raise _AwayError("the store ended the transfer early")
            _append(stream, block)
            received.append(len(block))
            sha256.update(block)
            progress(stream.tell())
    return sha256


def _append(stream: Any, block: bytes) -> None:
    """Write a block to the part file, or nothing of it where the disk is full: the stage's record needs that room."""
    position = stream.tell()
    try:
        stream.write(block)
        stream.flush()
    except OSError:
        with suppress(OSError):
            stream.truncate(position)
        raise


def _restart(stream: Any) -> Any:
    """Empty the part file; returns a new hash object."""
    stream.seek(0)
    stream.truncate(0)
    return hashlib.sha256()


def hash_of(path: Path, progress: Progress) -> Any:
    """Return a hash object with the SHA-256 of a file so far, to be updated with further data. Raises ``OSError``."""
    sha256 = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(BLOCK_BYTES), b""):
            sha256.update(block)
            progress(stream.tell())
    return sha256
