"""What every device sends to every other: one figure a link and direction."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..common.ranks import Ranks
from .figures import RankFigures
from .measure import Meter

GPU_BYTES, CPU_BYTES = 2**28, 2**22


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs in which everyone meets everyone once (the circle method)."""
    players: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    pairs_by_round = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = zip(players[:half], reversed(players[half:]))
        pairs_by_round.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        players = [players[0], players[-1], *players[1:-1]]
    return pairs_by_round


def link(ranks: Ranks, source: int, target: int) -> str:
    kind = "gpu" if ranks.accelerator.is_gpu else "rank"
    return f"link:{kind}{source}>{kind}{target}"


def peers(ranks: Ranks, meter: Meter, seconds: float) -> RankFigures:
    """Send between all pairs, in rounds of disjoint pairs, one direction at a time; the receiver times and compares.

    Adds bytes per second and wrong words of every link into this rank.
    """
    figures = RankFigures()
    if ranks.world_size < 2:
        return figures
    words = (GPU_BYTES if ranks.accelerator.is_gpu else CPU_BYTES) // 4
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
            received.zero_()  # one that brings nothing shows
            exchange()
            if target == ranks.rank:
                scope = link(ranks, source, target)
                figures.speed("diagnostics_peer", received.nbytes, laps, "bytes/s", "bytes_per_second", scope)
                wrong = int((received != pattern * (2 * source + 1) + source).sum())
                figures.add("diagnostics_peer_error_count", wrong, "count", scope)
    return figures
