"""The few fields of a stage's record that a run's status shows, and the log line of a stage that a node has done, such
as ``Node: X, Training Time: 811.93 seconds``. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.units import human_rate

from ..core.escape import one_line
from ..core.stage_traits import traits_of

MESSAGE_CHARACTERS = 300


@dataclass(frozen=True)
class StageBrief:
    """What status shows of a stage on a node. ``figures``: ``{metric of the whole node: value}``; ``modified``: when
    the store received the record."""

    state: str
    attempt: int
    message: str
    started: bool
    duration_seconds: float | None
    figures: Mapping[str, float]
    modified: datetime


def fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an accepted record that status shows, except the time at which the store received it."""
    shown = {figure.metric for figure in traits_of(record["stage"]).figures if figure.line}
    return {
        **{key: record[key] for key in ("state", "attempt", "duration_seconds")},
        "message": one_line(record["message"], MESSAGE_CHARACTERS),
        "started": record["started_at"] is not None,
        "figures": {
            metric["name"]: metric["value"]
            for metric in record["metrics"]
            if metric["scope"] == "node" and metric["value"] is not None and metric["name"] in shown
        },
    }


def brief(record: Mapping[str, Any], modified: datetime) -> StageBrief:
    """What status shows of an accepted record; ``modified``: when the store received the record."""
    return StageBrief(**fields(record), modified=modified)


def _seconds(value: float) -> str:
    return f"{value:.2f} seconds" if value >= 100 else f"{value:.3g} seconds"


def _bytes(value: float) -> str:
    return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.2f} MB"


def _text(metric: str, value: float) -> str:
    """A metric's value as text, in the unit at the end of the metric's name."""
    forms = {"_bytes_per_second": human_rate, "_bytes": _bytes, "_seconds": _seconds}
    return next((form(value) for unit, form in forms.items() if metric.endswith(unit)), f"{value:.10g}")


def stage_line(node: str, stage: str, figures: Mapping[str, Any], duration_seconds: float | None) -> str:
    """The log line of a stage that succeeded on a node, with the figures that its traits name, else its duration.
    ``figures``: ``{metric: value in base units}``."""
    figure_texts = [
        f"{figure.line}: {_text(figure.metric, float(figures[figure.metric]))}"
        for figure in traits_of(stage).figures
        if figure.line and isinstance(figures.get(figure.metric), (int, float))
    ]
    if not figure_texts and duration_seconds is not None:
        figure_texts = [f"{stage.replace('_', ' ').capitalize()} Time: {_seconds(duration_seconds)}"]
    return ", ".join([f"Node: {one_line(node, 253)}", *figure_texts])
