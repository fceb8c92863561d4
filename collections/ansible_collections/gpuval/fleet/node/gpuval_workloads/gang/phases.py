"""One training among several of a gang: so many seconds of steps by all ranks together, and their figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from ..common.laps import LapStatistics
from ..common.ranks import Ranks, Stopwatch
from ..common.result import WorkloadFailure
from . import wrong

NONFINITE = "gang_nonfinite_count"
"""Losses that are no number, of all ranks, up to the end of the window in which the first of them was."""
WARMUP_STEPS = 3
WINDOW_SECONDS = 1.0
MOST_STEPS = 50
PROGRESS_SECONDS = 5.0

#: Takes one step and returns its loss.
Step = Callable[[], Tensor]


@dataclass
class TrainingPhase:
    """What this rank saw of a training: the mean losses of all ranks by step, and the times of its own steps."""

    name: str
    losses: list[float] = field(default_factory=list)
    steps: LapStatistics = field(default_factory=LapStatistics)


def train(name: str, ranks: Ranks, step: Step, seconds: float) -> TrainingPhase:
    """Take steps for so long after a warm-up. Raises ``WorkloadFailure`` for a loss that is no number.

    All ranks do so at once, and the node's first one notes it: such a failure is never retried into PASS.
    """
    phase, recent, reported = TrainingPhase(name), 0.0, time.perf_counter()
    _window(phase, ranks, step, 1)  # the very first may build kernels
    _window(phase, ranks, step, WARMUP_STEPS - 1)
    phase.steps = LapStatistics()
    while True:
        seconds_left = seconds - phase.steps.seconds
        count = max(1, min(MOST_STEPS, int(min(WINDOW_SECONDS, seconds_left) / recent))) if recent else 1
        count = agree(ranks, count if seconds_left > 0 or not phase.steps.count else 0)
        if not count:
            return phase
        before = phase.steps.seconds
        _window(phase, ranks, step, count)
        recent = (phase.steps.seconds - before) / count
        if time.perf_counter() - reported > PROGRESS_SECONDS:
            reported = time.perf_counter()
            ranks.say(f"{name}: step {len(phase.losses)}  loss {phase.losses[-1]:.4f}  {recent:.3f} s a step")


def agree(ranks: Ranks, number: int) -> int:
    """Return rank 0's number on every rank."""
    ranks.tick()
    agreed = torch.tensor([number], device=ranks.device)
    dist.broadcast(agreed, src=0)
    return int(agreed)


def _window(phase: TrainingPhase, ranks: Ranks, step: Step, count: int) -> None:
    watch = Stopwatch(ranks.accelerator)
    losses = []
    for _ in range(count):
        losses.append(step())
        ranks.tick()
        watch.lap()
    phase.steps.extend(watch.laps())
    by_rank = ranks.gather_tensor(torch.stack(losses).float())
    bad = (~torch.isfinite(by_rank)).T.nonzero().tolist()
    if bad:
        if ranks.local_rank == 0:
            wrong.keep(ranks.rank, NONFINITE, len(bad))
        number = bad[0][0]
        culprits = [rank for step, rank in bad if step == number]
        node_of = ranks.gather(ranks.of_node.start)
        is_one_node = len({node_of[rank] for rank in culprits}) == 1
        ranks_named = (
            f"rank {culprits[0]}" if len(culprits) == 1 else f"{len(culprits)} ranks at once, {culprits[0]} among them"
        )
        # through gradients it comes to all that train together
        suspects = "their node" if is_one_node else "all nodes"
        where = f"{ranks_named}: run the diagnostics and fingerprint stages on {suspects}"
        message = (
            f"{phase.name}: the loss is not finite from step {len(phase.losses) + number + 1} on, first on {where}"
        )
        raise WorkloadFailure(message, culprits)
    phase.losses += by_rank.mean(dim=0).tolist()
