"""Time as the device sees it: events in its own queue on a GPU, the monotonic clock on a CPU."""

from __future__ import annotations

import time
from typing import Any

import torch

from .device import TorchDevices


class Clock:
    """Marks when the device gets somewhere in its queue, without making it wait."""

    def __init__(self, accelerator: TorchDevices) -> None:
        self._device = getattr(torch, accelerator.kind) if accelerator.is_gpu else None

    def mark(self) -> Any:
        """Return a mark of now: a recorded event, or seconds of the monotonic clock."""
        if self._device is None:
            return time.perf_counter()
        event = self._device.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        """Wait until the device has passed all marks."""
        if self._device is not None:
            self._device.synchronize()

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds from one mark to another, both passed."""
        return end - start if self._device is None else start.elapsed_time(end) / 1000


class Stopwatch:
    """Takes lap times without making the device wait; starts when it is made.

    On a GPU a lap is an event put into the current stream: it marks when the device got there. :meth:`laps` waits for
    the last one.
    """

    def __init__(self, accelerator: TorchDevices) -> None:
        self._clock = Clock(accelerator)
        self._marks: list = []
        self.lap()

    def lap(self) -> None:
        """Mark the end of a lap."""
        self._marks.append(self._clock.mark())

    def laps(self) -> list[float]:
        """Return the seconds of every lap so far."""
        self._clock.wait()
        return [self._clock.between(start, end) for start, end in zip(self._marks, self._marks[1:])]
