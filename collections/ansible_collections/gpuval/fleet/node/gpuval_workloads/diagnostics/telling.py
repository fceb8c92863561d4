"""Say how far a part is while it goes on: the runner ends a stage that is silent for longer than its limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..common.ranks import Ranks

TELL_SECONDS = 10.0

Tell = Callable[[], None]


def silent() -> None:
    """Say nothing."""


class Teller:
    """Says, on rank 0, which part is under way and for how long; to be called whenever the work has moved on."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._name, self._seconds = "", 0.0
        self._begun = self._told = time.monotonic()

    def begin(self, name: str, seconds: float) -> None:
        """Say that a part begins that is to take about so long."""
        self._name, self._seconds = name, seconds
        self._begun = self._told = time.monotonic()
        self._ranks.say(f"{name} on {self._ranks.world_size} x {self._ranks.accelerator.kind}")

    def tell(self) -> None:
        """Say that the part goes on, unless something was said a short while ago."""
        now = time.monotonic()
        if now - self._told >= TELL_SECONDS:
            self._told = now
            self._ranks.say(f"{self._name}: {now - self._begun:.0f} s of about {self._seconds:.0f} s")


@contextmanager
def telling(tell: Tell, most_seconds: float) -> Iterator[None]:
    """Tell again and again beside work that has a deadline of its own, for no longer than so many seconds."""
    done = threading.Event()

    def go_on() -> None:
        end = time.monotonic() + most_seconds
        while not done.wait(min(1.0, TELL_SECONDS)) and time.monotonic() < end:
            tell()

    thread = threading.Thread(target=go_on, name="telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
