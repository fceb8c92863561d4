"""Reads processes from /proc, and changes how the kernel treats this one. Also packed into runner and workloads."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from pathlib import Path
from typing import NamedTuple, Optional

_MAX_ENVIRON = 1 << 20


class Process(NamedTuple):
    """A process as `/proc` showed it; pid and start time (clock ticks since boot) identify it despite pid reuse."""

    pid: int
    start_ticks: int
    parent: int
    session: int
    state: str
    name: str


def parse_stat(text: str) -> Optional[Process]:
    """Read a line of `/proc/<pid>/stat` (proc_pid_stat(5)); the process name may hold spaces and parentheses."""
    opening, closing = text.find("("), text.rfind(")")
    fields = text[closing + 2 :].split()
    if opening < 0 or closing < 0 or len(fields) < 20:
        return None
    name = text[opening + 1 : closing]
    return Process(int(text[:opening]), int(fields[19]), int(fields[1]), int(fields[3]), fields[0], name)


def read_stat(pid: int) -> Optional[Process]:
    """Return the process with a pid, even a zombie; None when it is gone."""
    return parse_stat(_read(f"/proc/{pid}/stat", 4096).decode("utf-8", "replace"))


def look(pid: int) -> Optional[Process]:
    """Return the process with a pid; None when it is gone or a zombie."""
    process = read_stat(pid)
    return process if process and process.state not in "ZX" else None


def snapshot() -> dict[int, Process]:
    """Return all living processes by pid."""
    processes = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - thousands of names
    return {process.pid: process for process in processes if process}


def variable_of(pid: int, name: str, proc: str = "/proc") -> str:
    """Return a variable in a process's environment; empty when it has none or may not be read."""
    prefix = name.encode() + b"="
    for entry in _read(f"{proc}/{pid}/environ", _MAX_ENVIRON).split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode("utf-8", "replace")
    return ""


def adopt_orphans() -> None:
    """Make this process adopt descendants whose parent ends (Linux), so that all can be found."""
    process_control(36)  # PR_SET_CHILD_SUBREAPER


def process_control(option: int, value: int = 1) -> None:
    """Call prctl(2), if this system has it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def oom_kills(path: Path) -> Optional[int]:
    """Return the counter `oom_kill` in a file of counters (vmstat, memory.events); None if the file has none."""
    match = re.search(rb"^oom_kill (\d+)$", _read(str(path), 1 << 16), re.MULTILINE)
    return int(match.group(1)) if match else None


def _read(path: str, limit_bytes: int) -> bytes:
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - called for every process of the machine
            return stream.read(limit_bytes)
    except OSError:  # the process ended, or is another user's
        return b""
