"""Destinations of a delivery: an S3 service with its own keys, or a folder.

Files that are there already are not sent again; each sent file is verified at the destination.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from ...module_utils.store import CLIENT_ERRORS, Connection, Store
from . import DeliveryError, pack

STREAMS = 8
SINGLE_BYTES = 64 << 20
TIMEOUT_SECONDS = 60.0
METADATA = "sha256"
_MD5 = re.compile("[0-9a-f]{32}")


@dataclass
class Sent:
    """How many files were sent, and how many were there already."""

    sent: int = 0
    there: int = 0


def parse(destination: str) -> tuple[str, str, str]:
    """(``s3``, bucket, prefix) of ``s3://bucket/prefix``, (``folder``, path, empty) of a path. Raises DeliveryError."""
    if not destination.startswith("s3://"):
        if "://" in destination:
            raise DeliveryError(f"delivery_destination {destination}: s3://bucket/prefix, or the path of a folder")
        return "folder", destination, ""
    place = urlsplit(destination)
    prefix = place.path.strip("/")
    if not place.hostname or place.query or place.fragment or "@" in place.netloc or ".." in prefix.split("/"):
        raise DeliveryError(f"delivery_destination must be s3://bucket/prefix and nothing more: {place.hostname}")
    return "s3", place.netloc, prefix


def send_to_folder(root: Path, source: Path, files: Iterable[pack.File], folder: Path) -> Sent:
    """Copy files from below ``source`` to below ``folder``. Raises DeliveryError."""
    sent = Sent()
    if folder.resolve().is_relative_to(root.resolve()):
        raise DeliveryError(f"delivery_destination {folder} is inside the delivery itself: set another folder")
    for file in files:
        target = folder / file.path
        if target.is_file() and not target.is_symlink() and _is(file, target):
            sent.there += 1
            continue
        sent.sent += 1
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            shutil.copyfile(source / file.path, draft)
            if not _is(file, draft):
                raise DeliveryError(
                    f"{file.path} arrived in {folder} with another checksum: check its disk, then deliver again"
                )
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    return sent


def _is(file: pack.File, path: Path) -> bool:
    return path.stat().st_size == file.bytes and pack.digest(path) == file.sha256


class Bucket:
    """A bucket and prefix of an S3 service."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        if not connection.access_key or not connection.secret_key:
            raise DeliveryError(
                "an S3 destination needs its own keys: set delivery_s3_access_key and delivery_s3_secret_key; "
                "the keys of the run's store are never used"
            )
        self._store = Store(connection, timeout=TIMEOUT_SECONDS, attempts=5)
        self._client = self._store.client
        self._bucket, self._prefix = connection.bucket, prefix

    def send(
        self,
        source: Path,
        files: list[pack.File],
        below: str,
        say: Callable[[str], object] = lambda _line: None,
    ) -> Sent:
        """Put files from ``source`` under the prefix; the last two of the list come last and mark completion.

        Raises DeliveryError, which names the first file that failed; a second call resumes there.
        """
        sent = 0
        most = max(0, len(files) - 2)
        with ThreadPoolExecutor(STREAMS) as pool:
            for start in range(0, most, 256):  # bounded, so that a failure shows before everything else is tried
                batch = files[start : min(start + 256, most)]
                sent += sum(pool.map(lambda file: self._one(source, file, below), batch))
                done = start + len(batch)
                say(f"delivery: {sent} files sent, {done - sent} already there, of {len(files)}")
        sent += sum(self._one(source, file, below) for file in files[most:])
        return Sent(sent, len(files) - sent)

    def _one(self, source: Path, file: pack.File, below: str) -> bool:
        """Send one file unless it is there; returns whether it was sent."""
        key = "/".join(part for part in (self._prefix, below, file.path) if part)
        path = source / file.path
        try:
            if self._there(key, file, path, checked=True):
                return False
            self._put(key, file, path)
            there = self._there(key, file, path, checked=file.bytes <= SINGLE_BYTES)
            if there is None and file.bytes <= SINGLE_BYTES:
                return True  # write-only keys; the service verified the checksum that came with it
            if not there:
                raise DeliveryError(f"{key} arrived in {self._bucket} with another size or checksum: deliver again")
        except (*CLIENT_ERRORS, OSError) as error:
            raise DeliveryError(
                f"cannot send {key} to {self._bucket}: {error}. Check delivery_destination, delivery_s3_endpoint and "
                "the keys, then run `make deliver` again: it resumes"
            ) from None
        return True

    def _put(self, key: str, file: pack.File, path: Path) -> None:
        extra: dict[str, Any] = {"Metadata": {METADATA: file.sha256}, "ContentType": _content_type(path.name)}
        if file.bytes > SINGLE_BYTES:
            self._client.upload_file(str(path), self._bucket, key, ExtraArgs=extra)
            return
        data = path.read_bytes()
        checksum = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        self._client.put_object(Bucket=self._bucket, Key=key, Body=data, ContentMD5=checksum, **extra)

    def _there(self, key: str, file: pack.File, path: Path, *, checked: bool) -> bool | None:
        """Whether the object is this file; None if the keys may not read it.

        Compares the ETag; then the SHA-256 of its metadata, if the service ``checked`` the bytes on arrival; else the
        bytes.
        """
        try:
            head = self._client.head_object(Bucket=self._bucket, Key=key)
            if head["ContentLength"] != file.bytes:
                return False
            etag = head.get("ETag", "").strip('"')
            if _MD5.fullmatch(etag) and etag == pack.digest(path, "md5"):
                return True
            if checked and head.get("Metadata", {}).get(METADATA) == file.sha256:
                return True
            return self._hash(key) == file.sha256
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status in (403, 404):  # AWS answers 403 for a missing object too, if the keys may not list
                return None if status == 403 else False
            raise

    def _hash(self, key: str) -> str:
        found = hashlib.sha256()
        body = self._client.get_object(Bucket=self._bucket, Key=key)["Body"]
        try:
            for piece in body.iter_chunks(1 << 20):
                found.update(piece)
        finally:
            body.close()
        return found.hexdigest()


def _content_type(name: str) -> str:
    kinds = {".html": "text/html; charset=utf-8", ".json": "application/json", ".csv": "text/csv; charset=utf-8",
             ".md": "text/markdown; charset=utf-8", ".gz": "application/gzip", ".zip": "application/zip"}  # fmt: skip
    return kinds.get(Path(name).suffix, "text/plain; charset=utf-8")
