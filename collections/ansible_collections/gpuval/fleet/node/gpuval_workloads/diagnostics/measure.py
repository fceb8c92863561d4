"""Repeats a measured function for a given time, keeps the time of each repeat, and reports figures and progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from ..common.laps import MOST_LAPS, REVISION, LapStatistics, LapSummary, median_of
from ..common.periodic import Periodic
from ..common.ranks import Clock, Ranks

REPORT_SECONDS = 10.0
"""Seconds between lines on progress: the runner ends a stage that prints nothing for longer than its limit."""
LEAST_LAPS, LEAST_SLOW_LAPS = 8, 3
"""Fewest repeats of a measurement; the second if the first would take longer than ``REPORT_SECONDS``."""
LEAST_HOST_LAPS = 5
BLOCK_SECONDS = 0.25
"""Longest time of repeats that a GPU has queued; after it, the ranks agree on whether to go on."""

Work = Callable[[], Any]
Report = Callable[[], None]


class ProgressReporter:
    """Prints, on rank 0, which part of the diagnostics runs and for how long."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._name, self._seconds = "", 0.0
        self._begun = self._reported = time.monotonic()

    def begin(self, name: str, seconds: float) -> None:
        """Print that the measurement ``name`` begins, which takes about ``seconds``."""
        self._name, self._seconds = name, seconds
        self._begun = self._reported = time.monotonic()
        self._ranks.say(f"{name} on {self._ranks.world_size} x {self._ranks.accelerator.kind}")

    def report(self) -> None:
        """Print that the measurement goes on, at most every 10 s."""
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self._ranks.say(f"{self._name}: {now - self._begun:.0f} s of about {self._seconds:.0f} s")


def keep_reporting(report: Report, most_seconds: float) -> Periodic:
    """Return a context in which a thread calls ``report`` every second, for at most ``most_seconds``."""
    end = time.monotonic() + most_seconds

    def report_until_end() -> bool:
        is_over = time.monotonic() >= end
        if not is_over:
            report()
        return is_over

    return Periodic(min(1.0, REPORT_SECONDS), report_until_end, "progress")


class Meter:
    """Measures the time of work on one rank, or on all together; collects figures, curves over message sizes, and why
    measurements were left out. A GPU's time is that between two events; a CPU's is by the monotonic clock."""

    def __init__(self, ranks: Ranks, report: Report = lambda: None) -> None:
        self._ranks, self.report = ranks, report
        self._clock = Clock(ranks.accelerator)
        #: Arguments of ``WorkloadResult.add_metric``.
        self.figures: list[dict[str, Any]] = []
        self.curves: list[tuple[str, str, Sequence[float], list[float]]] = []
        self.left_out: dict[str, str] = {}
        #: Speed of the host's memory by NUMA node, to show which one is slow.
        self.by_numa_node: dict[str, float] = {}

    def add(self, name: str, value: float | None, unit: str, scope: str = "", revision: int = 1) -> None:
        """Add a figure; without ``scope`` it is of the rank's own GPU."""
        scope = scope or self._ranks.scope
        self.figures.append({"name": name, "value": value, "unit": unit, "scope": scope, "revision": revision})

    def speed(self, name: str, amount: float, laps: LapSummary, unit: str, suffix: str, scope: str = "") -> None:
        """Add the mean speed of laps, each with ``amount`` of work, as ``<name>_<suffix>``, with the speed of the
        median lap and ratios. Figures that need more laps are left out. ``unit``: unit of the speed."""
        figure = f"{name}_{suffix}"
        self.add(figure, amount / laps.seconds, unit, scope, REVISION)
        self.add(median_of(figure), amount / laps.median_seconds, unit, scope)
        for ratio in ("spread", "lost", "slowest_hundredth", "busy", "uncertainty"):
            value = getattr(laps, f"{ratio}_ratio")
            if value is not None:
                self.add(f"{name}_{ratio}_ratio", value, "ratio", scope)

    def time(self, work: Work, seconds: float, *, prepare: Work | None = None, together: bool = True) -> LapStatistics:
        """Repeat the work for about ``seconds``, and return the time of the laps. ``prepare`` runs, untimed, before
        each lap. With ``together`` all ranks call this at the same time and repeat equally often, as collectives
        need."""
        for _ in range(2):  # the first loads kernels and connects; the second gives the time of a lap
            begun = time.perf_counter()
            if prepare:
                prepare()
            self._block(work, None, 1, together)
            trial = time.perf_counter() - begun
            self.report()
        if together:
            dist.barrier()
        laps = LapStatistics()
        started = time.perf_counter()
        _, lap = self._agree(False, trial, together)
        while True:
            seconds_left = max(0.0, seconds - (time.perf_counter() - started))
            fit = int(min(BLOCK_SECONDS, seconds_left) / max(lap, 1e-7))
            is_slow = lap * LEAST_LAPS > REPORT_SECONDS  # one by one, to report progress in between
            size = max(1 if laps.count or is_slow else LEAST_LAPS, min(fit, MOST_LAPS))
            if together:  # as often as the slowest rank
                size = -int(self._ranks.greatest(-size)[0])
            laps.extend(self._block(work, prepare, size, together))
            self.report()
            laps.wall_seconds = time.perf_counter() - started
            least = LEAST_SLOW_LAPS if is_slow else LEAST_LAPS
            enough = laps.count >= least and laps.wall_seconds >= seconds
            is_done, lap = self._agree(enough, laps.wall_seconds / laps.count, together)
            if is_done:
                return laps

    def repeat(self, work: Work, seconds: float) -> LapStatistics:
        """Repeat work of the host for about ``seconds``, by the monotonic clock; independent of other ranks."""
        work()
        laps = LapStatistics()
        started = ended = time.perf_counter()
        while laps.count < LEAST_HOST_LAPS or ended - started < seconds:
            begun = time.perf_counter()
            work()
            ended = time.perf_counter()
            laps.extend((ended - begun,))
            self.report()
        laps.wall_seconds = ended - started
        return laps

    def _block(self, work: Work, prepare: Work | None, turns: int, together: bool) -> list[float]:
        marks: list = []
        if together:
            self._ranks.follow(marks)
        for _ in range(turns):
            if prepare:
                prepare()
            marks.append(self._clock.mark())
            work()
            marks.append(self._clock.mark())
        self._clock.wait()
        if together:  # all ranks must count the same: not work of one while others wait
            self._ranks.tick()
        return [self._clock.between(begin, end) for begin, end in zip(marks[::2], marks[1::2])]

    def _agree(self, enough: bool, lap: float, together: bool) -> tuple[bool, float]:
        """Return whether all ranks have enough laps, and the longest of their lap times in seconds."""
        if not together:
            return enough, lap
        go_on, longest = self._ranks.greatest(0.0 if enough else 1.0, lap)
        return not go_on, longest
