"""Whether a figure drifts from run to run, beyond its scatter. Pure.

The slope is the Theil-Sen estimate, the median of the slopes of all pairs of runs, which is robust against one outlier.
Its standard error comes from the scatter around that line, or from that of sister parts (the same figure of other
parts) if it is larger: four points may be in line by chance, but not when hundreds of sisters are not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MIN_RUNS = 4
#: Relative to the figure's median, from the first run to the last: a smaller drift is irrelevant in practice.
MIN_TOTAL = 0.02
#: Max share of series of flat noise that count as drift.
FALSE_ALARMS = 0.005
CONFIDENCE = 1 - FALSE_ALARMS
_NORMAL = statistics.NormalDist().inv_cdf(1 - FALSE_ALARMS / 2)
#: Student's t at 1 - FALSE_ALARMS / 2, by degrees of freedom, where the expansion in 1/n is not near enough.
_STUDENT = {2: 14.089, 3: 7.4533, 4: 5.5976, 5: 4.7733, 6: 4.3168, 7: 4.0293, 8: 3.8325, 9: 3.6897, 10: 3.5814}


@dataclass(frozen=True)
class Trend:
    """A slope, relative to the median of the figures: 0.01 is 1 % per run. ``total_ratio`` is what it comes to from the
    first run to the last, ``low_ratio`` and ``high_ratio`` hold it with CONFIDENCE; ``scatter_ratio`` is the standard
    deviation around the line."""

    median: float
    per_run_ratio: float
    total_ratio: float
    low_ratio: float
    high_ratio: float
    scatter_ratio: float

    @property
    def drifts(self) -> bool:
        return abs(self.total_ratio) > MIN_TOTAL and (self.low_ratio > 0 or self.high_ratio < 0)


def trend_of(values: Sequence[float], *, floor: float = 0.0) -> Trend | None:
    """The trend of the figures of runs in their order; None below four runs, or if the median is 0. ``floor`` is the
    min scatter to assume, relative to the median."""
    count = len(values)
    if count < MIN_RUNS:
        return None
    median = statistics.median(values)
    if median == 0 or not math.isfinite(median):
        return None
    relative = [value / abs(median) for value in values]
    slope = statistics.median(
        (relative[later] - relative[earlier]) / (later - earlier) for later in range(count) for earlier in range(later)
    )
    offsets = [value - slope * run for run, value in enumerate(relative)]
    start = statistics.median(offsets)
    freedom = count - 2
    deviation = math.sqrt(math.fsum((offset - start) ** 2 for offset in offsets) / freedom)
    scatter = max(deviation, floor)
    spread = count * (count * count - 1) / 12  # the sum of squares of 0, 1, ... around their mean
    margin = student(freedom) * scatter / math.sqrt(spread) * (count - 1)
    total = slope * (count - 1)
    return Trend(median, slope, total, total - margin, total + margin, deviation)


def student(freedom: int) -> float:
    """The quantile of Student's t at 1 - FALSE_ALARMS / 2; ``freedom`` is 2 or more."""
    if freedom in _STUDENT:
        return _STUDENT[freedom]
    z = _NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
