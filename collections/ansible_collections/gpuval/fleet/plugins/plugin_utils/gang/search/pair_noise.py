"""Statistics of the search: figures as logarithms relative to good pairs (-0.1 is 9.5 % slower than usual, HARD a
failure without a figure), and the noise of one measurement."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ...core.escape import one_line
from .search_limits import TUNING

#: States that noise cannot explain: the work did not end with a right result.
FAILED = frozenset({"wrong", "timeout", "crash"})
HARD = -9.0
MESSAGE_CHARACTERS = 300


@dataclass(frozen=True)
class GroupResult:
    """The outcome of one group: ok, slow (by the run's own judgement), wrong, timeout, crash, missing (no answer)."""

    state: str
    bus_bytes_per_second: Optional[float] = None
    latency_seconds: Optional[float] = None
    message: str = ""

    def cleaned(self) -> "GroupResult":
        """The group's result without impossible values, which a node may have sent."""
        bus, latency = _positive_figure(self.bus_bytes_per_second), _positive_figure(self.latency_seconds)
        return GroupResult(self.state, bus, latency, one_line(self.message, MESSAGE_CHARACTERS))


def _positive_figure(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        return None
    return float(value)


def middle(values: Sequence[float]) -> float:
    """The centre of a node's results, one for each partner; of two the better, as one partner may be the bad node."""
    return max(values) if len(values) == 2 else statistics.median(values)


def deviation(residuals: Sequence[float], expected: float, means: int = 1) -> float:
    """The noise of one measurement (robust standard deviation), from residuals around this number of means; all but the
    farthest count. It is at least the expected noise, since few residuals show too little."""
    count, prior = len(residuals), TUNING.prior
    freedom = count - means
    if freedom < 1:
        return expected
    squares = sorted(value**2 for value in residuals)
    if count >= prior:  # restores the share of the farthest one in normal noise
        squares = [sum(squares[:-1]) / (1 - (2 * math.log(count) - 1) / count)]
    variance = sum(squares) / freedom
    if freedom < prior:
        variance = ((prior - freedom) * expected**2 + freedom * variance) / prior
    above = [value**2 for value in residuals if value > 0]  # an explanation may have removed low ones
    if len(above) >= prior**2:
        variance = max(variance, statistics.fmean(above))
    return max(expected, math.sqrt(variance))


@dataclass(frozen=True)
class PairNoise:
    """Relative noise of one measurement: `sigma`; `known`: number of residuals behind it; `expected` before."""

    sigma: float
    known: int
    expected: float

    def bar(self, score: float) -> float:
        """The score to exceed instead of ``score``: higher if few measurements show the noise: the quantile of
        Student's distribution by its series (Abramowitz and Stegun, 26.7.5). Where few measurements are far noisier
        than expected, the noise may be higher yet."""
        freedom, z = self.known + TUNING.prior / 4, score
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)

    def score(self, values: Sequence[float], pair_count: int) -> float:
        """Standard deviations between the mean of the values and that of `pair_count` good pairs."""
        return statistics.fmean(values) / self.error(len(values), pair_count)

    def error(self, count: int, pair_count: int) -> float:
        """Standard deviation of the difference between a mean of `count` and one of `pair_count` measurements."""
        return self.sigma * math.sqrt(1 / count + 1 / max(1, pair_count))


def percent(value: float) -> str:
    """A relative value as text: `-0.105` is `10.0 % slower`."""
    return f"{100 * (1 - math.exp(value)):.3g} % slower"
