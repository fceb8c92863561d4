"""Keeps what nodes write into the embedded store within limits: a signed URL has none, and it is the controller's disk.

Objects over the limit of their kind, those of a node over its quota, and the largest ones while the disk is nearly full
are cut to their beginning. A node that stays within its limits loses nothing to one that does not.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuval.fleet.node.gpuval_workloads.loading.units import human_bytes

from ..core.text import some_of
from ..records.evidence import MAX_BYTES, MAX_NODE_BYTES, parse_key

#: Free on the store's disk for the controller's own files: results, reports, state.
RESERVE_BYTES = 512 << 20
#: On a small disk the reserve is this part of it.
RESERVE_PART = 50
#: What is left of an object of a node over its quota, or on a full disk.
KEPT_BYTES = 1 << 20
#: All sizes are read after this time, and earlier when the disk has lost so much.
LOOK_SECONDS = 30.0
LOOK_BYTES = 64 << 20
#: rclone's name of an upload under way; renamed when it ends.
UPLOAD = ".rclone_temp_"
#: As `shutil.disk_usage`.
Usage = Callable[[Path], Any]


@dataclass
class Written:
    """A file of a node's; `node` is empty for an upload under way."""

    path: Path
    kind: str
    node: str
    size: int

    def cut(self, size: int) -> bool:
        """Leave its beginning. An upload under way goes on behind a hole, which takes no space."""
        try:
            os.truncate(self.path, size)
        except OSError:  # replaced or removed meanwhile
            return False
        self.size = size
        return True

    def __str__(self) -> str:
        return f"{self.kind}/{self.path.parent.name}/{self.node or '(upload)'}"


def reserve_bytes(total: int) -> int:
    return min(RESERVE_BYTES, total // RESERVE_PART)


def shortage(place: Path, usage: Usage = shutil.disk_usage) -> int:
    """Bytes that the disk of an existing folder lacks to the reserve; 0 or less where it has them."""
    disk = usage(place)
    return reserve_bytes(disk.total) - disk.free


class StoreGuard:
    """Limits for the objects of one run, which lie as files below `folder` of `objects`."""

    def __init__(self, objects: Path, folder: str, usage: Usage = shutil.disk_usage) -> None:
        self._objects, self._folder, self._usage = objects, folder, usage
        self._looked_at, self._free = float("-inf"), 0

    def look(self, now: float) -> list[str]:
        """Cut what is over a limit. Returns lines for the operator."""
        if not self._objects.is_dir():
            return []
        free, lacking = self._usage(self._objects).free, shortage(self._objects, self._usage)
        if lacking <= 0 and now - self._looked_at < LOOK_SECONDS and self._free - free < LOOK_BYTES:
            return []
        self._looked_at, self._free = now, free
        found = sorted(self._written(), key=lambda one: one.size, reverse=True)
        of_node: dict[str, int] = defaultdict(int)
        too_large, over_quota, on_full_disk = [], [], []
        for one in found:
            if one.size > MAX_BYTES[one.kind] + 1 and one.cut(MAX_BYTES[one.kind] + 1):
                too_large.append(one)
            of_node[one.node] += one.size if one.node else 0
        for one in found:
            spare = one.size - KEPT_BYTES
            if of_node[one.node] > MAX_NODE_BYTES and spare > 0 and one.cut(KEPT_BYTES):
                of_node[one.node] -= spare
                over_quota.append(one)
            elif lacking > 0 and spare > 0 and one.cut(KEPT_BYTES):
                lacking -= spare
                on_full_disk.append(one)
        return [
            *_line(too_large, "larger than its kind may be"),
            *_line(over_quota, f"its node has written more than {human_bytes(MAX_NODE_BYTES)}"),
            *_line(on_full_disk, "the disk of the store is full"),
            *([f"the disk of the store has {human_bytes(free)} free: free space there"] if lacking > 0 else ()),
        ]

    def _written(self) -> Iterator[Written]:
        for kind in MAX_BYTES:
            for path in (self._objects / self._folder / kind).glob("*/*"):
                place = parse_key(self._folder, path.relative_to(self._objects).as_posix())
                if place or path.name.startswith(UPLOAD):
                    with suppress(OSError):
                        yield Written(path, kind, place[2] if place else "", path.lstat().st_size)


def _line(cut: list[Written], reason: str) -> list[str]:
    return [f"cut in the store, {reason}: {some_of(cut)}"] if cut else []
