"""The checks of devices and collectives, each timed and each held against a known answer.

All ranks run a check at the same time, so that power, cooling and memory are shared as in real work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ..common.ranks import Ranks
from ..common.result import Result
from ..common.stats import median
from ..common.timing import Stopwatch

GPU_MATRIX, CPU_MATRIX = 8192, 1024
GPU_COPY_BYTES, CPU_COPY_BYTES = 2**30, 2**26
GPU_MESSAGE_BYTES, CPU_MESSAGE_BYTES = 2**26, 2**22

ROWS_PER_SAMPLE = 64
"""One row in so many is checked: no tile that a GPU's kernels write for large matrices is lower."""
MIN_TURNS, MAX_TURNS = 3, 20_000
ERROR_LIMITS = {"bf16": 1e-2, "fp32": 1e-4}
"""Greatest relative error of a product that rounding explains.

bf16 results have 8 significant bits: rounded they err by at most 2^-8 = 4e-3, cut off by 8e-3. fp32 sums of n terms err
by at most n 2^-24 of the terms' magnitudes, 6e-5 for n = 1,024 (Higham, Accuracy and Stability of Numerical Algorithms,
2.2 and 3.1)."""


@dataclass(frozen=True)
class Figures:
    """What one rank measured: the product's rate and error, the memory's rate, times and errors of collectives."""

    matmul_tflops: float
    matmul_error_ratio: float
    memory_bytes_per_second: float
    memory_error_count: int
    all_reduce_seconds: float
    all_gather_seconds: float
    collective_error_count: int


def run_checks(ranks: Ranks, result: Result, seconds: float) -> list[Figures]:
    """Run every check, for ``seconds`` in all; add the metrics to rank 0's result and return every rank's figures."""
    is_gpu = ranks.accelerator.is_gpu
    ranks.say(f"matrix products on {ranks.world_size} x {ranks.accelerator.kind}")
    tflops, error = matmul(ranks, GPU_MATRIX if is_gpu else CPU_MATRIX, seconds * 0.6)
    ranks.say(f"matrix products: {tflops:.3g} TFLOP/s on rank 0; memory")
    rate, copy_errors = memory_copy(ranks, GPU_COPY_BYTES if is_gpu else CPU_COPY_BYTES, seconds * 0.2)
    ranks.say(f"memory: {rate / 1e9:,.1f} GB/s on rank 0; collectives")
    message_bytes = GPU_MESSAGE_BYTES if is_gpu else CPU_MESSAGE_BYTES
    reduce_seconds, reduce_errors = all_reduce(ranks, message_bytes, seconds * 0.1)
    gather_seconds, gather_errors = all_gather(ranks, message_bytes, seconds * 0.1)
    mine = Figures(tflops, error, rate, copy_errors, reduce_seconds, gather_seconds, reduce_errors + gather_errors)
    everyone = ranks.gather(mine)
    result.environment.update(
        matmul_size=GPU_MATRIX if is_gpu else CPU_MATRIX,
        matmul_precision=matmul_precision(ranks),
        collective_message_bytes=message_bytes,
    )
    _add_metrics(result, ranks, everyone)
    return everyone


def matmul_precision(ranks: Ranks) -> str:
    return "bf16" if ranks.accelerator.is_gpu else "fp32"


def matmul(ranks: Ranks, size: int, seconds: float) -> tuple[float, float]:
    """Multiply square matrices for so long; return the median TFLOP/s and the relative error of the worst row.

    The error is the greater of the first and the last product's, over sampled rows, against the same rows computed in
    float64 on the host from the host's own copy: a device does not vouch for itself, nor for what reached it.
    """
    dtype = torch.bfloat16 if ranks.accelerator.is_gpu else torch.float32
    generator = torch.Generator().manual_seed(ranks.rank)
    on_host = [torch.randn(size, size, generator=generator).to(dtype) for _ in range(2)]
    a, b = (matrix.to(ranks.device) for matrix in on_host)
    out = torch.empty_like(a)
    rows = torch.arange(0, size, ROWS_PER_SAMPLE)
    rows += torch.randint(ROWS_PER_SAMPLE, rows.shape, generator=generator)
    reference = on_host[0][rows].double() @ on_host[1].double()

    def error() -> float:
        sampled = out.cpu()[rows].double()
        return float(((sampled - reference).norm(dim=1) / reference.norm(dim=1)).max())

    torch.matmul(a, b, out=out)
    first = error()
    laps = _repeat(ranks, seconds, lambda: torch.matmul(a, b, out=out))
    errors = (first, error())
    return 2 * size**3 / median(laps) / 1e12, next((e for e in errors if e != e), max(errors))  # noqa: PLR0124 - NaN


def memory_copy(ranks: Ranks, size_bytes: int, seconds: float) -> tuple[float, int]:
    """Copy within the device's memory for so long; return bytes read and written per second, and wrong elements."""
    source = torch.arange(size_bytes // 4, dtype=torch.int32, device=ranks.device)
    target = torch.zeros_like(source)
    laps = _repeat(ranks, seconds, lambda: target.copy_(source))
    return 2 * source.nbytes / median(laps), int((target != source).sum())


def all_reduce(ranks: Ranks, size_bytes: int, seconds: float) -> tuple[float, int]:
    """Sum over all ranks for so long; return the median seconds and this rank's wrong elements.

    Whole numbers small enough to be exact in fp32 whatever the order of the sum, so any difference is an error.
    """
    pattern = torch.arange(size_bytes // 4, device=ranks.device) % 97
    values = (pattern * (ranks.rank + 1)).float()
    buffer = values.clone()
    errors = 0

    def reduce() -> None:
        buffer.copy_(values)
        dist.all_reduce(buffer)

    laps = _repeat(ranks, seconds, reduce)
    expected = (pattern * (ranks.world_size * (ranks.world_size + 1) // 2)).float()
    errors += int((buffer != expected).sum())
    return median(laps), errors


def all_gather(ranks: Ranks, size_bytes: int, seconds: float) -> tuple[float, int]:
    """Collect ``size_bytes`` in all from all ranks for so long; return as :func:`all_reduce` does."""
    elements = size_bytes // 4 // ranks.world_size
    pattern = torch.arange(elements, dtype=torch.int32, device=ranks.device)

    def of(rank: int) -> Tensor:
        return pattern * (rank + 1) + rank

    mine = of(ranks.rank)
    gathered = [torch.zeros_like(mine) for _ in range(ranks.world_size)]
    laps = _repeat(ranks, seconds, lambda: dist.all_gather(gathered, mine))
    return median(laps), sum(int((theirs != of(rank)).sum()) for rank, theirs in enumerate(gathered))


def _repeat(ranks: Ranks, seconds: float, work: Callable[[], object]) -> list[float]:
    """Do the work again and again on all ranks, as long as rank 0 has time; return the seconds of each.

    Starts together, after one untimed turn. A second one says how many turns fill the time; rank 0's count holds for
    all, since collectives must be called equally often. The device is never more than about a second behind.
    """
    work()
    dist.barrier()
    ranks.synchronize()
    trial = Stopwatch(ranks.accelerator)
    work()
    trial.lap()
    once = max(trial.laps()[0], 1e-6)
    turns = torch.tensor([min(max(MIN_TURNS, int(seconds / once)), MAX_TURNS)], device=ranks.device)
    dist.broadcast(turns, src=0)
    turns_per_second = max(1, int(1 / once))
    watch = Stopwatch(ranks.accelerator)
    for turn in range(int(turns)):
        work()
        watch.lap()
        if turn % turns_per_second == 0:
            ranks.synchronize()
    return watch.laps()


def _add_metrics(result: Result, ranks: Ranks, everyone: list[Figures]) -> None:
    add = result.add_metric
    for rank, figures in enumerate(everyone):
        scope = ranks.scope_of(rank)
        add("diagnostics_matmul_tflops", figures.matmul_tflops, "TFLOP/s", scope)
        add("diagnostics_matmul_error_ratio", figures.matmul_error_ratio, "ratio", scope)
        add("diagnostics_memory_bytes_per_second", figures.memory_bytes_per_second, "bytes/s", scope)
        add("diagnostics_memory_error_count", figures.memory_error_count, "count", scope)
    add("diagnostics_processes_count", ranks.world_size, "count")
    add("diagnostics_collective_error_count", sum(figures.collective_error_count for figures in everyone), "count")
    add("diagnostics_all_reduce_seconds", max(figures.all_reduce_seconds for figures in everyone), "seconds")
    add("diagnostics_all_gather_seconds", max(figures.all_gather_seconds for figures in everyone), "seconds")
