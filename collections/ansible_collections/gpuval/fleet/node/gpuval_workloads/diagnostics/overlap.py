"""Measures the latency of kernel launches, and how well matrix products and a collective run at the same time."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..common.laps import REVISION, median_of
from ..common.ranks import Ranks
from .measure import Meter

LAUNCHES = 1000
GPU_MATRIX, CPU_MATRIX = 8192, 512
GPU_BYTES, CPU_BYTES = 2**30, 2**22


def launch_latency(ranks: Ranks, meter: Meter, seconds: float) -> None:
    """Launch tiny kernels one after another for ``seconds``; add the seconds of one launch, by the host's clock."""
    element = torch.zeros(1, device=ranks.device)

    def launch() -> None:
        for _ in range(LAUNCHES):
            element.add_(1)
        ranks.synchronize()

    dist.barrier()
    laps = meter.repeat(launch, seconds).summary()
    meter.add("diagnostics_launch_seconds", laps.median_seconds / LAUNCHES, "seconds")
    meter.add("diagnostics_launch_spread_ratio", laps.spread_ratio, "ratio")


def overlap(ranks: Ranks, meter: Meter, seconds: float) -> None:
    """Measure matrix products during an all-reduce that takes about as long, for ``seconds`` in all, as in training:
    add the time of both together divided by the time of the longer one alone. 1 is perfect overlap."""
    is_gpu = ranks.accelerator.is_gpu
    dtype = torch.bfloat16 if is_gpu else torch.float32
    size = GPU_MATRIX if is_gpu else CPU_MATRIX
    a = torch.randn(size, size, device=ranks.device).to(dtype)
    out = torch.empty_like(a)
    values = torch.ones((GPU_BYTES if is_gpu else CPU_BYTES) // 4, device=ranks.device)
    buffer = values.clone()

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.matmul(a, a, out=out)

    exchange = meter.time(lambda: dist.all_reduce(buffer), seconds / 4, prepare=lambda: buffer.copy_(values)).summary()
    once = meter.time(lambda: multiply(1), seconds / 4).summary()
    longest = ranks.greatest(exchange.median_seconds, once.median_seconds)
    times = max(1, round(longest[0] / longest[1]))
    alone = meter.time(lambda: multiply(times), seconds / 4).summary()

    def both() -> None:
        work = dist.all_reduce(buffer, async_op=True)
        multiply(times)
        work.wait()

    together = meter.time(both, seconds / 4, prepare=lambda: buffer.copy_(values)).summary()
    ratio = together.seconds / max(exchange.seconds, alone.seconds)
    of_medians = together.median_seconds / max(exchange.median_seconds, alone.median_seconds)
    meter.add("diagnostics_overlap_ratio", ratio, "ratio", revision=REVISION)
    meter.add(median_of("diagnostics_overlap_ratio"), of_medians, "ratio")
    meter.add("diagnostics_overlap_spread_ratio", together.spread_ratio, "ratio")
