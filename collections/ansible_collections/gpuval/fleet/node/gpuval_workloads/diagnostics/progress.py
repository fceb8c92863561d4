"""Report how far a part is: the runner ends a stage that is silent for longer than its limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..common.ranks import Ranks

REPORT_SECONDS = 10.0

Report = Callable[[], None]


def no_report() -> None:
    """Report nothing."""


class ProgressReporter:
    """Prints, on rank 0, which part runs and for how long; called whenever the work has moved on."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._name, self._seconds = "", 0.0
        self._begun = self._reported = time.monotonic()

    def begin(self, name: str, seconds: float) -> None:
        """Report that a part begins which takes about so long."""
        self._name, self._seconds = name, seconds
        self._begun = self._reported = time.monotonic()
        self._ranks.say(f"{name} on {self._ranks.world_size} x {self._ranks.accelerator.kind}")

    def report(self) -> None:
        """Report that the part goes on, unless something was reported a short while ago."""
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self._ranks.say(f"{self._name}: {now - self._begun:.0f} s of about {self._seconds:.0f} s")


@contextmanager
def keep_reporting(report: Report, most_seconds: float) -> Iterator[None]:
    """Report again and again beside work that has a deadline of its own, for at most so many seconds."""
    is_over = threading.Event()

    def go_on() -> None:
        end = time.monotonic() + most_seconds
        while not is_over.wait(min(1.0, REPORT_SECONDS)) and time.monotonic() < end:
            report()

    thread = threading.Thread(target=go_on, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
