"""Files in which ranks note wrong values at once: without a note, wrong values before a crash would look like a crash
alone, which may be retried."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from ..common.launch import RANK_DIRECTORY_VARIABLE
from ..common.result import WorkloadResult, write_atomically

FILE = "wrong-{rank}.json"


def keep(rank: int, metric: str, count: int) -> None:
    """Write a note that a rank found ``count`` wrong values of a metric; it replaces the rank's earlier note."""
    if count:
        path = Path(os.environ[RANK_DIRECTORY_VARIABLE], FILE.format(rank=rank))
        write_atomically(path, json.dumps({"metric": metric, "count": count}))


def add_to(result: WorkloadResult) -> None:
    """Set the metrics in the result to the sums of wrong values in the notes of this node's ranks."""
    counts: dict[str, int] = {}
    for path in Path(os.environ.get(RANK_DIRECTORY_VARIABLE) or "/nonexistent").glob(FILE.format(rank="*")):
        with suppress(OSError, ValueError):
            note = json.loads(path.read_text(encoding="utf-8"))
            counts[note["metric"]] = counts.get(note["metric"], 0) + note["count"]
    for metric, count in counts.items():
        result.add_metric(metric, count, "count")
