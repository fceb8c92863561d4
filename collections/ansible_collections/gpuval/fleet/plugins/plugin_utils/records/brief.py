"""What a status shows of a record, which itself has up to a megabyte. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..core.escape import one_line
from . import lines

MESSAGE_CHARACTERS = 300


@dataclass(frozen=True)
class StageBrief:
    """Of one stage on one node. `figures`: node-wide metrics by name; `modified`: when the store took the record in."""

    state: str
    attempt: int
    message: str
    started: bool
    duration_seconds: float | None
    figures: Mapping[str, float]
    modified: datetime


def fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an accepted record that status shows, but for the time at which the store got it."""
    return {
        "state": record["state"],
        "attempt": record["attempt"],
        "message": one_line(record["message"], MESSAGE_CHARACTERS),
        "started": record["started_at"] is not None,
        "duration_seconds": record["duration_seconds"],
        "figures": {
            metric["name"]: metric["value"]
            for metric in record["metrics"]
            if metric["scope"] == "node" and metric["value"] is not None and metric["name"] in lines.METRICS
        },
    }


def brief(record: Mapping[str, Any], modified: datetime) -> StageBrief:
    return StageBrief(**fields(record), modified=modified)
