"""The host under the devices: its memory, its cores, its local disk."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import torch

from ..common import fio
from ..common.ranks import Ranks
from . import numa
from .figures import RankFigures
from .measure import Meter
from .progress import Report, keep_reporting

COPY_BYTES = 2**28
MATRIX = 1024
DISK_BYTES, BLOCK_BYTES = 2**28, 2**22
DISK_PATIENCE_SECONDS = 600
NUMA_PATIENCE_SECONDS = 300


def memory_and_cores(ranks: Ranks, meter: Meter, seconds: float) -> RankFigures:
    """Copy in the host's memory and multiply on its cores, with all ranks' threads at once.

    Adds this rank's bytes per second (read and written) and fp32 TFLOP/s; the node's are the sums over its ranks.
    """
    figures = RankFigures()
    source = torch.ones(COPY_BYTES // 4)
    target = torch.zeros_like(source)
    a = torch.randn(MATRIX, MATRIX)
    out = torch.empty_like(a)
    ranks.gather(None)  # all begin together
    copy = meter.repeat(lambda: target.copy_(source), seconds / 2).summary()
    figures.speed("diagnostics_host_memory", 2 * source.nbytes, copy, "bytes/s", "bytes_per_second", "node")
    multiply = meter.repeat(lambda: torch.matmul(a, a, out=out), seconds / 2)
    figures.speed("diagnostics_host_cpu", 2 * MATRIX**3 / 1e12, multiply.summary(), "TFLOP/s", "tflops", "node")
    figures.add("diagnostics_host_cpu_sustained_ratio", multiply.sustained_ratio, "ratio", "node")
    return figures


def numa_memory(ranks: Ranks, meter: Meter, seconds: float) -> RankFigures:
    """The triad on one NUMA node after the other, on rank 0 alone.

    Adds the slowest node's bytes per second, and its share of the fastest one's where there are several.
    """
    figures = RankFigures()
    places = numa.nodes() if ranks.is_first else {}
    if not places:
        return figures
    try:
        with ranks.patience(NUMA_PATIENCE_SECONDS), keep_reporting(meter.report, NUMA_PATIENCE_SECONDS):
            rates = {node: numa.triad(cpus, seconds / len(places)) for node, cpus in places.items()}
    except (OSError, RuntimeError) as error:  # a container may not place its threads, or has no memory left
        figures.left_out["numa"] = str(error)[:200]
        return figures
    figures.by_numa_node = {str(node): round(rate) for node, rate in rates.items()}
    figures.add("diagnostics_numa_memory_bytes_per_second", min(rates.values()), "bytes/s", "node")
    if len(rates) > 1:
        figures.add("diagnostics_numa_balance_ratio", min(rates.values()) / max(rates.values()), "ratio", "node")
    return figures


def cpu_model() -> str | None:
    """The processors' name, by which nodes are compared: the host of one SKU of GPU may have others."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"^(?:model name|CPU part)\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip()[:120] if match else None


def disk(ranks: Ranks, meter: Meter, seconds: float) -> RankFigures:
    """Write a file to the stage's scratch directory and read it back past the page cache, on rank 0 alone.

    With fio where it is installed, else with plain writes and ``fsync``. A disk that cannot be used is left out, with
    the reason: that is no fault of a GPU.
    """
    figures = RankFigures()
    if not ranks.is_first:
        return figures
    directory = Path(os.environ.get("GPUVAL_WORK_DIR") or ".")
    write: float | None
    read: float | None
    try:
        with ranks.patience(DISK_PATIENCE_SECONDS):
            with keep_reporting(meter.report, seconds + 2 * fio.GRACE_SECONDS):  # fio's own deadlines
                measured = fio.run(directory, seconds, DISK_BYTES)
            if measured is None:
                write, read = _plain(directory, meter.report)
            else:
                sides = (measured.write, measured.read)
                write, read = (side.bytes_per_second if side else None for side in sides)
                if measured.problem:
                    figures.left_out["disk"] = measured.problem
    except OSError as error:
        figures.left_out["disk"] = f"{directory}: {error.strerror or error}"
        return figures
    for name, value in (("write", write), ("read", read)):
        if value:
            figures.add(f"diagnostics_disk_{name}_bytes_per_second", value, "bytes/s", "node")
    return figures


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
