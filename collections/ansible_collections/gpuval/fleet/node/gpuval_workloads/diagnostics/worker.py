"""One rank of the diagnostics."""

from __future__ import annotations

import sys

from ..common.ranks import Ranks, leave, run_rank, software_environment
from ..common.result import Result
from .config import parse_arguments
from .matmul import precisions
from .run import behind, run_parts, wrong

SHOWN = 4
MOST_OF_THE_MEMORY = 0.8


def main(ranks: Ranks, result: Result) -> None:
    config = parse_arguments(sys.argv[1:])
    result.environment.update(software_environment(ranks))
    everyone = run_parts(ranks, result, config.seconds)
    first = precisions(ranks)[0][0].name
    slowest, scope = min(
        (result.metric(f"diagnostics_matmul_{first}_tflops", ranks.scope_of(rank)), ranks.scope_of(rank))
        for rank in range(ranks.world_size)
    )
    parts = [f"{ranks.world_size} x {ranks.accelerator.kind}: slowest {first} product {slowest:.3g} TFLOP/s ({scope})"]
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


if __name__ == "__main__":
    leave(run_rank(main))
