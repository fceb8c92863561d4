"""Speed of repeated work ("laps"): total work over total time, median and other statistics; samples and curves of
bounded size. Revision 2 of the definition of a speed; revision 1 was the median of the laps, now a separate figure."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import fmean, median, stdev
from typing import Any, NamedTuple, Optional

REVISION = 2
MOST_LAPS = 20_000
"""Maximum number of laps kept; of more laps, every k-th. Number, total time and times of blocks are of all laps."""
BLOCKS = 1024
LEAST_FOR_SLOWEST = 300
"""Minimum number of laps for a figure of the slowest hundredth."""
LEAST_BATCHES, CORRELATION_TIMES = 20, 5
"""The uncertainty of a speed needs so many batches of laps, each as long as so many correlation times."""
NORMAL_QUANTILE = 1.96
_MAD_TO_SIGMA = 1.4826
_END_POINTS = 20
_UNIT = re.compile(r"_(?:tflops|seconds|ratio|[a-z]+_per_second)$")


def median_of(name: str) -> str:
    """Return the name of the median of a speed's laps: limits set for its revision 1 are checked against it."""
    unit = _UNIT.search(name)
    return f"{name[: unit.start()]}_median{unit[0]}" if unit else f"{name}_median"


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile with linear interpolation between the closest ranks (numpy's default method). Raises
    ``ValueError`` for an empty sample or a percent outside 0..100."""
    if not values:
        raise ValueError("percentile of an empty sample")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent {percent} is outside 0..100")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


class ThinnedSample:
    """Keeps every k-th of any number of values: k is 1, and doubles when more than ``most`` (even) would be kept."""

    def __init__(self, most: int) -> None:
        self.kept: list[Any] = []
        self.count = 0
        self._most = most
        self._stride = 1

    def extend(self, values: Iterable[Any]) -> None:
        for value in values:
            if self.count % self._stride == 0:
                if len(self.kept) == self._most:
                    del self.kept[1::2]
                    self._stride *= 2
                self.kept.append(value)
            self.count += 1


class StepCurve:
    """The values of steps 1, 2, 3 ...: the first, the latest, and the means of equal stretches of steps, of one step
    each until there would be more than ``points`` (even), then of twice as many. ``at``: values of ``kept_steps``."""

    def __init__(self, points: int, kept_steps: Sequence[int] = ()) -> None:
        self.at: dict[int, float] = {}
        self._kept = frozenset(kept_steps)
        self._points = points
        self._stretch = 1
        self._sums: list[float] = []  # sum of each stretch; the last may be incomplete
        self._latest: deque[float] = deque(maxlen=_END_POINTS)
        self._first = math.nan
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, values: Iterable[float]) -> None:
        for value in values:
            if not self._count:
                self._first = value
            if self._count % self._stretch == 0:
                if len(self._sums) == self._points:
                    self._sums = [a + b for a, b in zip(self._sums[::2], self._sums[1::2])]
                    self._stretch *= 2
                self._sums.append(0.0)
            self._sums[-1] += value
            self._latest.append(value)
            self._count += 1
            if self._count in self._kept:
                self.at[self._count] = value

    def whole_stretches(self) -> list[float]:
        """Return the mean of each complete stretch of steps."""
        return [total / self._stretch for total in self._sums[: self._count // self._stretch]]

    @property
    def last(self) -> float:
        return self._latest[-1]

    def thinned(self) -> tuple[list[int], list[float]]:
        """Return the last step of each stretch of steps, and the mean of each stretch."""
        ends = [min(self._count, number * self._stretch) for number in range(1, len(self._sums) + 1)]
        return ends, [total / (end - start) for total, start, end in zip(self._sums, [0, *ends], ends)]

    def first_and_last(self) -> tuple[float, float]:
        """Return the first value of a training curve, that of the untrained model, and the mean of its noisy end: a
        tenth of the points, at least 3, at most 20 and half the curve. (A mean of several first ones would hide most of
        the fall: a large model learns tokens' frequencies within five steps.) Raises ``ValueError`` for an empty
        curve."""
        if not self._count:
            raise ValueError("first and last of an empty curve")
        count = max(1, min(max(3, self._count // 10), _END_POINTS, self._count // 2))
        return self._first, sum(list(self._latest)[-count:]) / count


class LapSummary(NamedTuple):
    """Seconds of a lap, and ratios; None for a figure that needs more laps. ``seconds``: mean of all laps.
    ``slowest_hundredth_ratio``: speed of the slowest hundredth over that of the median lap. ``lost_ratio``: share of
    the time beyond what the laps take at the pace of the fastest tenth. ``busy_ratio``: the laps' share of the time
    from first to last. ``uncertainty_ratio``: relative standard error of the mean, widened by Student's t for few
    batches."""

    seconds: float
    median_seconds: float
    spread_ratio: float
    lost_ratio: float
    slowest_hundredth_ratio: Optional[float]
    busy_ratio: Optional[float]
    uncertainty_ratio: Optional[float]

    @classmethod
    def mean(cls, summaries: Iterable[Sequence[Any]]) -> LapSummary:
        """Return the mean of several ranks' summaries."""
        means: list[Any] = [None if None in values else fmean(values) for values in zip(*summaries)]
        return cls(*means)


class LapStatistics:
    """Collects the seconds of any number of laps: exact sums, and a sample of bounded size. ``wall_seconds``: time from
    the first lap to the last, if known."""

    def __init__(self, laps: Iterable[float] = (), wall_seconds: Optional[float] = None) -> None:
        self.seconds = 0.0
        self.wall_seconds = wall_seconds
        self._sample = ThinnedSample(MOST_LAPS)
        self._blocks = StepCurve(BLOCKS)
        self.extend(laps)

    def extend(self, laps: Iterable[float]) -> None:
        laps = list(laps)
        self.seconds += math.fsum(laps)
        self._sample.extend(laps)
        self._blocks.extend(laps)

    @property
    def count(self) -> int:
        return self._sample.count

    @property
    def sustained_ratio(self) -> float:
        """Return the speed of the last third of the laps over that of the first: hot processors slow down."""
        laps = self._sample.kept
        third = max(1, len(laps) // 3)
        return median(laps[:third]) / median(laps[-third:])

    def summary(self) -> LapSummary:
        laps = sorted(self._sample.kept)
        middle = median(laps)
        mean = self.seconds / self.count
        slowest = laps[-(len(laps) // 100) :] if self.count >= LEAST_FOR_SLOWEST else ()
        return LapSummary(
            seconds=mean,
            median_seconds=middle,
            spread_ratio=_MAD_TO_SIGMA * median([abs(lap - middle) for lap in laps]) / middle if middle else 0.0,
            lost_ratio=max(0.0, 1 - percentile(laps, 10) / mean) if mean else 0.0,  # else negative with few fast laps
            slowest_hundredth_ratio=middle / fmean(slowest) if slowest else None,
            busy_ratio=self.seconds / self.wall_seconds if self.wall_seconds else None,
            uncertainty_ratio=uncertainty(self._blocks.whole_stretches()),
        )


def uncertainty(blocks: Sequence[float]) -> Optional[float]:
    """Return the relative standard error of the mean of successive values, by the method of batch means; None for fewer
    values than 20 batches of five correlation times each."""
    size = math.ceil(CORRELATION_TIMES * correlation_time(blocks)) if len(blocks) >= 2 else 1
    count = len(blocks) // size
    if count < LEAST_BATCHES:
        return None
    batches = [fmean(blocks[number * size : (number + 1) * size]) for number in range(count)]
    mean = fmean(batches)
    # Ratio of Student's t to the normal quantile, at 95 % (Cornish-Fisher expansion, exact to 0.1 % from 19 on).
    z, freedom = NORMAL_QUANTILE, count - 1
    wider = 1 + (z**2 + 1) / (4 * freedom) + (5 * z**4 + 16 * z**2 + 3) / (96 * freedom**2)
    return wider * stdev(batches) / math.sqrt(count) / mean if mean else None


def correlation_time(values: Sequence[float]) -> float:
    """Return the correlation time in number of values, 1 for independent values (Sokal 1989)."""
    mean = fmean(values)
    deviations = [value - mean for value in values]
    variance = math.fsum(deviation * deviation for deviation in deviations)
    time = 1.0
    for lag in range(1, len(values) // CORRELATION_TIMES if variance else 0):
        time += 2 * math.fsum(a * b for a, b in zip(deviations, deviations[lag:])) / variance
        if lag >= CORRELATION_TIMES * time:
            break
    return max(1.0, time)
