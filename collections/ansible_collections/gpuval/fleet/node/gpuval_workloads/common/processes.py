"""Finds descendants of processes, or processes with a mark in their environment, and ends them; free ports."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from gpuval_node.process_stat import Process, process_control, read_stat, snapshot, variable_of

from .result import WorkloadFailure

POLL_SECONDS, END_SECONDS = 0.1, 5.0
#: Ports below Linux's range for outgoing connections, one of which could occupy the port before the server listens.
PORTS = range(20000, 29000)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux)."""
    process_control(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG


def below(*pids: int, processes: Mapping[int, Process] | None = None) -> set[int]:
    """Return the pids of live processes that descend from ``pids``; by default among all processes of the machine."""
    processes = snapshot() if processes is None else processes
    family = newest = set(pids)
    while newest:
        newest = {process.pid for process in processes.values() if process.parent in newest} - family
        family = family | newest
    return family - set(pids)


def marked(variable: str, value: str) -> set[int]:
    """Return the pids of live processes with a variable of this value in their environment, and their descendants."""
    processes = snapshot()
    pids = {pid for pid in processes if variable_of(pid, variable) == value}
    return pids | below(*pids, processes=processes)


def end(find: Callable[[], set[int]], grace_seconds: float, kill_seconds: float) -> set[int]:
    """End all processes that ``find`` returns, also new ones: by TERM, then by KILL. Returns pids that remain."""
    remaining = find()
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, kill_seconds)):
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        while remaining and time.monotonic() < deadline:
            for pid in remaining - signalled:
                with suppress(OSError):
                    os.kill(pid, number)
            signalled |= remaining
            time.sleep(POLL_SECONDS)
            remaining = find()
    return remaining


def end_below() -> None:
    """End all processes that descend from this process."""
    end(_own, END_SECONDS, END_SECONDS)


def _own() -> set[int]:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return below(os.getpid())


def signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def end_group(process: subprocess.Popen, term_seconds: float, kill_seconds: float | None) -> bool:
    """End a process and its group by TERM, then by KILL; False if the process remains after both."""
    for number, seconds in ((signal.SIGTERM, term_seconds), (signal.SIGKILL, kill_seconds)):
        signal_group(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return True
    return False


def process_state(pid: int) -> str:
    """Return the kernel's letter for the state of a process: R, S, D, T (stopped), Z; "?" when it cannot be read."""
    process = read_stat(pid)
    return process.state if process else "?"


def is_child(pid: int) -> bool:
    """Return whether a pid is a child of this process: another process may have the pid by now."""
    process = read_stat(pid)
    return process is not None and process.parent == os.getpid()


def free_port(host: str = "") -> int:
    """Return a TCP port that is free on ``host``, by default on all addresses. Raises ``WorkloadFailure``."""
    for port in random.sample(PORTS, 50):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port))
            return port
    raise WorkloadFailure(f"no port is free on {host or 'this node'}")
