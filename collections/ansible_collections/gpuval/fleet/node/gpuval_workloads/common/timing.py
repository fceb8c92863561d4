"""Time as the device sees it: events in its own queue on a GPU, the monotonic clock on a CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch

from .device import Accelerator


class Stopwatch:
    """Takes lap times without making the device wait; starts when it is made.

    On a GPU a lap is an event put into the current stream: it marks when the device got there. :meth:`laps` waits for
    the last one.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._device = getattr(torch, accelerator.kind) if accelerator.is_gpu else None
        self._marks: list = []
        self.lap()

    def lap(self) -> None:
        """Mark the end of a lap."""
        if self._device is None:
            self._marks.append(time.perf_counter())
            return
        event = self._device.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def laps(self) -> list[float]:
        """Return the seconds of every lap so far."""
        if self._device is None:
            return [end - start for start, end in _pairs(self._marks)]
        self._device.synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in _pairs(self._marks)]


def _pairs(marks: Sequence) -> Iterator[tuple]:
    return zip(marks, marks[1:])
