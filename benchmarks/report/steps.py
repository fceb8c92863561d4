"""Judge and report as processes of their own, and what they cost."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from pathlib import Path

import psutil

PROGRAM = Path(__file__).with_name("run.py")


def measured(step: str, folder: Path, program: Path = PROGRAM) -> dict[str, float]:
    """Run one step as a process of its own: wall and processor seconds, and the most memory that it held.

    Memory is that of its children too; a page that they share counts once.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin, memory = time.perf_counter(), 0
    step_process = psutil.Popen([sys.executable, str(program), "--step", step, "--folder", str(folder)])
    while step_process.poll() is None:
        memory = max(memory, _held_by(step_process))
        with contextlib.suppress(psutil.TimeoutExpired):
            step_process.wait(1)  # asking more often costs processor time
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if step_process.returncode:
        raise SystemExit(f"the step {step} failed")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "cpu": cpu, "memory": memory}


def _held_by(process: psutil.Process) -> int:
    held = 0
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        for one in [process, *process.children(recursive=True)]:
            held += one.memory_full_info().pss
    return held
