"""Many waits at a time, with one deadline for all: what is not done then is given up, and nothing waits for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

AT_ONCE = 32
TaskName = TypeVar("TaskName")


def in_parallel(tasks: Mapping[TaskName, Callable[[], Any]], seconds: float) -> dict[TaskName, Any]:
    """Results by key; keys of tasks that were not done in time are left out. A task must not raise."""
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    answers: queue.SimpleQueue = queue.SimpleQueue()
    for item in tasks.items():
        waiting.put(item)

    def work() -> None:
        while time.monotonic() < end:
            try:
                key, task = waiting.get_nowait()
            except queue.Empty:
                return
            answers.put((key, task()))

    end = time.monotonic() + seconds
    for _thread in range(min(AT_ONCE, len(tasks))):
        threading.Thread(target=work, daemon=True).start()  # daemons: a hanging name server must not block the exit
    results: dict[TaskName, Any] = {}
    while len(results) < len(tasks):
        try:
            key, result = answers.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        results[key] = result
    return results
