"""A member prints the progress of its own ranks: only the gang's first rank prints, and silence counts as a stall."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from ..common.stall import Beat

PRINT_SECONDS = 30.0


def progress(beats: Mapping[int, tuple[Beat, str]], slots: int) -> str:
    """The progress of the member's ranks by their heartbeats.

    The text changes only while the slowest rank advances: a stalled rank must not look alive.
    """
    if len(beats) < slots:
        return f"{len(beats)} of {slots} ranks have begun"
    ticks, done = (min(getattr(beat, what) for beat, _ in beats.values()) for what in ("ticks", "device_done"))
    device = f", its device {done}" if done else ""
    return f"{slots} of {slots} ranks are at work; the last one has counted {ticks} steps of progress{device}"


class ProgressPrinter:
    """Enter it: a thread prints what ``text_of`` returns now and then, if it has changed."""

    def __init__(self, text_of: Callable[[], str]) -> None:
        self._text_of, self._done = text_of, threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> ProgressPrinter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        last = ""
        while not self._done.wait(PRINT_SECONDS):
            text = self._text_of()
            if text != last:
                last = text
                print(text, flush=True)
