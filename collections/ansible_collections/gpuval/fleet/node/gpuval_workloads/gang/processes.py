"""The processes that an SSH server has started for others: found by the kernel's table, ended by this program."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 5.0


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux), so that none is lost from sight."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes below one, parents first."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def wait_until_childless(pid: int, seconds: float) -> None:
    """Wait until no process is below this one, at most so long."""
    deadline = time.monotonic() + seconds
    while descendants(pid) and time.monotonic() < deadline:
        time.sleep(0.1)


def end_all(grace_seconds: float = GRACE_SECONDS) -> None:
    """End all processes below this one: by TERM, then by KILL."""
    deadline = time.monotonic() + grace_seconds
    sent: dict[int, int] = {}
    while True:
        _reap()
        left = descendants(os.getpid())
        is_late = time.monotonic() > deadline
        if not left or time.monotonic() > deadline + grace_seconds:
            return
        for pid in left:
            word = signal.SIGKILL if is_late else signal.SIGTERM
            if sent.get(pid) != word:
                with suppress(OSError):
                    os.kill(pid, word)
                sent[pid] = word
        time.sleep(0.1)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
