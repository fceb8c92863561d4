"""Whether a figure drifts from run to run, beyond its scatter, and which machines pass one day and fail the next. Pure.
The slope is the Theil-Sen estimate, the median of the slopes of all pairs of runs, which is robust against one outlier.
Its standard error comes from the scatter around that line, or from that of sister parts (the same figure of other
parts) if it is larger: four points may be in line by chance, but not when hundreds of sisters are not."""

import math
import statistics
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from ..core.grouping import values_by_key

MIN_RUNS = 4
#: Least drift that counts, from the first run to the last, relative to the figure's median.
MIN_TOTAL = 0.02
#: Maximum share of series with only noise that count as drift.
FALSE_ALARMS = 0.005
CONFIDENCE = 1 - FALSE_ALARMS
_NORMAL = statistics.NormalDist().inv_cdf(1 - FALSE_ALARMS / 2)
#: Student's t at 1 - FALSE_ALARMS / 2 for few degrees of freedom, where the expansion in 1/n is too inexact.
_STUDENT = {2: 14.089, 3: 7.4533, 4: 5.5976, 5: 4.7733, 6: 4.3168, 7: 4.0293, 8: 3.8325, 9: 3.6897, 10: 3.5814}
#: Least number of changes of a flaky machine: one change alone is a defect or a repair.
MIN_CHANGES = 2
_FINAL = ("PASS", "FAIL")


@dataclass(frozen=True)
class Trend:
    """The trend of a figure over runs, relative to its median (0.01 is 1 %). ``total_ratio``: the change from first to
    last run, between ``low_ratio`` and ``high_ratio`` with CONFIDENCE. ``scatter_ratio``: deviation around the line."""

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
    """The trend of a figure over runs in order; None for fewer than four runs, or if the median is 0. ``floor``: the
    least scatter to assume, relative to the median."""
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
    """The quantile of Student's t at 1 - FALSE_ALARMS / 2; ``freedom``: degrees of freedom, 2 or more."""
    if freedom in _STUDENT:
        return _STUDENT[freedom]
    z = _NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


@dataclass(frozen=True)
class Judged:
    """The verdict on a machine in one run. Only verdicts with the same ``asked`` (profile and stages) are compared."""

    run_id: str
    asked: Hashable
    verdict: str
    retried: bool
    gpus: frozenset[str]


class Flakiness:
    """Signs that a machine is flaky, from its runs in order. INCOMPLETE shows nothing about the machine and is ignored.
    A GPU that falls off the bus and comes back is no change of hardware; a GPU that was not there before is.
    ``retried_runs``: runs that it passed only on a further attempt. ``changes``: from PASS to FAIL or back on the same
    hardware, ``pattern``: the verdicts between (P, F)."""

    def __init__(self, history: Iterable[Judged]) -> None:
        judged = [run for run in history if run.verdict in _FINAL]
        retried_runs = [run.run_id for run in judged if run.retried and run.verdict == "PASS"]
        self.judged, self.retried, self.retried_runs = len(judged), len(retried_runs), retried_runs
        self.changes, self.pattern = 0, ""
        for comparable in values_by_key((run.asked, run) for run in judged).values():
            for stretch in _split_by_hardware(comparable):
                verdicts = [run.verdict for run in stretch]
                moved = sum(before != after for before, after in zip(verdicts, verdicts[1:]))
                if moved > self.changes:
                    self.changes, self.pattern = moved, "".join(verdict[0] for verdict in verdicts)

    @property
    def flaky(self) -> bool:
        return bool(self.retried) or self.changes >= MIN_CHANGES


def _split_by_hardware(history: Sequence[Judged]) -> list[list[Judged]]:
    stretches: list[list[Judged]] = []
    gpus: set[str] = set()
    for run in history:
        if not stretches or (gpus and run.gpus - gpus):
            stretches.append([])
            gpus = set()
        stretches[-1].append(run)
        gpus |= run.gpus
    return stretches
