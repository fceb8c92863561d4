"""Builds the environment variables that a stage gets."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Optional

from gpuval_node.node_directory import inherited

from gpuval_runner.descendants import MARKER_VARIABLE, stage_marker
from gpuval_runner.layout import DATASET_FOLDER, DATASETS_INSIDE
from gpuval_runner.plan import NodePlan, PlannedAccelerator, Stage, expand

#: Environment variables by which the runner finds the container engines of its user. Stages do not inherit them.
ENGINE_VARIABLES = (
    *("DOCKER_*", "CONTAINER_HOST", "CONTAINERS_*", "STORAGE_*"),
    *("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS"),
)
#: File in a stage's scratch directory that describes the gang: the nodes of a multi-node test, this node among them.
GANG_FILE = "gang.json"
GANG_RECORDS_FILE = "gang_records.json"
#: Folder in the node directory with the SSH keys for logins between the nodes of a multi-node test.
SSH_KEYS = "ssh"
MAD_VENDORS = {"nvidia": "NVIDIA", "amd": "AMD", "gaudi": "GAUDI", "cpu": "CPU"}


@dataclass(frozen=True)
class StagePaths:
    """Paths that a stage gets in its environment: on the node, or as its container sees them."""

    work: Path
    temporary: Path
    models: Path
    runner: Path
    workloads: Path
    rclone_config: Path
    run: Path = Path("/")

    @property
    def result(self) -> Path:
        return self.work / "result.json"

    def dataset(self, name: str) -> Path:
        """Return a dataset's folder in the model cache."""
        return self.models / f"{DATASET_FOLDER}{name}"


def handed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that a new runner needs: those that stages inherit and those of the engines."""
    engines = {n: v for n, v in environment.items() if any(fnmatchcase(n, pattern) for pattern in ENGINE_VARIABLES)}
    return {**inherited(environment), **engines}


def placeholders(plan: NodePlan, paths: StagePaths, python: str = "") -> dict[str, str]:
    """Return the values of placeholders such as ``{work_dir}`` in a stage's command and environment, by name. `python`
    is the interpreter in the stage's image, which also runs the runner there; empty on the node itself."""
    return {
        "python": python or plan.python,
        "runner": str(paths.runner),
        "runner_python": python or sys.executable,
        "workloads": str(paths.workloads),
        "work_dir": str(paths.work),
        "models_dir": str(paths.models),
        "run_dir": str(paths.run),
        "node": plan.node,
        "run_id": plan.run_id,
    }


def detected(declared: PlannedAccelerator, facts: Optional[Mapping[str, Any]]) -> PlannedAccelerator:
    """Return the accelerator for later stages: declared fields as declared, others as the facts stage found them, whose
    record has the environment `facts` (None: no such record)."""
    vendor, count, environment = declared.vendor, declared.count, facts or {}
    accelerator, gpus = environment.get("accelerator"), environment.get("gpus")
    accelerator = accelerator if isinstance(accelerator, dict) else {}
    gpu = gpus[0] if isinstance(gpus, list) and gpus and isinstance(gpus[0], dict) else {}
    texts = (gpu.get(name) for name in ("architecture", "name", "runtime_version"))
    if vendor == "auto" and accelerator.get("vendor") in MAD_VENDORS:
        vendor = accelerator["vendor"]
    if count is None and accelerator.get("vendor") == vendor and type(accelerator.get("count")) is int:
        count = accelerator["count"]
    return PlannedAccelerator(vendor, count, *(text[:64] if isinstance(text, str) else "" for text in texts))


def build(
    plan: NodePlan,
    stage: Stage,
    paths: StagePaths,
    accelerator: PlannedAccelerator,
    environment: Mapping[str, str],
    python: str = "",
) -> dict[str, str]:
    """Return all environment variables of a stage. `environment` is the runner's own; `python` as in `placeholders`."""
    count = "" if accelerator.count is None else str(accelerator.count)
    cache = paths.work / "cache"
    values = {
        **inherited(environment),
        MARKER_VARIABLE: stage_marker(plan.run_id, plan.node, stage.name, plan.attempt),
        "GPUVAL_RESULT_FILE": str(paths.result),
        "GPUVAL_RUN_ID": plan.run_id,
        "GPUVAL_NODE": plan.node,
        "GPUVAL_STAGE": stage.name,
        "GPUVAL_ATTEMPT": str(plan.attempt),
        "GPUVAL_WORK_DIR": str(paths.work),
        "GPUVAL_MODELS_DIR": str(paths.models),
        "GPUVAL_RCLONE_CONFIG": str(paths.rclone_config),
        "GPUVAL_ACCELERATOR": accelerator.vendor,
        "GPUVAL_GPU_COUNT": count,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # so that gpu:3 of a workload is gpu:3 of nvidia-smi and of the facts
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(paths.temporary),
        "XDG_CACHE_HOME": str(cache),
        "HF_HOME": str(cache / "huggingface"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "torchinductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "MAD_SYSTEM_NGPUS": count,
        "MAD_RUNTIME_NGPUS": count,
        "MAD_GPU_VENDOR": MAD_VENDORS.get(accelerator.vendor, ""),
        "MAD_SYSTEM_GPU_ARCHITECTURE": accelerator.architecture,
        "MAD_SYSTEM_GPU_PRODUCT_NAME": accelerator.product,
        "MAD_SYSTEM_HIP_VERSION": accelerator.version if accelerator.vendor == "amd" else "",
        "MAD_MODEL_NAME": stage.workload,
    }
    for name in stage.datasets:
        folder = DATASETS_INSIDE / name if plan.in_container(stage) else paths.dataset(name)
        values[f"GPUVAL_DATASET_{name.upper()}"] = str(folder)
    if plan.gang:
        values |= {"GPUVAL_GANG_FILE": str(paths.work / GANG_FILE), "GPUVAL_GANG_KEYS": str(paths.run / SSH_KEYS)}
    names = placeholders(plan, paths, python)
    stage_values = {name: expand(value, names) for name, value in stage.environment.items() if name != MARKER_VARIABLE}
    path = [str(paths.workloads), *filter(None, [stage_values.pop("PYTHONPATH", "")])]
    return {**values, **stage_values, "PYTHONPATH": ":".join(path)}
