"""Program of the fingerprint stage: sets variables for reproducible results, starts a rank per GPU."""

from __future__ import annotations

import os
import sys

from ..common.device import choose_accelerator
from ..common.launch import process_count, run_ranks
from ..common.result import WorkloadResult, run_workload
from .group import REQUIRED_ENVIRONMENT
from .sizes import parse_arguments


def main(result: WorkloadResult) -> None:
    arguments = sys.argv[1:]
    config = parse_arguments(arguments)
    os.environ.update(REQUIRED_ENVIRONMENT)  # before any process starts CUDA
    accelerator = choose_accelerator()
    processes = process_count(accelerator, config.processes)
    run_ranks(result, "gpuval_workloads.fingerprint.worker", arguments, accelerator, processes)


if __name__ == "__main__":
    sys.exit(run_workload(main))
