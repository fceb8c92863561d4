"""Processes that outlive the module, its connection and the controller."""

from __future__ import annotations

import os
from collections.abc import Callable


def run_detached(work: Callable[[], None]) -> None:
    """Call `work` in a process with a session of its own and without the module's files, locks among them."""
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
