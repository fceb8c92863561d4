"""What a part of the diagnostics hands over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..common.laps import REVISION, LapSummary, median_of


@dataclass(frozen=True)
class RankFigure:
    """One metric of one rank; ``scope`` None is the rank's own part, ``revision`` that of its definition."""

    name: str
    value: float | None
    unit: str
    scope: str | None = None
    revision: int = 1


@dataclass
class RankFigures:
    """What one rank found: figures, curves over message sizes, notes on what was left out and why."""

    figures: list[RankFigure] = field(default_factory=list)
    curves: list[tuple[str, str, Sequence[float], list[float]]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    #: Of the host's memory; for people: which node is slow.
    by_numa_node: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: float | None, unit: str, scope: str | None = None, revision: int = 1) -> None:
        self.figures.append(RankFigure(name, value, unit, scope, revision))

    def speed(
        self, name: str, amount: float, laps: LapSummary, unit: str, suffix: str, scope: str | None = None
    ) -> None:
        """Add ``amount`` per second of all laps as ``<name>_<suffix>``, and what stands beside it: the speed of the
        median lap, and ratios. What so few laps do not show is left out."""
        figure = f"{name}_{suffix}"
        self.add(figure, amount / laps.seconds, unit, scope, REVISION)
        self.add(median_of(figure), amount / laps.median_seconds, unit, scope)
        for ratio in ("spread", "lost", "slowest_hundredth", "busy", "uncertainty"):
            value = getattr(laps, f"{ratio}_ratio")
            if value is not None:
                self.add(f"{name}_{ratio}_ratio", value, "ratio", scope)

    def take(self, other: RankFigures) -> None:
        self.figures += other.figures
        self.curves += other.curves
        self.left_out.update(other.left_out)
        self.by_numa_node.update(other.by_numa_node)
