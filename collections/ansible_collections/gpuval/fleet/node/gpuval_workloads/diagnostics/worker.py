"""One rank of the diagnostics."""

from __future__ import annotations

import sys

from ..common.ranks import Ranks, leave, run_rank, software_environment
from ..common.result import WorkloadResult
from . import p2p_off
from .collectives import COLLECTIVES, collectives
from .config import parse_arguments
from .figures import RankFigures
from .matmul import precisions
from .measure import Meter
from .run import DiagnosticsPart, behind, run_parts, wrong

SHOWN = 4
MOST_OF_THE_MEMORY = 0.8


def main(ranks: Ranks, result: WorkloadResult) -> None:
    config = parse_arguments(sys.argv[1:])
    result.environment.update(software_environment(ranks))
    if config.p2p_off:
        part = DiagnosticsPart("all-reduce without P2P", 1.0, _without_p2p)
        run_parts(ranks, result, config.p2p_off_seconds, (part,))
        return
    everyone = run_parts(ranks, result, config.seconds)
    precision = precisions(ranks)[0][0].name
    slowest, scope = min(
        (result.metric(f"diagnostics_matmul_{precision}_tflops", ranks.scope_of(rank)), ranks.scope_of(rank))
        for rank in range(ranks.world_size)
    )
    parts = [
        f"{ranks.world_size} x {ranks.accelerator.kind}: slowest {precision} product {slowest:.3g} TFLOP/s ({scope})"
    ]
    if ranks.world_size > 1:
        rate = result.metric("diagnostics_all_reduce_bus_bytes_per_second") or 0.0
        parts.append(f"all_reduce {rate / 1e9:.3g} GB/s on the bus")
    errors = sum(figure.value or 0 for figures in everyone for figure in wrong(figures))
    parts.append(f"{errors} wrong words")
    parts += [
        f"{metric['scope']}: only {metric['value']:.0%} of its memory was free to be tested"
        for metric in result.metrics
        if metric["name"] == "diagnostics_memory_tested_ratio" and metric["value"] < MOST_OF_THE_MEMORY
    ]
    odd = behind(result)
    if odd and ranks.accelerator.is_gpu:  # the cores of a CPU node are shared with all that runs there
        more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
        parts.append(f"behind the others: {', '.join(odd[:SHOWN])}{more}")
    result.message = "; ".join(parts)


def _without_p2p(ranks: Ranks, meter: Meter, seconds: float) -> RankFigures:
    return collectives(ranks, meter, seconds, p2p_off.PREFIX, COLLECTIVES[:1], p2p_off.MOST_BYTES)


if __name__ == "__main__":
    leave(run_rank(main))
