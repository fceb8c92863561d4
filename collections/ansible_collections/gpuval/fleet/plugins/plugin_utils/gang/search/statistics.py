"""One result beside the others: figures as logarithms relative to where the good pairs lie.

A figure of -0.1 is about 10 % slower than usual. What ended without a figure is HARD.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import one_line
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.peer_statistics import MAD_TO_DEVIATION

STATES = ("ok", "slow", "wrong", "timeout", "crash", "missing")
#: What no noise explains: the work ended otherwise than with a right result.
FAILED = frozenset({"wrong", "timeout", "crash"})
HARD = -9.0
MESSAGE_CHARACTERS = 300
#: The noise that is expected weighs as much as so many measurements, and a quarter of it when a node is judged.
PRIOR = 8
#: Noise is more than expected from so many times on; so many measurements take half of the doubt away that this casts.
NOISY, DOUBT = 1.1, 24
#: From so many residuals on their median tells the noise; of fewer one in so many is the farthest, and left out.
MANY = 200


@dataclass(frozen=True)
class Result:
    """What became of one group: `slow` is what the run itself calls slow; `missing` is no answer at all.

    `culprits`: nodes that the run itself holds for guilty, such as that of the rank that hung. They are looked at
    first, and that is all: what a node tells is no proof.
    """

    state: str
    bus_bytes_per_second: Optional[float] = None
    latency_seconds: Optional[float] = None
    message: str = ""
    culprits: tuple[str, ...] = ()

    @classmethod
    def take_in(cls, given: Any, nodes: Sequence[str]) -> Result:
        """A result of the group of `nodes`, freed of what cannot be: it comes from nodes. Raises ValueError."""
        if isinstance(given, Result):
            given = vars(given)
        state = given.get("state")
        if state not in STATES:
            raise ValueError(f"{one_line(str(state), 40)}: a result is one of {', '.join(STATES)}")
        figures = [_figure(given.get(name)) for name in ("bus_bytes_per_second", "latency_seconds")]
        culprits = given.get("culprits")
        told = [name for name in nodes if isinstance(culprits, (list, tuple)) and name in culprits]
        message = one_line(str(given.get("message") or ""), MESSAGE_CHARACTERS)
        return cls(state, *figures, message, tuple(told))


def _figure(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        return None
    return float(value)


def middle(values: Sequence[float]) -> float:
    """Where a node's results lie, one for each partner: of two the better, since one partner may be the bad one."""
    return max(values) if len(values) == 2 else statistics.median(values)


def deviation(residuals: Sequence[float], expected: float, means: int = 1) -> float:
    """The noise of one measurement, from residuals about so many means: what is seen, robustly.

    A median of few is itself chance, mostly too low: of fewer than MANY all but the farthest count, and noise is never
    taken to be less than what is expected.
    """
    count = len(residuals)
    if count >= MANY:
        above = [value for value in residuals if value > 0] or [0.0]  # slow ones may have been taken out
        middles = (statistics.median(map(abs, residuals)), statistics.median(above))
        seen = MAD_TO_DEVIATION * max(middles)
        return math.sqrt((PRIOR * expected**2 + count * seen**2) / (PRIOR + count))
    known = count - means
    if known < 1:
        return expected
    squares = sorted(value**2 for value in residuals)
    if count >= PRIOR:  # what the farthest of so many has in normal noise is put back
        squares = [sum(squares[:-1]) / (1 - (2 * math.log(count) - 1) / count)]
    seen = sum(squares) / known
    whole = seen if known >= PRIOR else ((PRIOR - known) * expected**2 + known * seen) / PRIOR
    return max(expected, math.sqrt(whole))


@dataclass(frozen=True)
class Noise:
    """Of one measurement: `sigma`, relative; how many residuals it is `known` by; and what was `expected`."""

    sigma: float
    known: int
    expected: float

    def bar(self, deviations: float) -> float:
        """As many deviations as are asked for, and more where the noise is known from few measurements only.

        The quantile of Student's distribution, by its series (Abramowitz and Stegun, 26.7.5). What is expected counts
        as some measurements. Where few are far noisier than expected, it may be more yet.
        """
        more = max(1.0, self.sigma / (NOISY * self.expected)) ** (DOUBT / (self.known + DOUBT))
        known, z = self.known + PRIOR / 4, deviations
        return (z + (z**3 + z) / (4 * known) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * known**2)) * more

    def score(self, values: Sequence[float], among: int) -> float:
        """How many deviations the mean lies off that of `among` good pairs: these are noisy, too."""
        return statistics.fmean(values) / self.error(len(values), among)

    def error(self, count: int, among: int) -> float:
        """Of the difference of two means, of so many measurements."""
        return self.sigma * math.sqrt(1 / count + 1 / max(1, among))


def percent(value: float) -> str:
    """`-0.105` as `10.0 % slower`."""
    return f"{100 * (1 - math.exp(value)):.3g} % slower"
