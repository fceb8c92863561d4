"""A member says how its own ranks stand: only the gang's first rank prints, and who is silent counts as hanging."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from ..common.stall import Beat

TELL_SECONDS = 30.0


def standing(beats: Mapping[int, tuple[Beat, str]], slots: int) -> str:
    """How far the member's ranks are, by their beats.

    The text changes only as long as the one that is last moves on: ranks that stand still are no sign of life.
    """
    if len(beats) < slots:
        return f"{len(beats)} of {slots} ranks have begun"
    ticks, done = (min(getattr(beat, what) for beat, _ in beats.values()) for what in ("ticks", "device_done"))
    device = f", its device {done}" if done else ""
    return f"{slots} of {slots} ranks are at work; the last one has counted {ticks} steps of progress{device}"


class Teller:
    """Enter it: a thread prints what ``tell`` returns now and then, if that is not what it printed last."""

    def __init__(self, tell: Callable[[], str]) -> None:
        self._tell, self._done = tell, threading.Event()
        self._thread = threading.Thread(target=self._run, name="telling", daemon=True)

    def __enter__(self) -> Teller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        last = ""
        while not self._done.wait(TELL_SECONDS):
            text = self._tell()
            if text != last:
                last = text
                print(text, flush=True)
