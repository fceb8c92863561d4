"""One rank of the diagnostics."""

from __future__ import annotations

import sys

from ..common.ranks import Ranks, run_rank, software_environment
from ..common.result import Result
from .checks import run_checks
from .config import parse_arguments


def main(ranks: Ranks, result: Result) -> None:
    config = parse_arguments(sys.argv[1:])
    result.environment.update(software_environment(ranks))
    figures = run_checks(ranks, result, config.seconds)
    slowest = min(range(len(figures)), key=lambda rank: figures[rank].matmul_tflops)
    worst = max(theirs.matmul_error_ratio for theirs in figures)
    result.message = (
        f"{ranks.world_size} x {ranks.accelerator.kind}: slowest matrix product {figures[slowest].matmul_tflops:.3g} "
        f"TFLOP/s ({ranks.scope_of(slowest)}), greatest error {worst:.2g}, "
        f"{result.metric('diagnostics_collective_error_count')} wrong elements in collectives"
    )


if __name__ == "__main__":
    sys.exit(run_rank(main))
