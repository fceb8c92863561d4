"""Threads of a member beside its work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress


class LoopThread:
    """Runs a coroutine in a loop and thread of its own until it is done or cancelled."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, main: Coroutine) -> None:
        self._main = self.loop.create_task(main)
        self._thread.start()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def cancel(self, seconds: float) -> None:
        """Cancel the coroutine, and wait so long at most for its end."""
        with suppress(RuntimeError):  # the loop is closed: it has ended
            self.loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(seconds)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        with suppress(asyncio.CancelledError):
            self.loop.run_until_complete(self._main)
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self.loop.close()


class Periodic:
    """Enter it: a thread calls ``work`` every so many seconds until it is left."""

    def __init__(self, seconds: float, work: Callable[[], object], name: str) -> None:
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
            self._work()
