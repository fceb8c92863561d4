"""The operations of the diagnostics written plainly in torch, timed by the host's clock around many of them.

One rank of ``torchrun``; imports nothing of gpuval. Rank 0 writes ``{name: value}`` to the file named by ``--out``, the
slowest rank's rate, or the mean of collectives.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

GIB = 2**30
IS_GPU = torch.cuda.is_available()


class Rank:
    def __init__(self, seconds: float) -> None:
        self.rank, self.world, self.seconds = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), seconds
        self.device = torch.device("cuda", self.rank) if IS_GPU else torch.device("cpu")
        if IS_GPU:
            torch.cuda.set_device(self.device)
        dist.init_process_group("nccl" if IS_GPU else "gloo", **({"device_id": self.device} if IS_GPU else {}))

    def timed(self, work: Callable[[], object], share: float = 1.0, together: bool = True) -> float:
        """Seconds of one, from the host's clock around as many as fill the time."""
        for _ in range(3):
            work()
        wait()
        begun = time.perf_counter()
        work()
        wait()
        once = max(time.perf_counter() - begun, 1e-6)
        turns = torch.tensor([max(5, int(self.seconds * share / once))], device=self.device)
        if together:
            dist.broadcast(turns, src=0)
            dist.barrier()
        number = int(turns)
        wait()
        begun = time.perf_counter()
        for _ in range(number):
            work()
        wait()
        return (time.perf_counter() - begun) / number

    def all(self, value: float) -> list[float]:
        values: list = [None] * self.world
        dist.all_gather_object(values, value)
        return values


def wait() -> None:
    if IS_GPU:
        torch.cuda.synchronize()


def products(rank: Rank) -> dict[str, float]:
    n = 8192 if IS_GPU else 1024
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32}
    figures = {}
    for name, dtype in (kinds if IS_GPU else {"fp32": torch.float32, "bf16": torch.bfloat16}).items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = (torch.randn(n, n, device=rank.device).to(dtype) for _ in range(2))
        c = torch.empty_like(a)
        took = rank.timed(lambda a=a, b=b, c=c: torch.mm(a, b, out=c), 3 if not figures else 1)
        figures[f"matmul_{name}_tflops"] = min(rank.all(2 * n**3 / took / 1e12))
    if IS_GPU and torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 9):
        a, b = (torch.randn(n, n, device=rank.device).to(torch.float8_e4m3fn) for _ in range(2))
        columns, one = b.t().contiguous().t(), torch.ones((), device=rank.device)
        took = rank.timed(lambda: torch._scaled_mm(a, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16))
        figures["matmul_fp8_tflops"] = min(rank.all(2 * n**3 / took / 1e12))
    return figures


def memory(rank: Rank) -> dict[str, float]:
    size = 4 * GIB if IS_GPU else 2**26
    x, y = (torch.randint(256, (size,), dtype=torch.uint8, device=rank.device) for _ in range(2))
    return {"memory_bytes_per_second": min(rank.all(2 * size / rank.timed(lambda: y.copy_(x))))}


def transfers(rank: Rank) -> dict[str, float]:
    size = 2**28 if IS_GPU else 2**24
    host = torch.randint(256, (size,), dtype=torch.uint8, pin_memory=IS_GPU)
    there = torch.ones(size, dtype=torch.uint8, device=rank.device)
    figures = {}
    for name, to, source in (("host_to_device", there, host), ("device_to_host", host, there)):

        def copy(to=to, source=source) -> None:
            to.copy_(source, non_blocking=True)

        alone = 0.0
        for turn in range(rank.world):
            dist.barrier()
            wait()
            if turn == rank.rank:
                alone = size / rank.timed(copy, 0.25, together=False)
        figures[f"{name}_bytes_per_second"] = min(rank.all(alone))
        figures[f"{name}_together_bytes_per_second"] = min(rank.all(size / rank.timed(copy)))
    return figures


def collectives(rank: Rank) -> dict[str, float]:
    if rank.world < 2:
        return {}
    size = 2**22
    if IS_GPU:
        torch.cuda.empty_cache()
        size = 8 * GIB if torch.cuda.mem_get_info()[0] > 36 * GIB else GIB
    world = rank.world
    full = torch.randn(size // 4, device=rank.device)
    part = torch.randn(size // 4 // world, device=rank.device)
    out = torch.empty_like(full)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    runs = {
        "all_reduce": (2 * (world - 1) / world, lambda: dist.all_reduce(full)),
        "all_gather": ((world - 1) / world, lambda: gather(full, part)),
        "reduce_scatter": ((world - 1) / world, lambda: scatter(part, full)),
        "all_to_all": ((world - 1) / world, lambda: dist.all_to_all_single(out, full)),
        "broadcast": (1.0, lambda: dist.broadcast(full, src=0)),
    }
    figures = {}
    for name, (factor, work) in runs.items():
        rates = rank.all(size / rank.timed(work) * factor)
        figures[f"{name}_bus_bytes_per_second"] = sum(rates) / world
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options = parser.parse_args()
    rank = Rank(options.seconds)
    figures = {}
    for part in (products, memory, transfers, collectives):
        figures.update(part(rank))
    if rank.rank == 0:
        options.out.write_text(json.dumps(figures), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
