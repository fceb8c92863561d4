"""Processes found in /proc by what they carry, and signals to exactly those."""

import contextlib
import os
import signal
import time
from pathlib import Path


def all_pids():
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def read(pid, name):
    """A file of a process; empty when it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def environment(pid):
    pairs = (entry.partition(b"=") for entry in read(pid, "environ").split(b"\0") if entry)
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}


def of_stage(run_id, node, stage, attempt=1):
    """Everything that an attempt of a stage started."""
    marker = f"{run_id}/{node}/{stage}/{attempt}"
    return [pid for pid in all_pids() if environment(pid).get("GPUVAL_STAGE_ID") == marker]


def ranks_of(run_id, node, stage="training", attempt=1):
    """Pids of the ranks that torchrun started, by rank."""
    found = {}
    for pid in sorted(of_stage(run_id, node, stage, attempt)):
        rank = environment(pid).get("LOCAL_RANK")
        if rank:
            found.setdefault(int(rank), pid)  # what a rank starts comes after it
    return found


def send(pids, number):
    """Processes that have ended since they were found are left out."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def below(root):
    """Processes that work in a folder, name it in their arguments or carry it in their environment; not our own."""
    needle, found = os.fsencode(str(root)), []
    for pid in all_pids():
        if pid in (os.getpid(), os.getppid()):
            continue
        try:
            here = root in Path(f"/proc/{pid}/cwd").readlink().parents
        except OSError:
            here = False
        if here or needle in read(pid, "cmdline") or needle in read(pid, "environ"):
            found.append(pid)
    return found


def end_all_below(root):
    """KILL what still runs below a folder; returns the command lines of those found."""
    found = {pid: read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace") for pid in below(root)}
    deadline = time.monotonic() + 10
    while (left := below(root)) and time.monotonic() < deadline:
        send(left, signal.SIGKILL)
        time.sleep(0.1)
    return list(found.values())
