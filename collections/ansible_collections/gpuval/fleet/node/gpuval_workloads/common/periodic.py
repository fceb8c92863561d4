"""Work that a thread repeats while other work goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Periodic:
    """A context in which a thread calls ``work`` every ``seconds``, until ``work`` returns True."""

    def __init__(self, seconds: float, work: Callable[[], bool | None], name: str) -> None:
        self._seconds, self._work, self._done = seconds, work, threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Periodic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._done.wait(self._seconds):
            if self._work():
                return
