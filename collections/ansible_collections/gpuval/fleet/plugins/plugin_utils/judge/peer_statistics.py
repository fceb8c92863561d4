"""One part beside its peers: how far it is from their median, and whether that exceeds their own noise."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

#: Of two that differ either may be wrong.
MIN_PARTS = 3
#: Of a normal distribution the median absolute deviation, times this, is the standard one (Rousseeuw, Croux 1993).
MAD_TO_DEVIATION = 1.4826
#: The spread of few nodes is uncertain: of n nodes, 1 + this/n times as many deviations are needed. From a simulation:
#: of 8 to 40 healthy nodes at most about 1 in 1,000 fails, also where nodes differ as Student's t with 3 degrees.
FEW_NODES = 24
#: The same for parts beside those of their own node, of which there are many.
FEW_NODES_OF_PARTS = 8
#: The same for the parts of a single node, of n parts.
FEW_PARTS = 8
#: The same for a warning, which needs this share of the deviations.
FEW_NODES_TO_WARN, SHARE_TO_WARN = 4, 0.8
#: The standard error of a median of n normal values is this times their deviation, over the root of n.
MEDIAN_ERROR = 1.2533
#: Below this number of nodes the same holds for leaving a value out of the centre and the spread.
FEW_TO_LEAVE_OUT = 24
#: A part that is this many borrowed deviations off is no chance, in a single node too: 1 of 100,000 of normal noise.
KNOWN = 4.265
#: Of how many measurements a spread is whose count is not known: with fewer it would be of no use.
FEWEST_MEASUREMENTS = 4


def widened(deviations: float, nodes: int, few: float = FEW_NODES) -> float:
    """How many deviations of so many nodes count as ``deviations`` of a great many."""
    return deviations * (1 + few / nodes)


def borrowed_deviation(value: float, count: int | None = None, between_sites: float | None = None) -> float:
    """The relative deviation of a spread that other machines showed, as that of normal noise which reaches as far.

    ``count``: of how many nodes, or passes of one; each has one degree of freedom of Student's t at least (Wallace
    1959). ``between_sites``: how much sites differ, as much as parts where it is not known.
    """
    freedom = count or FEWEST_MEASUREMENTS
    reach = (KNOWN * (8 * freedom + 3) / (8 * freedom + 1)) ** 2
    of_student = math.sqrt(freedom * math.expm1(reach / freedom)) / KNOWN
    return of_student * math.hypot(value, value if between_sites is None else between_sites)


@dataclass(frozen=True)
class Peers:
    """The figures of all parts; ``deviation`` is their scaled median absolute deviation, in the unit of the figures."""

    median: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float], *, floor_ratio: float = 0.0) -> Peers | None:
        """None where there are too few, or where their median is 0 and so nothing is relative to it.

        ``floor_ratio`` is the least deviation, relative to the median: parts that agree by chance know no better than
        their repeats do.
        """
        if len(values) < MIN_PARTS:
            return None
        median = statistics.median(values)
        if median == 0:
            return None
        deviation = MAD_TO_DEVIATION * statistics.median([abs(value - median) for value in values])
        return cls(median, max(deviation, floor_ratio * abs(median)), len(values))

    @classmethod
    def without_the_far(
        cls, values: Sequence[float], margin: float, deviations: float, *, floor_ratio: float = 0.0
    ) -> Peers | None:
        """The median and deviation without outliers: a third that is bad moves a median and widens the spread.

        Values further off than both ``margin`` and ``deviations`` are left out, again and again, until no more are far
        off, or half of the values were.
        """
        group = cls.of(values, floor_ratio=floor_ratio)
        near_before: Sequence[float] = values
        while group is not None:
            near = [value for value in values if not group.is_outlier(value, margin, margin, deviations)]
            if len(near) == len(near_before) or 2 * len(near) <= len(values):
                break
            closer = cls.of(near, floor_ratio=floor_ratio)
            if closer is None:
                break
            still = sum(not closer.is_outlier(value, margin, margin, deviations) for value in values)
            if 2 * still <= len(values) or len(near) > len(near_before):
                break
            near_before, group = near, closer
        return group

    def change(self, value: float) -> float:
        """Relative to the median: -0.05 is 5 % under it."""
        return (value - self.median) / abs(self.median)

    def is_outlier(self, value: float, max_below: float | None, max_above: float | None, deviations: float) -> bool:
        """Whether the part is too far off, and by more than ``deviations`` of its peers' own."""
        return self.is_beyond(value, max_below, max_above, deviations * self.deviation)

    def is_beyond(self, value: float, max_below: float | None, max_above: float | None, distance: float) -> bool:
        """Whether the part is too far off, and by more than ``distance``, in the unit of the figures."""
        if abs(value - self.median) <= distance:
            return False
        change = self.change(value)
        return (max_below is not None and change < -max_below) or (max_above is not None and change > max_above)

    def badness(self, value: float, max_below: float | None, max_above: float | None) -> float:
        """Orders parts that pass: the greatest is the nearest to failing."""
        change = self.change(value)
        sides = ((max_below, -change), (max_above, change))
        return max(off / most for most, off in sides if most is not None)


def majority(values: Sequence[str]) -> str | None:
    """The value of more than half."""
    if not values:
        return None
    value, count = Counter(values).most_common(1)[0]
    return value if 2 * count > len(values) else None
