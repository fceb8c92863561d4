"""Limits the size of what nodes upload: a signed URL sets no limit, and could fill the embedded store's disk.

Objects over the limit of their kind, those of a node over its quota, and the largest ones while the disk is nearly full
are cut to their beginning. A node that stays within its limits loses nothing to one that does not.
"""

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.units import human_bytes

from ...module_utils.store import Store
from ..core.grouping import values_by_key
from ..core.text import some_of
from ..records.evidence import MAX_BYTES, MAX_NODE_BYTES, parse_key

#: Bytes that stay free on the store's disk for the controller's own files: results, reports, state.
RESERVE_BYTES = 512 << 20
#: On a small disk the reserve is the disk's size divided by this.
RESERVE_PART = 50
#: Bytes that stay of an object that is cut, since its node is over its quota or the disk is full.
KEPT_BYTES = 1 << 20
#: Seconds between two looks at the sizes of all objects; earlier once the disk's free space fell by LOOK_BYTES.
LOOK_SECONDS = 30.0
LOOK_BYTES = 64 << 20
#: Prefix of the file that rclone writes during an upload, and renames at its end.
UPLOAD = ".rclone_temp_"


@dataclass
class Written:
    """A node's object in the store. `kind`: records, logs or series; `size`: bytes; `node`: empty during the upload."""

    key: str
    kind: str
    node: str
    size: int

    def __str__(self) -> str:
        return f"{self.kind}/{self.key.split('/')[-2]}/{self.node or '(upload)'}"


#: (object over a limit, bytes of it that may stay, reason why).
Excess = tuple[Written, int, str]


def over_limits(objects: Sequence[Written]) -> Iterator[Excess]:
    """Objects larger than their kind may be, then the largest objects of each node that is over its quota."""
    of_node: dict[str, int] = defaultdict(int)
    for written in objects:
        limit = MAX_BYTES[written.kind] + 1
        if written.size > limit:
            yield written, limit, "larger than its kind may be"
            written.size = limit
        of_node[written.node] += written.size if written.node else 0
    for written in sorted(objects, key=lambda written: written.size, reverse=True):
        if of_node[written.node] > MAX_NODE_BYTES and written.size > KEPT_BYTES:
            of_node[written.node] -= written.size - KEPT_BYTES
            yield written, KEPT_BYTES, f"its node has written more than {human_bytes(MAX_NODE_BYTES)}"
            written.size = KEPT_BYTES


def lines_of(outcome: str, excess: Iterable[Excess]) -> list[str]:
    """Lines for the operator: for each reason the objects over a limit. `outcome`: what happened to them."""
    reasons = values_by_key((reason, written) for written, _size, reason in excess)
    return [f"{outcome}, {reason}: {some_of(objects)}" for reason, objects in reasons.items()]


def reserve_bytes(disk_bytes: int) -> int:
    return min(RESERVE_BYTES, disk_bytes // RESERVE_PART)


def shortage(path: Path) -> int:
    """Bytes by which the free space on the disk of a folder falls short of the reserve; 0 or less if it does not."""
    disk = shutil.disk_usage(path)
    return reserve_bytes(disk.total) - disk.free


class FileGuard:
    """Enforces size limits on a run's objects in the embedded store, which are files below `objects`, named by their
    keys. `folder`: the run's in the bucket."""

    def __init__(self, objects: Path, folder: str) -> None:
        self._objects, self._folder = objects, folder
        self._looked_at, self._free = float("-inf"), 0

    def look(self, now: float) -> list[str]:
        """Truncate objects over a limit. `now`: monotonic seconds. Returns lines for the operator."""
        if not self._objects.is_dir():
            return []
        free, lacking = shutil.disk_usage(self._objects).free, shortage(self._objects)
        if lacking <= 0 and now - self._looked_at < LOOK_SECONDS and self._free - free < LOOK_BYTES:
            return []
        self._looked_at, self._free = now, free
        objects = list(self._written())
        cut = [excess for excess in over_limits(objects) if self._cut(*excess)]
        for written in sorted(objects, key=lambda written: written.size, reverse=True):
            excess = (written, KEPT_BYTES, "the disk of the store is full")
            if lacking > 0 and written.size > KEPT_BYTES and self._cut(*excess):
                lacking -= written.size - KEPT_BYTES
                cut.append(excess)
        full = f"the disk of the store has {human_bytes(free)} free: free space there"
        return [*lines_of("cut in the store", cut), *([full] if lacking > 0 else ())]

    def _cut(self, written: Written, size: int, _reason: str) -> bool:
        """Truncate an object's file to `size` bytes. An upload in progress leaves a hole, which takes no space."""
        try:
            os.truncate(self._objects / written.key, size)
        except OSError:  # replaced or removed meanwhile
            return False
        return True

    def _written(self) -> Iterator[Written]:
        for kind in MAX_BYTES:
            for path in (self._objects / self._folder / kind).glob("*/*"):
                key = path.relative_to(self._objects).as_posix()
                parts = parse_key(self._folder, key)
                if parts or path.name.startswith(UPLOAD):
                    with suppress(OSError):
                        yield Written(key, kind, parts[2] if parts else "", path.lstat().st_size)


class ObjectGuard:
    """Enforces size limits on a run's objects in an S3 service: lists them, and deletes those over a limit."""

    def __init__(self, store: Callable[[], Store], folder: str) -> None:
        self._store, self._folder = store, folder
        self._looked_at = float("-inf")

    def look(self, now: float) -> list[str]:
        """Delete objects over a limit. `now`: monotonic seconds. Returns lines for the operator. Raises StoreError."""
        if now - self._looked_at < LOOK_SECONDS:
            return []
        self._looked_at, store = now, self._store()
        listed = [(entry, parse_key(self._folder, entry.key)) for entry in store.list(f"{self._folder}/")]
        objects = [Written(entry.key, place[0], place[2], entry.size) for entry, place in listed if place]
        removed = list(over_limits(objects))
        store.delete({one.key for one, _size, _reason in removed})
        return lines_of("removed from the store", removed)
