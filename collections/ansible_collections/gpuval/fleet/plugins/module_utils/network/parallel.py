"""Runs tasks in parallel with one deadline, and processes that outlive the module and its connection."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

AT_ONCE = 32
TaskName = TypeVar("TaskName")


def in_parallel(
    tasks: Mapping[TaskName, Callable[[], Any]], seconds: float, at_once: int = AT_ONCE
) -> dict[TaskName, Any]:
    """Run tasks in parallel; return their results by key after at most `seconds`. Late tasks are left out and go on. A
    task must not raise."""
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
    for _thread in range(min(at_once, len(tasks))):
        threading.Thread(target=work, daemon=True).start()  # daemons: a hanging name server must not block the exit
    results: dict[TaskName, Any] = {}
    while len(results) < len(tasks):
        try:
            key, result = answers.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        results[key] = result
    return results


def run_detached(work: Callable[[], None]) -> None:
    """Call `work` in a separate process and session that does not inherit the module's open files and locks."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            work()
    finally:
        os._exit(0)
