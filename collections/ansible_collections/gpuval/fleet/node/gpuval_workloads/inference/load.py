"""Requests at a set concurrency: each thread asks, waits for the whole answer, asks again."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Callable

from .client import CompletionAnswer, RequestError
from .tally import Tally

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0


class RequestLoad:
    """`concurrency` threads that call `ask` with 1, 2, 3, ... until stopped or `limit` requests were made."""

    def __init__(
        self, ask: Callable[[int], CompletionAnswer], tally: Tally, concurrency: int, limit: int | None
    ) -> None:
        self._ask = ask
        self._tally = tally
        self._limit = limit
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"requests {index}", daemon=True) for index in range(concurrency)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def is_running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def stop(self, seconds: float) -> None:
        """Ask nothing new; what is under way and does not end within `seconds` counts as abandoned, nothing else."""
        self._stopping.set()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._closed = True
        self._tally.add_abandoned(sum(thread.is_alive() for thread in self._threads))

    def _work(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            number = self._next_number()
            if number is None:
                return
            try:
                answer = self._ask(number)
            except RequestError as error:
                print(f"request {number} failed: {error}", flush=True)
                self._count(self._tally.add_failure, str(error))
                self._stopping.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            else:
                self._count(self._tally.add_answer, answer)
                pause = FIRST_PAUSE_SECONDS

    def _count(self, add: Callable, value: CompletionAnswer | str) -> None:
        with self._lock:
            if not self._closed:
                add(value)

    def _next_number(self) -> int | None:
        number = next(self._numbers)
        return number if self._limit is None or number <= self._limit else None
