"""Order statistics of small samples, without dependencies."""

from __future__ import annotations

import math
from collections.abc import Sequence


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


def median(values: Sequence[float]) -> float:
    """Return the middle value. Raises ``ValueError`` for an empty sample."""
    return percentile(values, 50)


def first_and_last(values: Sequence[float]) -> tuple[float, float]:
    """Return where a training curve begins, and the mean of its noisy end.

    The beginning is its first point: the untrained model. A mean of several would hide most of the fall of a large one,
    which learns the frequencies of tokens within five steps and then stands still for fifty. The end is a tenth of the
    points, at least 3, at most 20, and never more than half of the curve. Raises ``ValueError`` for an empty curve.
    """
    if not values:
        raise ValueError("first and last of an empty curve")
    count = max(1, min(max(3, len(values) // 10), 20, len(values) // 2))
    return values[0], sum(values[-count:]) / count


def thinned(x: Sequence[int], y: Sequence[float], points: int) -> tuple[list[int], list[float]]:
    """Return the curve with at most ``points`` points: means of equal stretches, at the x of each stretch's end."""
    if len(x) <= points:
        return list(x), list(y)
    stretch = math.ceil(len(x) / points)
    starts = range(0, len(x), stretch)
    return (
        [x[min(start + stretch, len(x)) - 1] for start in starts],
        [sum(part) / len(part) for part in (y[start : start + stretch] for start in starts)],
    )
