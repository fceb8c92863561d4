"""Measures an all-reduce with P2P between GPUs turned off: over the node's NICs, or the host's memory without NICs. New
processes do it, since NCCL reads its settings once in a process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..common.device import TorchDevices
from ..common.launch import run_ranks
from ..common.result import RESULT_FILE_VARIABLE, WorkloadCrash, WorkloadFailure, WorkloadResult
from . import nccl_log

PREFIX = "diagnostics_p2p_off"
MOST_BYTES = 2**28
NICS = Path("/dev/infiniband")


def variables(nics: Path = NICS) -> dict[str, str]:
    """Return NCCL's variables that turn P2P off, and shared memory if there are RDMA NICs (files in ``nics``)."""
    return {"NCCL_P2P_DISABLE": "1", **({"NCCL_SHM_DISABLE": "1"} if any(nics.glob("uverbs*")) else {})}


def measure(result: WorkloadResult, arguments: Sequence[str], accelerator: TorchDevices, processes: int) -> None:
    """Add the figures of an all-reduce with P2P off to ``result``; if its ranks fail, the reason in ``left_out``."""
    without_p2p, before = WorkloadResult(), dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="nccl-", dir=os.environ.get("GPUVAL_WORK_DIR")) as directory:
        os.environ.update(variables())
        os.environ.pop(RESULT_FILE_VARIABLE, None)  # the file has the figures so far
        if accelerator.is_gpu:
            nccl_log.ask(os.environ, Path(directory))
        try:
            run_ranks(
                without_p2p, "gpuval_workloads.diagnostics.run", [*arguments, "--p2p-off"], accelerator, processes
            )
        except (WorkloadCrash, WorkloadFailure) as error:
            result.environment.setdefault("left_out", {})["p2p_off"] = str(error)[:400]
        finally:
            os.environ.clear()
            os.environ.update(before)
    for metric in without_p2p.metrics:
        if metric["name"].startswith(PREFIX):
            result.add_metric(**metric)
    result.series += [curve for curve in without_p2p.series if curve["name"].startswith(PREFIX)]
    transport = without_p2p.fingerprints.get("diagnostics_transport")
    if transport:
        result.fingerprints[f"{PREFIX}_transport"] = transport
