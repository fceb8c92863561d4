"""Measures copies between host and devices (each device alone, in one and both directions, then all at once), and
between all pairs of devices, each link and direction."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from ..common.laps import LapStatistics
from ..common.ranks import Ranks
from .measure import Meter

GPU_BYTES, CPU_BYTES = 2**28, 2**24
GPU_PEER_BYTES, CPU_PEER_BYTES = 2**28, 2**22
MOST_ALONE_SECONDS = 10.0
"""Most seconds of a measurement of one device alone: the other ranks wait meanwhile, and print nothing."""
DIRECTIONS = ("host_to_device", "device_to_host")


def transfers(ranks: Ranks, meter: Meter, seconds: float) -> None:
    """Copy pinned host memory to the device and back for ``seconds``, and compare. Add bytes per second of each
    direction, with this device alone and with all at once, and of both directions together."""
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
    copy_both_ways = _both_ways(ranks, copies["host_to_device"], torch.zeros_like(device), back)

    def add(name: str, amount: int, laps: LapStatistics) -> None:
        meter.speed(f"diagnostics_{name}", amount, laps.summary(), "bytes/s", "bytes_per_second")

    alone = min(seconds / (3 * (ranks.world_size + 1)), MOST_ALONE_SECONDS)
    share = (seconds - 3 * alone * ranks.world_size) / 2
    for turn in range(ranks.world_size):
        dist.barrier()
        if turn == ranks.rank:
            for direction in DIRECTIONS:
                add(direction, size, meter.time(copies[direction], alone, together=False))
            add("both_ways", 2 * size, meter.time(copy_both_ways, alone, together=False))
        ranks.tick()  # before the barrier: the rank whose turn it is has the lowest count
        meter.report()
    dist.barrier()
    for direction in DIRECTIONS:
        add(f"{direction}_together", size, meter.time(copies[direction], share))
    ranks.synchronize()
    torch.bitwise_not(host, out=back)  # wrong everywhere: a copy that writes nothing shows
    device.bitwise_not_()
    for direction in DIRECTIONS:
        copies[direction]()
        ranks.synchronize()
    meter.add("diagnostics_transfer_error_count", int((back != host).sum()), "count")


def _both_ways(
    ranks: Ranks, to_device: Callable[[], object], source: torch.Tensor, target: torch.Tensor
) -> Callable[[], None]:
    """Return a function that calls ``to_device`` and copies ``source`` to ``target`` on the host; on CUDA at once."""
    if ranks.accelerator.kind != "cuda":

        def in_turn() -> None:
            to_device()
            target.copy_(source, non_blocking=True)

        return in_turn
    streams = [torch.cuda.Stream(ranks.device) for _ in range(2)]

    def at_once() -> None:
        now = torch.cuda.current_stream(ranks.device)
        for stream, copy in zip(streams, (to_device, lambda: target.copy_(source, non_blocking=True))):
            stream.wait_stream(now)
            with torch.cuda.stream(stream):
                copy()
        for stream in streams:
            now.wait_stream(stream)

    return at_once


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs in which each of ``count`` ranks meets each other once (the circle method)."""
    players: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    pairs_by_round = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = zip(players[:half], reversed(players[half:]))
        pairs_by_round.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        players = [players[0], players[-1], *players[1:-1]]
    return pairs_by_round


def peers(ranks: Ranks, meter: Meter, seconds: float) -> None:
    """Measure transfers between all pairs of devices for ``seconds`` in all, in rounds of disjoint pairs, one direction
    at a time. The receiver measures and compares: it adds bytes per second and wrong words of each link to it."""
    if ranks.world_size < 2:
        return
    words = (GPU_PEER_BYTES if ranks.accelerator.is_gpu else CPU_PEER_BYTES) // 4
    pattern = torch.arange(words, dtype=torch.int32, device=ranks.device)
    sent, received = pattern * (2 * ranks.rank + 1) + ranks.rank, torch.zeros_like(pattern)
    plan = rounds(ranks.world_size)
    share = seconds / (2 * len(plan))
    for pairs in plan:
        pair = next((pair for pair in pairs if ranks.rank in pair), None)
        for forward in (True, False):
            source, target = (pair if forward else pair[::-1]) if pair else (-1, -1)
            received.zero_()

            def exchange(source=source, target=target) -> None:
                if source == ranks.rank:
                    dist.send(sent, target)
                elif target == ranks.rank:
                    dist.recv(received, source)

            laps = meter.time(exchange, share).summary()
            received.zero_()  # reveals a transfer that brings nothing
            exchange()
            if target == ranks.rank:
                kind = "gpu" if ranks.accelerator.is_gpu else "rank"
                scope = f"link:{kind}{source}>{kind}{target}"
                meter.speed("diagnostics_peer", received.nbytes, laps, "bytes/s", "bytes_per_second", scope)
                wrong = int((received != pattern * (2 * source + 1) + source).sum())
                meter.add("diagnostics_peer_error_count", wrong, "count", scope)
