"""Finds in ``/proc`` all processes that a stage started, despite new sessions and double forks, and ends them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Callable, Optional

from gpuval_node.process_stat import Process, look, variable_of

MARKER_VARIABLE = "GPUVAL_STAGE_ID"
KILL_SECONDS = 15.0
FIRST_PAUSE_SECONDS = 0.05
#: PIDs of children of the runner that outlive a stage, and so belong to no stage: the telemetry helper.
LASTING: set[int] = set()


def stage_marker(run_id: str, node: str, stage: str, attempt: int) -> str:
    """Return the value that ``GPUVAL_STAGE_ID`` has in the environment of all processes of one attempt of a stage."""
    return f"{run_id}/{node}/{stage}/{attempt}"


def run_marker(run_id: str, node: str) -> str:
    """Return the prefix that the values of ``GPUVAL_STAGE_ID`` share for all stages of a run on a node."""
    return f"{run_id}/{node}/"


def belonging(
    processes: Mapping[int, Process], marker: str, *, session: Optional[int] = None, parent: Optional[int] = None
) -> list[Process]:
    """Return those of `processes` (by pid) that belong to a stage, or to a run when the marker ends in ``/``. They
    carry the marker in their environment, are in the POSIX session `session`, are children of the pid `parent` (a
    runner that adopts orphans), or are descendants or session members of these. The calling process, its ancestors and
    `LASTING` never belong."""
    spared = ancestors(processes, os.getpid()) | LASTING
    spared_sessions = {processes[pid].session for pid in spared if pid in processes} | {0}

    def carries(process: Process) -> bool:
        value = variable_of(process.pid, MARKER_VARIABLE)
        return value.startswith(marker) if marker.endswith("/") else value == marker

    kernel = 2 if 2 in processes and processes[2].name == "kthreadd" else None
    candidates = {pid: process for pid, process in processes.items() if pid not in spared and process.parent != kernel}
    more = {pid: process for pid, process in candidates.items() if process.parent == parent or carries(process)}
    members: dict[int, Process] = {}
    sessions = {session} - spared_sessions - {None}
    while True:
        members.update(more)
        sessions |= {process.session for process in more.values()} - spared_sessions
        more = {
            pid: process
            for pid, process in candidates.items()
            if pid not in members and (process.parent in members or process.session in sessions)
        }
        if not more:
            return list(members.values())


def send(process: Process, number: int) -> bool:
    """Send a signal to a process, never to a later process of the same pid. Returns whether the process existed."""
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # no pidfd: old Python or kernel, or a container's filter
        handle = -1
    try:
        present = look(process.pid)
        if present is None or present.start_ticks != process.start_ticks:
            return False
        if handle < 0:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def end_all(
    members: Callable[[], list[Process]], grace_seconds: float, pause: Callable[[float], None] = time.sleep
) -> tuple[list[Process], list[Process]]:
    """End all processes that `members` returns: TERM, a grace, then KILL until none is left. Returns the
    processes found, and those that KILL did not end. `pause` waits for a number of seconds."""
    remaining = members()
    ended: dict[tuple[int, int], Process] = {}
    for number, limit in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, KILL_SECONDS)):
        deadline, wait = time.monotonic() + limit, FIRST_PAUSE_SECONDS
        sent = False
        while remaining and time.monotonic() < deadline:
            ended.update({(p.pid, p.start_ticks): p for p in remaining})
            if not sent or number == signal.SIGKILL:
                for sent_number in (number, signal.SIGCONT):  # a stopped process handles TERM only once it continues
                    for process in remaining:
                        send(process, sent_number)
            sent = True
            pause(min(wait, max(0.0, deadline - time.monotonic())))
            wait = min(2 * wait, 0.5)
            remaining = members()
    return list(ended.values()), remaining


def ancestors(processes: Mapping[int, Process], pid: int) -> set[int]:
    """Return the pids of a process, its parent, and so on up to the first process."""
    pids = {1}
    while pid in processes and pid not in pids:
        pids.add(pid)
        pid = processes[pid].parent
    return pids
