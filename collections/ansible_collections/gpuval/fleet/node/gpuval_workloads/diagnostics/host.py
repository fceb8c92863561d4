"""Measures the host: its memory (also by NUMA node), its cores, its local disk."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import torch
from gpuval_node.hardware.cpu import cpu_list, processors
from gpuval_node.hardware.tree import Tree

from ..common import fio
from ..common.ranks import Ranks
from .measure import Meter, Report, keep_reporting

COPY_BYTES = 2**28
MATRIX = 1024
DISK_BYTES, BLOCK_BYTES = 2**28, 2**22
DISK_PATIENCE_SECONDS = 600
NUMA_PATIENCE_SECONDS = 300
NUMA_NODES = Path("/sys/devices/system/node")
ARRAY_BYTES = 2**25
"""Bytes of each of a thread's three arrays: those of all threads together are larger than a NUMA node's caches."""
MOST_THREADS = 16


def memory_and_cores(ranks: Ranks, meter: Meter, seconds: float) -> None:
    """Measure copies in the host's memory, then matrix products on its cores, on all ranks at once for ``seconds``. Add
    this rank's bytes per second (read and written) and fp32 TFLOP/s; their sums over the ranks are the node's."""
    source = torch.ones(COPY_BYTES // 4)
    target = torch.zeros_like(source)
    a = torch.randn(MATRIX, MATRIX)
    out = torch.empty_like(a)
    ranks.gather(None)  # all begin together
    copy = meter.repeat(lambda: target.copy_(source), seconds / 2).summary()
    meter.speed("diagnostics_host_memory", 2 * source.nbytes, copy, "bytes/s", "bytes_per_second", "node")
    multiply = meter.repeat(lambda: torch.matmul(a, a, out=out), seconds / 2)
    meter.speed("diagnostics_host_cpu", 2 * MATRIX**3 / 1e12, multiply.summary(), "TFLOP/s", "tflops", "node")
    meter.add("diagnostics_host_cpu_sustained_ratio", multiply.sustained_ratio, "ratio", "node")


def numa_nodes(system: Path = NUMA_NODES, usable: frozenset[int] | None = None) -> dict[int, list[int]]:
    """Return ``{NUMA node: CPUs that this process may use}``, without nodes that have none; ``system`` is in sysfs."""
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
    """Run STREAM's triad, a = b + 3 c, in threads on these CPUs for ``seconds``; return bytes per second, read and
    written. A thread's memory is on its NUMA node, because the thread is the first to write it."""
    threads = min(len(cpus), MOST_THREADS)
    ready, rates = threading.Barrier(threads), [0.0] * threads
    before = torch.get_num_threads()

    def work(index: int) -> None:
        os.sched_setaffinity(0, cpus)  # affects this thread alone
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


def numa_memory(ranks: Ranks, meter: Meter, seconds: float) -> None:
    """Measure memory bandwidth of each NUMA node in turn, on rank 0 alone, for ``seconds`` in all. Add the bytes per
    second of the slowest NUMA node and, with several, their ratio to those of the fastest."""
    cpus_by_node = numa_nodes() if ranks.is_first else {}
    if not cpus_by_node:
        return
    try:
        with ranks.patience(NUMA_PATIENCE_SECONDS), keep_reporting(meter.report, NUMA_PATIENCE_SECONDS):
            rates = {node: triad(cpus, seconds / len(cpus_by_node)) for node, cpus in cpus_by_node.items()}
    except (OSError, RuntimeError) as error:  # a container may not set affinities, or has no memory left
        meter.left_out["numa"] = str(error)[:200]
        return
    meter.by_numa_node = {str(node): round(rate) for node, rate in rates.items()}
    meter.add("diagnostics_numa_memory_bytes_per_second", min(rates.values()), "bytes/s", "node")
    if len(rates) > 1:
        meter.add("diagnostics_numa_balance_ratio", min(rates.values()) / max(rates.values()), "ratio", "node")


def cpu_model() -> str | None:
    """Return the model name of this host's CPU, None if unknown: hosts with the same GPU may have different CPUs."""
    first = next(iter(processors(Tree().read("/proc/cpuinfo") or "")), {})
    model = first.get("model name") or first.get("CPU part")
    return model[:120] if model else None


def disk(ranks: Ranks, meter: Meter, seconds: float) -> None:
    """Write a file to the stage's scratch directory and read it back without the page cache, on rank 0 alone: by fio
    for ``seconds``, without fio by plain writes and ``fsync``. A disk that cannot be used is left out with the reason:
    it is no fault of a GPU."""
    if not ranks.is_first:
        return
    directory = Path(os.environ.get("GPUVAL_WORK_DIR") or ".")
    rates: tuple[float | None, float | None]
    try:
        with ranks.patience(DISK_PATIENCE_SECONDS):
            with keep_reporting(meter.report, seconds + 2 * fio.GRACE_SECONDS):  # the deadlines of fio
                measured = fio.run(directory, seconds, DISK_BYTES)
            if measured is None:
                rates = _plain(directory, meter.report)
            else:
                write, read = measured.write, measured.read
                rates = (write.bytes_per_second if write else None, read.bytes_per_second if read else None)
                meter.left_out.update({"disk": measured.problem} if measured.problem else {})
    except OSError as error:
        meter.left_out["disk"] = f"{directory}: {error.strerror or error}"
        return
    for name, value in zip(("write", "read"), rates):
        if value:
            meter.add(f"diagnostics_disk_{name}_bytes_per_second", value, "bytes/s", "node")


def _plain(directory: Path, report: Report) -> tuple[float, float]:
    path = directory / "disk.bin"
    block = os.urandom(BLOCK_BYTES)
    try:
        begun = time.perf_counter()
        with path.open("wb", buffering=0) as file:
            for _ in range(DISK_BYTES // BLOCK_BYTES):
                file.write(block)
                report()
            os.fsync(file.fileno())
        written = time.perf_counter() - begun
        with path.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            begun = time.perf_counter()
            while file.read(BLOCK_BYTES):
                report()
        return DISK_BYTES / written, DISK_BYTES / (time.perf_counter() - begun)
    finally:
        path.unlink(missing_ok=True)
