"""The one comparison of figures: of a run with an earlier one, of a run with its baseline, of two baselines. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .analysis.distribution import relative

#: A change is clear beyond so many standard errors.
CLEAR_ERRORS = 3.0


class ReportFigure(NamedTuple):
    """A figure; only those of one unit and revision are compared. ``error``: its standard error, in its unit."""

    value: float
    unit: str
    revision: int = 1
    error: float = 0.0


#: By name of a node its figures by what they are.
Figures = Mapping[str, Mapping[Any, ReportFigure]]


@dataclass(frozen=True)
class FigureChange:
    """One figure of a node, or the medians of ``nodes`` nodes; None where only one side has it."""

    node: str
    key: Any
    unit: str
    then: float | None
    now: float | None
    error: float = 0.0
    nodes: int = 1

    @property
    def change(self) -> float | None:
        """Relative; None where one side has no figure, or it was 0."""
        return None if self.now is None or self.then is None else relative(self.now, self.then)

    @property
    def is_clear(self) -> bool:
        """Whether it is more than the noise of both."""
        return self.now is None or self.then is None or abs(self.now - self.then) > CLEAR_ERRORS * self.error


def compare(before: Figures, after: Figures) -> Iterator[FigureChange]:
    """By node and figure what changed; figures of another unit or revision are left out."""
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
    """For each figure the medians over the nodes that have it on both sides."""
    of_keys: dict[Any, list[tuple[str, float, float]]] = {}
    for change in changes:
        if change.then is not None and change.now is not None:
            of_keys.setdefault(change.key, []).append((change.unit, change.then, change.now))
    return [
        FigureChange("", key, units[0], statistics.median(then), statistics.median(now), nodes=len(now))
        for key, (units, then, now) in ((key, tuple(zip(*pairs, strict=True))) for key, pairs in of_keys.items())
    ]
