"""What a part of the diagnostics hands over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

#: The median absolute deviation of a normal distribution is its standard deviation divided by this.
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True)
class Timing:
    """Repeats of one piece of work: the seconds of each."""

    laps: Sequence[float]

    @property
    def seconds(self) -> float:
        """The median."""
        return median(self.laps)

    @property
    def spread_ratio(self) -> float:
        """The robust coefficient of variation: scaled median absolute deviation over the median."""
        middle = self.seconds
        return _MAD_TO_SIGMA * median([abs(lap - middle) for lap in self.laps]) / middle if middle else 0.0

    @property
    def sustained_ratio(self) -> float:
        """The speed of the last third over that of the first: under 1 where it falls as processors grow hot."""
        third = max(1, len(self.laps) // 3)
        return median(self.laps[:third]) / median(self.laps[-third:])

    @property
    def error_ratio(self) -> float:
        """How well the median itself is known: its standard error, relative (1.25 sigma / sqrt(n) for a normal one)."""
        return 1.2533 * self.spread_ratio / len(self.laps) ** 0.5


@dataclass(frozen=True)
class Figure:
    """One metric of one rank; ``scope`` None is the rank's own part."""

    name: str
    value: float | None
    unit: str
    scope: str | None = None


@dataclass
class Findings:
    """What one rank found: figures, curves over message sizes, notes on what was left out and why."""

    figures: list[Figure] = field(default_factory=list)
    curves: list[tuple[str, str, Sequence[float], list[float]]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    #: Of the host's memory; for people: which node is slow.
    by_numa_node: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: float | None, unit: str, scope: str | None = None) -> None:
        self.figures.append(Figure(name, value, unit, scope))

    def rate(self, name: str, amount: float, timing: Timing, unit: str, suffix: str) -> None:
        """Add ``amount`` per second, and its spread, as ``<name>_<suffix>`` and ``<name>_spread_ratio``."""
        self.add(f"{name}_{suffix}", amount / timing.seconds, unit)
        self.add(f"{name}_spread_ratio", timing.spread_ratio, "ratio")

    def take(self, other: Findings) -> None:
        self.figures += other.figures
        self.curves += other.curves
        self.left_out.update(other.left_out)
        self.by_numa_node.update(other.by_numa_node)
