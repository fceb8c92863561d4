"""Program of the diagnostics on a node: starts a rank per GPU and adopts their result."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from ..common.device import choose_accelerator
from ..common.launch import process_count, run_ranks
from ..common.result import WorkloadResult, run_workload
from . import nccl_log, p2p_off
from .config import parse_arguments


def main(result: WorkloadResult) -> None:
    arguments = sys.argv[1:]
    config = parse_arguments(arguments)
    accelerator = choose_accelerator()
    processes = process_count(accelerator, config.processes)
    with tempfile.TemporaryDirectory(prefix="nccl-", dir=os.environ.get("GPUVAL_WORK_DIR")) as directory:
        if accelerator.is_gpu:
            nccl_log.ask(os.environ, Path(directory))
            # Pairs of ranks send one after another on purpose: silence PyTorch's warning about that.
            os.environ.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")
        run_ranks(result, "gpuval_workloads.diagnostics.run", arguments, accelerator, processes)
    if config.p2p_off_seconds and processes > 1 and accelerator.kind != "hpu":  # Gaudi cannot turn P2P off
        p2p_off.measure(result, arguments, accelerator, processes)


if __name__ == "__main__":
    sys.exit(run_workload(main))
