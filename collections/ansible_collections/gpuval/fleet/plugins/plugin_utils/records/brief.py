"""What a status shows of a record, which itself has up to a megabyte, and the line of a stage that a node has done, as
acceptance logs have them: ``Node: X, Training Time: 811.93 seconds``. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.units import human_rate

from ..core.escape import one_line

MESSAGE_CHARACTERS = 300


@dataclass(frozen=True)
class StageBrief:
    """What status shows of a stage on a node. `figures`: node-wide metrics; `modified`: when the store got it."""

    state: str
    attempt: int
    message: str
    started: bool
    duration_seconds: float | None
    figures: Mapping[str, float]
    modified: datetime


def fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an accepted record that status shows, except the time at which the store received it."""
    return {
        **{key: record[key] for key in ("state", "attempt", "duration_seconds")},
        "message": one_line(record["message"], MESSAGE_CHARACTERS),
        "started": record["started_at"] is not None,
        "figures": {
            metric["name"]: metric["value"]
            for metric in record["metrics"]
            if metric["scope"] == "node" and metric["value"] is not None and metric["name"] in METRICS
        },
    }


def brief(record: Mapping[str, Any], modified: datetime) -> StageBrief:
    """The brief of an accepted record; ``modified``: when the store received the record."""
    return StageBrief(**fields(record), modified=modified)


def _seconds(value: float) -> str:
    return f"{value:.2f} seconds" if value >= 100 else f"{value:.3g} seconds"


def _bytes(value: float) -> str:
    return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.2f} MB"


#: For each stage the figures of its line: label, metric, format.
LINES: Mapping[str, tuple[tuple[str, str, Callable[[float], str]], ...]] = {
    "training": (("Training Time", "training_duration_seconds", _seconds),),
    "loading": (
        ("Data Size", "loading_bytes", _bytes),
        ("Duration", "loading_duration_seconds", _seconds),
        ("Throughput", "loading_bytes_per_second", human_rate),
    ),
    "inference": (
        ("Startup Time", "inference_startup_seconds", _seconds),
        ("Running Time", "inference_running_seconds", _seconds),
        ("Inference Number", "inference_requests_done_count", "{:.0f}".format),
        ("Generated Token Number", "inference_generated_tokens_count", "{:.0f}".format),
    ),
}
#: The metrics that the lines need.
METRICS = frozenset(metric for parts in LINES.values() for _, metric, _ in parts)


def stage_line(node: str, stage: str, figures: Mapping[str, Any], duration_seconds: float | None) -> str:
    """The line of a stage that succeeded, with its `figures` (in base units) of LINES, else with its duration."""
    figure_texts = [
        f"{title}: {form(float(figures[metric]))}"
        for title, metric, form in LINES.get(stage, ())
        if isinstance(figures.get(metric), (int, float))
    ]
    if not figure_texts and duration_seconds is not None:
        figure_texts = [f"{stage.replace('_', ' ').capitalize()} Time: {_seconds(duration_seconds)}"]
    return ", ".join([f"Node: {one_line(node, 253)}", *figure_texts])
