"""Statistics on ranks, which no outlier moves: Mann-Whitney, Spearman, and correction for many comparisons. Pure."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence

#: Up to so many values in the smaller group, and steps of the statistic, the distribution is counted, not approximated.
_EXACT_GROUP, _EXACT_STEPS = 20, 10_000


def midranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    begin = 0
    for _, tied in itertools.groupby(order, key=values.__getitem__):
        places = list(tied)
        rank = begin + (len(places) + 1) / 2
        for index in places:
            ranks[index] = rank
        begin += len(places)
    return ranks


def mann_whitney(rank_sum: float, count: int, total: int) -> float:
    """Two-sided p of ``count`` of ``total`` values having ranks (midranks) of this sum, if all came from one source.

    Ties make it larger than it need be, never smaller.
    """
    rest = total - count
    statistic = rank_sum - count * (count + 1) / 2
    low = math.ceil(min(statistic, count * rest - statistic))  # of a half, which ties make, the one nearer the middle
    middle = count * rest / 2
    if low >= middle:
        return 1.0
    few = min(count, rest)
    if few <= _EXACT_GROUP and count * rest <= _EXACT_STEPS:
        return min(1.0, 2 * _cumulated(few, total)[low] / math.comb(total, few))
    deviation = math.sqrt(count * rest * (total + 1) / 12)
    return min(1.0, math.erfc((middle - low - 0.5) / deviation / math.sqrt(2)))


def least_p(count: int, total: int) -> float:
    """The p of a group that lies beyond all others: less is not possible."""
    return min(1.0, 2 / math.comb(total, count))


@functools.lru_cache(maxsize=128)
def _cumulated(few: int, total: int) -> list[int]:
    """How many choices of ``few`` of ``total`` ranks have a statistic of at most 0, 1, 2 and so on, to its middle.

    The counts are the coefficients of a Gaussian binomial.
    """
    steps = few * (total - few) // 2 + 1
    counts = [1] + [0] * (steps - 1)
    for index in range(1, few + 1):
        up, down = total - few + index, index
        for spot in range(steps - 1, up - 1, -1):
            counts[spot] -= counts[spot - up]
        for spot in range(down, steps):
            counts[spot] += counts[spot - down]
    return list(itertools.accumulate(counts))


def centred(values: Sequence[float]) -> list[float] | None:
    """Midranks about 0, of length 1, so that a product of two is Spearman's rho; None where all values are equal."""
    ranks = midranks(values)
    middle = (len(values) + 1) / 2
    moved = [rank - middle for rank in ranks]
    length = math.sqrt(sum(map(operator.mul, moved, moved)))
    return [one / length for one in moved] if length else None


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Rho of two that ``centred`` made."""
    product: float = sum(map(operator.mul, left, right))
    return max(-1.0, min(1.0, product))


def spearman_p(rho: float, count: int) -> float:
    """Two-sided p of this rho of ``count`` independent pairs (at least 4), by Fisher's transformation."""
    if abs(rho) >= 1:
        return 0.0
    return math.erfc(abs(math.atanh(rho)) * math.sqrt((count - 3) / 1.06) / math.sqrt(2))


def benjamini_hochberg(probabilities: Sequence[float]) -> list[float]:
    """For each p its q: the share of false ones to be expected among all that are as probable or less."""
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__, reverse=True)
    q_values = [0.0] * len(probabilities)
    least = 1.0
    for passed, index in enumerate(order):
        least = min(least, probabilities[index] * len(probabilities) / (len(probabilities) - passed))
        q_values[index] = least
    return q_values
