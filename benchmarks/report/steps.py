"""Steps as processes of their own, and what they cost."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

PROGRAM = Path(__file__).with_name("run.py")
#: Asking more often costs processor time.
SAMPLE_SECONDS = 0.5


def measured(step: str, folder: Path, program: Path = PROGRAM) -> dict[str, float]:
    """Run one step of a program, as `measured_command` does."""
    return measured_command([sys.executable, str(program), "--step", step, "--folder", str(folder)])


def measured_command(command: Sequence[str], log: Path | None = None) -> dict[str, float]:
    """Run a command: wall and processor seconds, and the most memory in bytes that it held. Its output goes to the file
    ``log``.

    Memory and processor time are those of its children too. A page that they share counts once, and the largest of them
    counts with all that it ever held.
    """
    begin, memory = time.perf_counter(), 0
    with log.open("w") if log else contextlib.nullcontext() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            memory = max(memory, _held_by(process.pid))
            time.sleep(SAMPLE_SECONDS)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)}\n{log.read_text()[-4000:] if log else ''}")
    largest = usage.ru_maxrss * 1024
    seconds, cpu = time.perf_counter() - begin, usage.ru_utime + usage.ru_stime
    return {"seconds": seconds, "cpu": cpu, "memory": max(memory, largest)}


def _held_by(pid: int) -> int:
    held = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess, FileNotFoundError):
                held += one.memory_full_info().pss
    return held
