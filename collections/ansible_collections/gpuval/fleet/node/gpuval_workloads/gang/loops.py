"""An event loop that has a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
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
