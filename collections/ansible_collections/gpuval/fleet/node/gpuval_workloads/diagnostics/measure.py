"""Repeat a piece of work for a time, and keep the time of each repeat."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..common.laps import MOST_LAPS, LapStatistics
from ..common.ranks import Ranks
from ..common.timing import Clock
from .progress import REPORT_SECONDS, Report, no_report

LEAST_LAPS, LEAST_SLOW_LAPS = 8, 3
"""Fewest repeats; fewest of work so slow that they would take ``REPORT_SECONDS``."""
LEAST_HOST_LAPS = 5
BLOCK_SECONDS = 0.25
"""How far the device is behind at most, and how often the ranks agree on whether to go on."""

Work = Callable[[], Any]


class Meter:
    """Times work on one rank, or on all of them together.

    On a GPU two events around each repeat say how long the device took; on a CPU the monotonic clock does.
    """

    def __init__(self, ranks: Ranks, report: Report = no_report) -> None:
        self._ranks, self.report = ranks, report
        self._clock = Clock(ranks.accelerator)

    def time(self, work: Work, seconds: float, *, prepare: Work | None = None, together: bool = True) -> LapStatistics:
        """Do the work again and again for about ``seconds``, whatever it shows before they are over.

        ``prepare`` runs, untimed, before each. With ``together`` all ranks call this at the same time and repeat
        equally often, as collectives need it.
        """
        for _ in range(2):  # the first loads kernels and connects; the second says how long one takes, prepared
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
            is_slow = lap * LEAST_LAPS > REPORT_SECONDS  # one by one, to be heard of in between
            size = max(1 if laps.count or is_slow else LEAST_LAPS, min(fit, MOST_LAPS))
            if together:
                size = self._least(size)
            laps.extend(self._block(work, prepare, size, together))
            self.report()
            laps.wall_seconds = time.perf_counter() - started
            least = LEAST_SLOW_LAPS if is_slow else LEAST_LAPS
            enough = laps.count >= least and laps.wall_seconds >= seconds
            is_done, lap = self._agree(enough, laps.wall_seconds / laps.count, together)
            if is_done:
                return laps

    def repeat(self, work: Work, seconds: float) -> LapStatistics:
        """Time work of the host by its own clock, for about so long; other ranks go on as they like."""
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
        laps = self._laps(work, prepare, turns, together)
        if together:  # ranks count alike: not what one does while the others wait
            self._ranks.tick()
        return laps

    def _laps(self, work: Work, prepare: Work | None, turns: int, together: bool) -> list[float]:
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
        return [self._clock.between(begin, end) for begin, end in zip(marks[::2], marks[1::2])]

    def _agree(self, enough: bool, lap: float, together: bool) -> tuple[bool, float]:
        """Return whether every rank has enough, and the longest of their laps."""
        if not together:
            return enough, lap
        self._ranks.tick()
        status = torch.tensor([0.0 if enough else 1.0, lap], device=self._ranks.device)
        dist.all_reduce(status, op=dist.ReduceOp.MAX)
        go_on, longest = status.tolist()
        return not go_on, longest

    def _least(self, number: int) -> int:
        self._ranks.tick()
        least = torch.tensor([number], device=self._ranks.device)
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        return int(least)
