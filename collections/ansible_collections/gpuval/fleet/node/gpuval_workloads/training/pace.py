"""Measures how long a rank computes in each step and how long it waits for others: the slow rank never waits.

Gradients are exchanged during the backward pass, which ends with a wait for the exchange. A rank's own work ends with
its last gradient, that of the model's first parameter, and continues with the optimizer. Nothing here makes the device
wait: on a GPU, the marks are events in its queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from torch import nn
from torch.utils.hooks import RemovableHandle

from ..common.device import TorchDevices
from ..common.ranks import Clock

SLOW_RATIO = 1.05


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step: in all, of compute, and of waiting for the others' gradients (with the transfer time)."""

    seconds: float
    compute: float
    wait: float


class StepPace:
    """Measures the time of each training step from its creation on."""

    def __init__(self, accelerator: TorchDevices) -> None:
        self._clock = Clock(accelerator)
        self.events: list = []
        self._start = self._mark()
        self._steps: list[list] = [[]]

    def mark(self) -> None:
        """Mark the end of this rank's own backward pass; at the second call, the arrival of all ranks' gradients."""
        self._steps[-1].append(self._mark())

    def step_done(self) -> None:
        self.mark()
        self._steps.append([])

    def times(self) -> list[StepTime]:
        """Return the times of the steps so far; waits for the device."""
        self._clock.wait()
        times, start = [], self._start
        for *computed, received, end in self._steps[:-1]:
            seconds = self._clock.between(start, end)
            wait = self._clock.between(computed[-1], received) if computed else 0.0
            times.append(StepTime(seconds, seconds - wait, wait))
            start = end
        return times

    def _mark(self):
        self.events.append(self._clock.mark())
        return self.events[-1]


def on_last_gradient(model: nn.Module, call: Callable[[], None]) -> RemovableHandle:
    """Register ``call`` for every backward pass, when the model's last gradient, that of its first parameter, is
    accumulated: before DistributedDataParallel's hook, which starts the exchange of the last bucket."""
    return next(model.parameters()).register_post_accumulate_grad_hook(lambda _: call())


def slowest(compute_seconds: Sequence[float]) -> tuple[int, float]:
    """Return the index of the rank that computes longest, and the ratio of its time to the median."""
    index = max(range(len(compute_seconds)), key=lambda part: compute_seconds[part])
    middle = median(compute_seconds)
    return index, compute_seconds[index] / middle if middle > 0 else 1.0
