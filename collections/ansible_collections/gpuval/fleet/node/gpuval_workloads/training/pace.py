"""How long a rank works in each step, and how long it waits for the others: the slow one is the one that never waits.

Gradients are exchanged while the backward pass goes on, and the backward pass ends by waiting for the exchange. What a
rank does by itself ends with its own last gradient, that of the model's first parameter, and goes on with the
optimizer. Nothing here makes the device wait: on a GPU the marks are events in its queue.
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
    """Seconds of one step: in all, working, and waiting for the others' gradients (and for what the links take)."""

    seconds: float
    compute: float
    wait: float


class StepPace:
    """Marks the steps of a window, from its making on."""

    def __init__(self, accelerator: TorchDevices) -> None:
        self._clock = Clock(accelerator)
        self.events: list = []
        self._start = self._mark()
        self._steps: list[list] = [[]]

    def mark(self) -> None:
        """Mark that this rank's own backward pass is through; then that all ranks' gradients are there."""
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
    """Let ``call`` be called in every backward pass when the model's last gradient is there.

    The first parameter takes part in the forward pass first, so its gradient comes last. The hook runs as soon as the
    gradient is added up; DistributedDataParallel's own, which starts the exchange of the last bucket, comes after it.
    """
    return next(model.parameters()).register_post_accumulate_grad_hook(lambda _: call())


def slowest(compute_seconds: Sequence[float]) -> tuple[int, float]:
    """Return which part works longest on a step, and its time as a ratio of the median part's."""
    index = max(range(len(compute_seconds)), key=lambda part: compute_seconds[part])
    middle = median(compute_seconds)
    return index, compute_seconds[index] / middle if middle > 0 else 1.0
