"""Percentiles, and samples and curves of bounded size, without dependencies."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

_END_POINTS = 20


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile with linear interpolation between the closest ranks (numpy's default method).

    Raises ``ValueError`` for an empty sample or a percent outside 0..100.
    """
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
    """Every k-th of any number of values: k is 1, and doubles whenever there would be more than ``most`` (even)."""

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
    """The values of steps 1, 2, 3 ..., however many: the first, the latest, and the means of equal stretches.

    A stretch is one step, and twice as long whenever there would be more than ``points`` (even) of them. ``at`` has the
    values of the steps in ``kept`` that came by.
    """

    def __init__(self, points: int, kept_steps: Sequence[int] = ()) -> None:
        self.at: dict[int, float] = {}
        self._kept = frozenset(kept_steps)
        self._points = points
        self._stretch = 1
        self._sums: list[float] = []  # of each stretch, the last one perhaps of a part of it
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
        """Return the mean of each stretch that is complete."""
        return [total / self._stretch for total in self._sums[: self._count // self._stretch]]

    @property
    def last(self) -> float:
        """The latest value."""
        return self._latest[-1]

    def thinned(self) -> tuple[list[int], list[float]]:
        """Return the mean of each stretch, at the number of its last step."""
        ends = [min(self._count, number * self._stretch) for number in range(1, len(self._sums) + 1)]
        return ends, [total / (end - start) for total, start, end in zip(self._sums, [0, *ends], ends)]

    def first_and_last(self) -> tuple[float, float]:
        """Return where a training curve begins, and the mean of its noisy end.

        The beginning is its first point: the untrained model. A mean of several would hide most of the fall of a large
        one, which learns the frequencies of tokens within five steps and then stands still for fifty. The end is a
        tenth of the points, at least 3, at most 20, and never more than half of the curve. Raises ``ValueError`` for an
        empty curve.
        """
        if not self._count:
            raise ValueError("first and last of an empty curve")
        count = max(1, min(max(3, self._count // 10), _END_POINTS, self._count // 2))
        return self._first, sum(list(self._latest)[-count:]) / count
