"""Bandwidth of the host's memory by NUMA node, as STREAM's triad has it: a missing or slow module shows here."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import torch

from ..gang.host.sysfs import cpu_list

SYSTEM = Path("/sys/devices/system/node")
ARRAY_BYTES = 2**25
"""Of each of the three arrays of a thread; those of a node's threads together are larger than its caches."""
MOST_THREADS = 16


def nodes(system: Path = SYSTEM, usable: frozenset[int] | None = None) -> dict[int, list[int]]:
    """The processors of each NUMA node that this process may use; nodes without any (memory alone) are left out."""
    usable = frozenset(os.sched_getaffinity(0)) if usable is None else usable
    cpus_by_node = {}
    for folder in system.glob("node[0-9]*"):
        try:
            cpus = [cpu for cpu in cpu_list((folder / "cpulist").read_text()) if cpu in usable]
        except OSError:
            continue
        if cpus:
            cpus_by_node[int(folder.name[4:])] = cpus
    return dict(sorted(cpus_by_node.items()))


def triad(cpus: list[int], seconds: float) -> float:
    """Bytes per second, read and written, of a = b + 3 c by threads on these processors, for about so long.

    A thread's memory is on its NUMA node, because it writes it first. Threads keep their place only while they live.
    """
    threads = min(len(cpus), MOST_THREADS)
    ready, rates = threading.Barrier(threads), [0.0] * threads
    before = torch.get_num_threads()

    def work(index: int) -> None:
        os.sched_setaffinity(0, cpus)  # of this thread alone
        torch.set_num_threads(1)
        a, b, c = (torch.full((ARRAY_BYTES // 4,), value) for value in (0.0, 1.0, 2.0))
        ready.wait(60)
        begun, turns, passed = time.perf_counter(), 0, 0.0
        while passed < seconds:
            torch.add(b, c, alpha=3.0, out=a)
            turns += 1
            passed = time.perf_counter() - begun
        rates[index] = turns * 3 * ARRAY_BYTES / passed

    workers = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120 + 4 * seconds)
    torch.set_num_threads(before)
    if not all(rates):
        raise RuntimeError("a thread that measures the host's memory did not end")
    return sum(rates)
