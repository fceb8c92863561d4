"""Program of the training on a node: starts a rank per GPU and adopts their result."""

from __future__ import annotations

import sys

from ..common.device import choose_accelerator
from ..common.launch import process_count, run_ranks
from ..common.result import WorkloadResult, run_workload
from .config import parse_arguments


def main(result: WorkloadResult) -> None:
    arguments = sys.argv[1:]
    config = parse_arguments(arguments)
    accelerator = choose_accelerator()
    processes = process_count(accelerator, config.processes)
    print(f"training {config.model} in {processes} processes on {accelerator.kind}", flush=True)
    run_ranks(result, "gpuval_workloads.training.worker", arguments, accelerator, processes)


if __name__ == "__main__":
    sys.exit(run_workload(main))
