"""Copies between host and device: each device alone, then all at once."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..common.ranks import Ranks
from .figures import Findings, Timing
from .measure import Meter

GPU_BYTES, CPU_BYTES = 2**28, 2**24
MOST_ALONE_SECONDS = 10.0
"""Of one direction of one device: the others wait, and print nothing."""
DIRECTIONS = ("host_to_device", "device_to_host")


def transfers(ranks: Ranks, meter: Meter, seconds: float) -> Findings:
    """Copy pinned host memory to the device and back; adds bytes per second of both ways, alone and all at once.

    What came back is compared with what was sent.
    """
    found = Findings()
    size = GPU_BYTES if ranks.accelerator.is_gpu else CPU_BYTES
    host = torch.randint(-(2**31), 2**31 - 1, (size // 4,), dtype=torch.int32)
    back = torch.zeros_like(host)
    if ranks.accelerator.is_gpu:
        host, back = host.pin_memory(), back.pin_memory()
    device = torch.zeros(host.shape, dtype=host.dtype, device=ranks.device)
    copies = {
        "host_to_device": lambda: device.copy_(host, non_blocking=True),
        "device_to_host": lambda: back.copy_(device, non_blocking=True),
    }
    alone = min(seconds / (2 * (ranks.world_size + 1)), MOST_ALONE_SECONDS)
    share = seconds / 2 - alone * ranks.world_size
    for turn in range(ranks.world_size):
        dist.barrier()
        if turn == ranks.rank:
            for direction in DIRECTIONS:
                timing = meter.time(copies[direction], alone, together=False)
                _add(found, direction, size, timing)
        ranks.tick()  # before the barrier: the one whose turn it is has counted least
        meter.report()
    dist.barrier()
    for direction in DIRECTIONS:
        _add(found, f"{direction}_together", size, meter.time(copies[direction], share, sustain=True))
    ranks.synchronize()
    torch.bitwise_not(host, out=back)  # wrong everywhere: a copy that writes nothing shows
    device.bitwise_not_()
    for direction in DIRECTIONS:
        copies[direction]()
        ranks.synchronize()
    found.add("diagnostics_transfer_error_count", int((back != host).sum()), "count")
    return found


def _add(found: Findings, name: str, size: int, timing: Timing) -> None:
    found.rate(f"diagnostics_{name}", size, timing, "bytes/s", "bytes_per_second")
