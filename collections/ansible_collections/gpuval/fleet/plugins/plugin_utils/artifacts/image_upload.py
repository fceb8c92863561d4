"""Archives of images in the store, from where nodes get them."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

try:
    from boto3.s3.transfer import TransferConfig
except ImportError:  # the store reports it, with the name of the library
    TransferConfig = None

from ...module_utils import image_archive
from ...module_utils.store import CLIENT_ERRORS, Store
from ..store.backend import StoreBackend
from . import images

PART_BYTES = 64 << 20
PROGRESS_SECONDS = 10.0
#: A store takes its time to put the parts of an upload together.
ANSWER_SECONDS = 600.0


def publish(access: StoreBackend, state: Path, entry: Mapping[str, Any], say: Callable[[str], None]) -> bool:
    """Put the archive of an image and its description into the store. Returns whether it was sent. `entry` is that of
    the catalogue (gpuval.images/1). An archive that the store has, whole, is left alone."""
    _, description, parts = images.object_keys(entry["name"], entry["id"])
    path = images.archive_file(state, entry["sha256"])
    listed = images.sbom_file(state, entry["sha256"])
    store = Store(access.connection(), timeout=ANSWER_SECONDS)
    sent = not _is_there(store, entry, description)
    if sent:
        store.delete_prefix(description)  # until the end the archive does not count as whole
        _upload(store, path, entry, say, in_parts=access.takes_parts)
        if listed.is_file():
            store.put(parts, listed.read_bytes(), "application/vnd.cyclonedx+json")
        store.put(description, json.dumps(entry, indent=1).encode(), "application/json")
    _share(access, entry, path)
    return sent


def _upload(store: Store, path: Path, entry: Mapping[str, Any], say: Callable[[str], None], *, in_parts: bool) -> None:
    if not path.is_file():
        raise images.ImagesError(f"{path} is gone: build {entry['reference']} again")
    progress = _UploadProgress(entry, say)
    config = TransferConfig(
        multipart_threshold=PART_BYTES if in_parts else sys.maxsize,
        multipart_chunksize=max(PART_BYTES, -(-entry["bytes"] // 9000)),  # S3 takes at most 10,000 parts
        max_concurrency=4,
    )
    try:
        store.client.upload_file(str(path), store.connection.bucket, entry["key"], Config=config, Callback=progress.add)
    except (*CLIENT_ERRORS, OSError) as error:
        raise images.ImagesError(f"the upload of {entry['reference']} broke off: {error}. Run again") from error
    sizes = [stored.size for stored in store.list(entry["key"]) if stored.key == entry["key"]]
    if sizes != [entry["bytes"]]:
        raise images.ImagesError(
            f"the store has {sizes} bytes of {entry['reference']}, not {entry['bytes']}: run again"
        )


class _UploadProgress:
    """Shows the progress of an upload every few seconds; called by several threads."""

    def __init__(self, entry: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self._entry, self._say, self._lock = entry, say, threading.Lock()
        self._sent, self._began = 0, time.monotonic()
        self._shown = self._began

    def add(self, count: int) -> None:
        with self._lock:
            self._sent += count
            present, total = time.monotonic(), self._entry["bytes"]
            if present - self._shown < PROGRESS_SECONDS:
                return
            self._shown = present
            speed = self._sent / (present - self._began)
            share = f"{self._sent / 1e9:.1f} of {total / 1e9:.1f} GB sent"
            rest = f"{speed / 1e6:.0f} MB/s, {(total - self._sent) / speed:.0f} s left"
            self._say(f"{self._entry['reference']}: {share}, {rest}")


def _is_there(store: Store, entry: Mapping[str, Any], description: str) -> bool:
    """Whether the store has this very archive, whole: its description is written last."""
    sizes = {old.key: old.size for old in store.list(entry["key"].removesuffix(".tar"))}
    if sizes.get(entry["key"]) != entry["bytes"] or description not in sizes:
        return False
    try:
        old = json.loads(store.get(description, max_bytes=65536))
        return (old["sha256"], old["id"], old["reference"]) == (entry["sha256"], entry["id"], entry["reference"])
    except (ValueError, KeyError, TypeError):
        return False


def take_archive(path: Path, reference: str, state: Path) -> dict[str, Any]:
    """Link an archive of others into the controller's folder. Returns what it holds; raises ``ImagesError``."""
    try:
        image = image_archive.image_of(path, reference)
        sha256 = image_archive.sha256_of(path)
    except image_archive.ArchiveError as error:
        raise images.ImagesError(str(error)) from error
    except OSError as error:
        raise images.ImagesError(f"{path} cannot be read: {error.strerror}") from error
    target = images.archive_file(state, sha256)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not target.exists():
        try:
            os.link(path, target)
        except OSError:  # another file system
            target.symlink_to(path.resolve())
    return {"id": image["id"], "sha256": sha256, "bytes": path.stat().st_size, "architecture": image["architecture"]}


def _share(access: StoreBackend, entry: Mapping[str, Any], path: Path) -> None:
    """Where the store lies on the same disk, one copy is enough."""
    if access.objects is None or path.is_symlink():
        return
    stored = access.objects / entry["key"]
    with suppress(OSError):
        if stored.stat().st_size == entry["bytes"] and not stored.samefile(path):
            draft = path.with_suffix(".new")
            draft.unlink(missing_ok=True)
            os.link(stored, draft)
            draft.replace(path)
