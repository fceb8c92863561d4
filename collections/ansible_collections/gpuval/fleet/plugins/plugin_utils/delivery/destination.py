"""Destinations of a delivery: an S3 service with its own keys, or a folder. rclone sends and verifies the files."""

import errno
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ...module_utils.store import Connection
from ..core.escape import one_line
from ..store.rclone import TRANSFERS, call_rclone
from . import DeliveryError, pack

#: Number of files per call of rclone: progress is shown between calls.
BATCH_FILES = 256
#: (text in an error of rclone, options for a retry). First for keys that may only write: rclone reads nothing from the
#: service, which verifies the checksum sent with each file. Then for an ETag that is no MD5, as in buckets that encrypt
#: with a KMS key: checksums are kept in the metadata.
FALLBACKS = (
    ("Forbidden", ("--no-check-dest", "--s3-no-head")),
    ("corrupted on transfer", ("--s3-server-side-encryption", "aws:kms")),
)
#: rclone's message about an object whose checksum it cannot compare; the object is sent again.
SAME_SIZE = "Size of src and dst objects identical"


@dataclass
class SentFiles:
    """Number of files of a delivery that were sent, and that the destination had already (``there``)."""

    sent: int = 0
    there: int = 0


def parse(destination: str) -> tuple[str, str, str]:
    """Parse a destination: (``s3``, bucket, prefix), or (``folder``, path, empty) for a path. Raises DeliveryError."""
    if not destination.startswith("s3://"):
        if "://" in destination:
            raise DeliveryError(f"delivery_destination {destination}: s3://bucket/prefix, or the path of a folder")
        return "folder", destination, ""
    address = urlsplit(destination)
    prefix = address.path.strip("/")
    if not address.hostname or address.query or address.fragment or "@" in address.netloc or ".." in prefix.split("/"):
        raise DeliveryError(f"delivery_destination must be s3://bucket/prefix and nothing more: {address.hostname}")
    return "s3", address.netloc, prefix


def check_keys(connection: Connection) -> None:
    if not connection.access_key or not connection.secret_key:
        raise DeliveryError(
            "an S3 destination needs its own keys: set delivery_s3_access_key and delivery_s3_secret_key; "
            "the keys of the run's store are never used"
        )


def send_to_folder(root: Path, source: Path, files: Sequence[pack.File], folder: Path) -> SentFiles:
    """Copy files from ``source`` to ``folder``, outside the delivery ``root``. Raises DeliveryError, OSError."""
    if folder.resolve().is_relative_to(root.resolve()):
        raise DeliveryError(f"delivery_destination {folder} is inside the delivery itself: set another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return send(None, source, files, str(folder), lambda _line: None)


def send(
    connection: Connection | None, source: Path, files: Sequence[pack.File], target: str, show: Callable[[str], object]
) -> SentFiles:
    """Send files from ``source`` to ``target`` in order, in batches; a second call resumes. ``target``: a folder, or
    with a connection a path in its bucket. Raises DeliveryError."""
    progress = SentFiles()
    for batch in _batches(files):
        sent = _send_batch(connection, source, [file.path for file in batch], target)
        progress.sent, progress.there = progress.sent + sent, progress.there + len(batch) - sent
        if connection is not None and len(batch) > 1:
            show(f"delivery: {progress.sent} files sent, {progress.there} already there, of {len(files)}")
    return progress


def _batches(files: Sequence[pack.File]) -> Iterator[list[pack.File]]:
    """Split files into batches of one content type. The last two files come alone: they mark a delivery as complete."""
    for _key, group in itertools.groupby(files[:-2], lambda file: _is_plain_text(file.path)):
        alike = list(group)
        yield from (alike[start : start + BATCH_FILES] for start in range(0, len(alike), BATCH_FILES))
    yield from ([file] for file in files[-2:])


def _is_plain_text(path: str) -> bool:
    """Whether a file is plain text although rclone cannot tell so by its suffix."""
    return Path(path).suffix in ("", ".log")


def _send_batch(connection: Connection | None, source: Path, paths: Sequence[str], target: str, *more: str) -> int:
    """Send the files ``paths`` below ``source`` in one call of rclone with ``more`` options. Returns how many were
    sent; the others were there with the same checksum. Raises DeliveryError."""
    options = ["--no-traverse", "--checksum", "--retries", "1", "--use-json-log", "-vv", *TRANSFERS, *more]
    if _is_plain_text(paths[0]):
        options += ["--header-upload", "Content-Type: text/plain; charset=utf-8"]
    remote = f"models:{connection.bucket}/{target}/" if connection else target
    with tempfile.NamedTemporaryFile("w", prefix="gpuval-files-", encoding="utf-8") as names:
        names.writelines(f"{path}\n" for path in paths)
        names.flush()
        process = call_rclone(connection, "copy", str(source), remote, "--files-from-raw", names.name, *options)
    if process.returncode:
        for problem, fallback in FALLBACKS:
            if connection and problem in process.stderr and fallback[0] not in more:
                return _send_batch(connection, source, paths, target, *more, *fallback)
        failures = [line for line in _log_lines(process.stderr) if line.get("level") in ("error", "critical")]
        failure = failures[0] if failures else {"msg": process.stderr[-800:]}
        reason = one_line(f"{failure.get('object', '')} {failure['msg']}".strip())
        if "no space left on device" in reason:
            raise OSError(errno.ENOSPC, "No space left on device", target)
        where = f"{connection.bucket}/{target}" if connection else target
        remedy = "delivery_destination, delivery_s3_endpoint and the keys" if connection else "that folder"
        then = "then run `make deliver` again: it resumes"
        raise DeliveryError(f"cannot send to {where}: {reason}. Check {remedy}, {then}")
    lines = _log_lines(process.stderr)
    sent = sum(line["msg"].startswith("Copied") for line in lines)
    unverified = [line["object"] for line in lines if line["msg"] == SAME_SIZE]
    return sent + (_send_batch(connection, source, unverified, target, *more, "--ignore-times") if unverified else 0)


def _log_lines(output: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
