"""Compare the figures of two runs, of a run and its baseline, or of two baselines. Pure."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core import units
from ..core.grouping import values_by_key
from ..records.documents import Document
from .analysis.distribution import relative
from .baseline import TORCH, Baseline
from .peer_statistics import MEDIAN_ERROR

#: A change of more standard errors than this is no noise.
CLEAR_ERRORS = 3.0


class ReportFigure(NamedTuple):
    """A figure to compare, only with figures of the same unit and revision. ``error``: standard error, in its unit."""

    value: float
    unit: str
    revision: int = 1
    error: float = 0.0


#: {node name: {key that says what the figure is: figure}}.
Figures = Mapping[str, Mapping[Any, ReportFigure]]


@dataclass(frozen=True)
class FigureChange:
    """The change of one figure on a node, or of its median over ``nodes`` nodes; a missing side is None."""

    node: str
    key: Any
    unit: str
    then: float | None
    now: float | None
    error: float = 0.0
    nodes: int = 1

    @property
    def change(self) -> float | None:
        """The relative change; None if one side has no figure, or the earlier figure was 0."""
        return None if self.now is None or self.then is None else relative(self.now, self.then)

    @property
    def is_clear(self) -> bool:
        """Whether the change exceeds the noise of both figures."""
        return self.now is None or self.then is None or abs(self.now - self.then) > CLEAR_ERRORS * self.error


def compare(before: Figures, after: Figures) -> Iterator[FigureChange]:
    """The change of each figure of each node; figures whose unit or revision differs are left out."""
    for node in {**after, **before}:
        earlier, later = before.get(node, {}), after.get(node, {})
        for key in {**later, **earlier}:
            then, now = earlier.get(key), later.get(key)
            measured = [figure for figure in (now, then) if figure is not None]
            if len({(figure.unit, figure.revision) for figure in measured}) == 1:
                error = math.hypot(*(figure.error for figure in measured))
                yield FigureChange(
                    node, key, measured[0].unit, then.value if then else None, now.value if now else None, error
                )


def medians(changes: Iterable[FigureChange]) -> list[FigureChange]:
    """For each figure the change of its median over the nodes that report it on both sides."""
    of_keys = values_by_key(
        (change.key, (change.unit, change.then, change.now))
        for change in changes
        if change.then is not None and change.now is not None
    )
    return [
        FigureChange("", key, units[0], statistics.median(then), statistics.median(now), nodes=len(now))
        for key, (units, then, now) in ((key, tuple(zip(*pairs, strict=True))) for key, pairs in of_keys.items())
    ]


#: Relative changes between two baselines below this are left out.
MIN_CHANGE = 0.005
_SPREADS = {"between_nodes_ratio": "nodes", "within_nodes_ratio": "parts of a node", "repeats_ratio": "repeats"}


class BaselineKey(NamedTuple):
    """Identifies a figure of a baseline whatever its version of torch, so that figures of two versions are compared."""

    stage: str
    metric: str
    scope: str
    unit: str
    sku: str
    gpus: int | None
    workload: str
    revision: int
    setup: tuple[str, ...]

    @classmethod
    def of(cls, figure: Document) -> "BaselineKey":
        setup = tuple(text for path, text in sorted(figure["setup"].items()) if path != TORCH)
        shared = {name: figure[name] for name in cls._fields if name in figure}
        return cls(**{"revision": 1, **shared, "setup": setup})

    def __str__(self) -> str:
        kind = (self.sku, self.gpus or "", self.revision if self.revision > 1 else "", *self.setup)
        return f"{self.stage} {self.metric} per {self.scope} ({' '.join(str(word) for word in kind if word)})"


def diff(earlier: Baseline, later: Baseline) -> list[FigureChange]:
    """Changes between two baselines, new and gone figures first; changes below MIN_CHANGE are left out. The error of a
    median follows from the number of nodes, since the parts of a node are not independent."""
    changes = compare({"": _figures(earlier)}, {"": _figures(later)})
    moved = [fig for fig in changes if fig.change is None or abs(fig.change) >= MIN_CHANGE]
    return sorted(moved, key=lambda fig: (fig.change is not None, not fig.is_clear, str(fig.key), repr(fig.key)))


def _figures(baseline: Baseline) -> dict[BaselineKey, ReportFigure]:
    """A baseline's figures by key; of those that differ in torch only, the one from the most nodes."""
    ordered = sorted(baseline.document["figures"], key=lambda fig: (fig["nodes"], sorted(fig["setup"].items())))
    return {
        BaselineKey.of(figure): ReportFigure(
            figure["median"], figure["unit"], error=MEDIAN_ERROR * figure["deviation"] / math.sqrt(figure["nodes"])
        )
        for figure in ordered
    }


def lines(changes: Sequence[FigureChange]) -> list[str]:
    """A line of text for each change; it says so if the change is within the noise."""
    return [line_of(change) for change in changes] or ["nothing moved by 0.5 %"]


def line_of(change: FigureChange) -> str:
    then, now = (None if value is None else units.human(value, change.unit) for value in (change.then, change.now))
    if change.change is None:
        return f"{'new' if then is None else 'gone'}: {change.key} ({now or then})"
    moved = f"{'rose' if change.change > 0 else 'fell'} by {units.number_text(abs(change.change) * 100)} %"
    return f"{change.key} {moved}: {then} to {now}" + ("" if change.is_clear else " (within their noise)")


def repeatability(document: Document) -> list[str]:
    """A line for each figure of a baseline: median, and spread between nodes, parts of a node and repeats."""
    lines = []
    for figure in document["figures"]:
        spreads = ", ".join(
            f"{what} {units.number_text(figure[key] * 100)} %"
            for key, what in _SPREADS.items()
            if figure[key] is not None
        )
        far = f"; {figure['far_off']} far off and left out" if figure["far_off"] else ""
        lines.append(
            f"{BaselineKey.of(figure)} {units.human(figure['median'], figure['unit'])}, {figure['parts']} parts of "
            f"{figure['nodes']} nodes; {'spread of ' + spreads if spreads else 'too few for a spread'}{far}"
        )
    return lines
