# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Put an image's archive into the store, where nodes get it from, and remember it."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress

try:
    from boto3.s3.transfer import TransferConfig
except ImportError:  # the store reports it, with the name of the library
    TransferConfig = None

from ..module_utils import image_archive
from ..module_utils.store import CLIENT_ERRORS, Store
from ..plugin_utils.artifacts import images
from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.store.access import open_store

PART_BYTES = 64 << 20
PROGRESS_SECONDS = 10.0
NOTHING = {"id": None, "sha256": None, "bytes": None, "key": None, "architecture": None}
KEPT = ("context", "base", "base_id", "base_digest", "engine_id")
#: A store takes its time to put the parts of an upload together.
ANSWER_SECONDS = 600.0


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        state = project_path(options["store"]["state_dir"])
        made = {key: options["image"].get(key) for key in KEPT}
        entry = {"name": options["name"], "reference": options["reference"], **NOTHING, **made}
        if options["on_nodes"]:
            changed = images.read_catalogue(state).get(options["reference"]) != entry
            if changed and not self.check_mode:
                images.remember(state, entry)
            return {"changed": changed, "image": entry}
        if self.check_mode:
            return {
                "changed": True,
                "msg": f"check mode: {options['reference']} would be put into the store if it is not there",
            }
        if options["archive"]:
            entry.update(_import(project_path(options["archive"]), options["reference"], state))
        elif not options["image"].get("id"):  # its task was ignored as unreachable, or saved nothing
            raise images.ImagesError(f"{options['reference']} was not made: see the builder's output above")
        else:
            entry.update({key: options["image"][key] for key in ("id", "sha256", "bytes", "architecture")})
        entry["key"], description = images.object_keys(options["name"], entry["id"])
        path = images.archive_file(state, entry["sha256"])
        access = open_store(options["store"])
        store = Store(access.connection(), timeout=ANSWER_SECONDS)
        began = time.monotonic()
        sent = not _is_there(store, entry, description)
        if sent:
            store.delete_prefix(description)  # until the end the archive does not count as whole
            self._upload(store, path, entry, in_parts=access.takes_parts)
            store.put(description, json.dumps(entry, indent=1).encode(), "application/json")
        _share(access, entry, path)
        changed = images.remember(state, entry) or sent
        seconds = {"upload_duration_seconds": round(time.monotonic() - began, 1)} if sent else {}
        return {"changed": changed, "image": entry, "uploaded": sent, **seconds}

    def _upload(self, store, path, entry, *, in_parts):
        if not path.is_file():
            raise images.ImagesError(f"{path} is gone: build {entry['reference']} again")
        progress = _Progress(entry, self._display.display)
        config = TransferConfig(
            multipart_threshold=PART_BYTES if in_parts else sys.maxsize,
            multipart_chunksize=_part_bytes(entry["bytes"]),
            max_concurrency=4,
        )
        try:
            store.client.upload_file(
                str(path), store.connection.bucket, entry["key"], Config=config, Callback=progress.add
            )
        except (*CLIENT_ERRORS, OSError) as error:
            raise images.ImagesError(f"the upload of {entry['reference']} broke off: {error}. Run again") from error
        sizes = [found.size for found in store.list(entry["key"]) if found.key == entry["key"]]
        if sizes != [entry["bytes"]]:
            raise images.ImagesError(
                f"the store has {sizes} bytes of {entry['reference']}, not {entry['bytes']}: run again"
            )


class _Progress:
    """Shows the progress of an upload every few seconds; called by several threads."""

    def __init__(self, entry, say):
        self._entry, self._say, self._lock = entry, say, threading.Lock()
        self._sent, self._began = 0, time.monotonic()
        self._shown = self._began

    def add(self, count):
        with self._lock:
            self._sent += count
            present = time.monotonic()
            if present - self._shown < PROGRESS_SECONDS:
                return
            self._shown = present
            speed = self._sent / (present - self._began)
            left = (self._entry["bytes"] - self._sent) / speed
            self._say(
                f"{self._entry['reference']}: {self._sent / 1e9:.1f} of {self._entry['bytes'] / 1e9:.1f} GB sent, "
                f"{speed / 1e6:.0f} MB/s, {left:.0f} s left"
            )


def _part_bytes(size):
    """S3 takes at most 10,000 parts."""
    return max(PART_BYTES, -(-size // 9000))


def _is_there(store, entry, description):
    """Whether the store has this very archive, whole: its description is written last."""
    sizes = {found.key: found.size for found in store.list(entry["key"].removesuffix(".tar"))}
    if sizes.get(entry["key"]) != entry["bytes"] or description not in sizes:
        return False
    try:
        found = json.loads(store.get(description, max_bytes=65536))
        return (found["sha256"], found["id"], found["reference"]) == (entry["sha256"], entry["id"], entry["reference"])
    except (ValueError, KeyError, TypeError):
        return False


def _import(path, reference, state):
    """Link an archive that was made elsewhere into the controller's folder. Raises ``ImagesError``."""
    try:
        image = image_archive.image_of(path, reference)
        sha256 = image_archive.sha256_of(path)
    except image_archive.ArchiveError as error:
        raise images.ImagesError(str(error)) from error
    except OSError as error:
        raise images.ImagesError(f"{path} cannot be read: {error.strerror}") from error
    kept = images.archive_file(state, sha256)
    kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not kept.exists():
        try:
            os.link(path, kept)
        except OSError:  # another file system
            kept.symlink_to(path.resolve())
    return {"id": image["id"], "sha256": sha256, "bytes": path.stat().st_size, "architecture": image["architecture"]}


def _share(access, entry, path):
    """Where the store lies on the same disk, one copy is enough."""
    if access.objects is None or path.is_symlink():
        return
    kept = access.objects / entry["key"]
    with suppress(OSError):
        if kept.stat().st_size == entry["bytes"] and not kept.samefile(path):
            draft = path.with_suffix(".new")
            draft.unlink(missing_ok=True)
            os.link(kept, draft)
            draft.replace(path)
