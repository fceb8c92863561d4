"""Archives of container images in the store, from where nodes get them."""

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
except ImportError:  # boto3 is there, but fails: `Store` reports it
    TransferConfig = None

from ...module_utils import image_archive
from ...module_utils.store import CLIENT_ERRORS, Store
from ..store.backend import StoreBackend
from . import images

PART_BYTES = 64 << 20
PROGRESS_SECONDS = 10.0
#: Time limit of an answer: a store needs long to combine the parts of an upload.
ANSWER_SECONDS = 600.0


def publish(access: StoreBackend, state: Path, entry: Mapping[str, Any], say: Callable[[str], None]) -> bool:
    """Upload an image's archive and description, unless the store has the complete archive. Returns whether it was
    sent. `entry`: the image's entry in the catalogue (gpuval.images/1)."""
    _, description, parts = images.object_keys(entry["name"], entry["id"])
    path, listed = images.archive_file(state, entry["sha256"]), images.sbom_file(state, entry["sha256"])
    store = Store(access.connection(), timeout=ANSWER_SECONDS)
    if sent := not _is_there(store, entry, description):
        store.delete_prefix(description)  # without a description the archive counts as incomplete
        upload(store, path, entry, say, in_parts=access.takes_parts)
        if listed.is_file():
            store.put(parts, listed.read_bytes(), "application/vnd.cyclonedx+json")
        store.put(description, json.dumps(entry, indent=1).encode(), "application/json")
    _share(access, entry, path)
    return sent


def upload(store: Store, path: Path, entry: Mapping[str, Any], say: Callable[[str], None], *, in_parts: bool) -> None:
    """Upload an image's archive, `in_parts` if large. `entry`: its key, bytes and reference. Raises ``ImagesError``."""
    if not path.is_file():
        raise images.ImagesError(f"{path} is gone: build {entry['reference']} again")
    total, began, lock = entry["bytes"], time.monotonic(), threading.Lock()
    sent, shown_at = 0, began

    def add(count: int) -> None:
        """Count sent bytes, and show the progress every few seconds; several threads call it."""
        nonlocal sent, shown_at
        with lock:
            sent, now = sent + count, time.monotonic()
            if now - shown_at >= PROGRESS_SECONDS:
                shown_at, speed = now, sent / (now - began)
                rest = f"{speed / 1e6:.0f} MB/s, {(total - sent) / speed:.0f} s left"
                say(f"{entry['reference']}: {sent / 1e9:.1f} of {total / 1e9:.1f} GB sent, {rest}")

    part_bytes = max(PART_BYTES, -(-total // 9000))  # S3 takes at most 10,000 parts
    least = PART_BYTES if in_parts else sys.maxsize
    config = TransferConfig(multipart_threshold=least, multipart_chunksize=part_bytes, max_concurrency=4)
    try:
        store.client.upload_file(str(path), store.connection.bucket, entry["key"], Config=config, Callback=add)
    except (*CLIENT_ERRORS, OSError) as error:
        raise images.ImagesError(f"the upload of {entry['reference']} broke off: {error}. Run again") from error
    sizes = [stored.size for stored in store.list(entry["key"]) if stored.key == entry["key"]]
    if sizes != [total]:
        raise images.ImagesError(f"the store has {sizes} bytes of {entry['reference']}, not {total}: run again")


def _is_there(store: Store, entry: Mapping[str, Any], description: str) -> bool:
    """Whether the store has exactly the image archive of `entry`, complete: its description is written last."""
    sizes = {old.key: old.size for old in store.list(entry["key"].removesuffix(".tar"))}
    if sizes.get(entry["key"]) != entry["bytes"] or description not in sizes:
        return False
    try:
        old = json.loads(store.get(description, max_bytes=65536))
        return (old["sha256"], old["id"], old["reference"]) == (entry["sha256"], entry["id"], entry["reference"])
    except (ValueError, KeyError, TypeError):
        return False


def take_archive(path: Path, reference: str, state: Path) -> dict[str, Any]:
    """Link a user's image archive into the controller's folder. Returns its catalogue entry. Raises ImagesError."""
    try:
        image, sha256 = image_archive.image_of(path, reference), image_archive.sha256_of(path)
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
    """Replace the archive by a hard link to the store's copy if both are on one disk, so that one copy is enough."""
    if access.objects is None or path.is_symlink():
        return
    stored = access.objects / entry["key"]
    with suppress(OSError):
        if stored.stat().st_size == entry["bytes"] and not stored.samefile(path):
            draft = path.with_suffix(".new")
            draft.unlink(missing_ok=True)
            os.link(stored, draft)
            draft.replace(path)
