"""What ranks found wrong, kept from the moment they know: the work may break off, or be ended, before its result is.

Without it a wrong result that is followed by a crash would look like a crash alone, and that may be measured again.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from ..common.launch import RANK_DIRECTORY_VARIABLE
from ..common.result import WorkloadResult, write_atomically

FILE = "wrong-{rank}.json"


def keep(rank: int, metric: str, count: int) -> None:
    """Write a note of so many wrong values, in place of an earlier note of this rank; none without any."""
    if count:
        path = Path(os.environ[RANK_DIRECTORY_VARIABLE], FILE.format(rank=rank))
        write_atomically(path, json.dumps({"metric": metric, "count": count}))


def add_to(result: WorkloadResult) -> None:
    """Put the notes of this node's ranks into the result, in place of its own values."""
    counts: dict[str, int] = {}
    for path in Path(os.environ.get(RANK_DIRECTORY_VARIABLE) or "/nonexistent").glob(FILE.format(rank="*")):
        with suppress(OSError, ValueError):
            note = json.loads(path.read_text(encoding="utf-8"))
            counts[note["metric"]] = counts.get(note["metric"], 0) + note["count"]
    for metric, count in counts.items():
        result.add_metric(metric, count, "count")
