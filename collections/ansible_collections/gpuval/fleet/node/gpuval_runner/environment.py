"""The environment that a stage gets."""

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

#: Variables by which the runner finds its user's container engines, beside those that stages inherit.
ENGINE_VARIABLES = (
    *("DOCKER_*", "CONTAINER_HOST", "CONTAINERS_*", "STORAGE_*"),
    *("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS"),
)
#: File in the stage's scratch directory that describes the gang of the node.
GANG_FILE = "gang.json"
GANG_RECORDS_FILE = "gang_records.json"
#: Folder in the run's directory with the SSH keys of a gang.
SSH_KEYS = "ssh"
MAD_VENDORS = {"nvidia": "NVIDIA", "amd": "AMD", "gaudi": "GAUDI", "cpu": "CPU"}


@dataclass(frozen=True)
class StagePaths:
    """Paths that a stage gets in its environment."""

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
    """Return the variables that a runner needs from its starter: those that stages inherit and those of the engines."""
    engines = {n: v for n, v in environment.items() if any(fnmatchcase(n, pattern) for pattern in ENGINE_VARIABLES)}
    return {**inherited(environment), **engines}


def placeholders(plan: NodePlan, places: StagePaths, python: str = "") -> dict[str, str]:
    """Return the values of the placeholders in braces in a stage's command and environment, by name. `python` is the
    interpreter of the stage's image, which also runs the runner there."""
    return {
        "python": python or plan.python,
        "runner": str(places.runner),
        "runner_python": python or sys.executable,
        "workloads": str(places.workloads),
        "work_dir": str(places.work),
        "models_dir": str(places.models),
        "run_dir": str(places.run),
        "node": plan.node,
        "run_id": plan.run_id,
    }


def detected(declared: PlannedAccelerator, facts: Optional[Mapping[str, Any]]) -> PlannedAccelerator:
    """Return the accelerator for later stages: declared fields as declared, others as the facts stage found them."""
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
    places: StagePaths,
    accelerator: PlannedAccelerator,
    environment: Mapping[str, str],
    python: str = "",
) -> dict[str, str]:
    """Return the complete environment of a stage, from the runner's `environment`; `python` is that of the image."""
    count = "" if accelerator.count is None else str(accelerator.count)
    cache = places.work / "cache"
    values = {
        **inherited(environment),
        MARKER_VARIABLE: stage_marker(plan.run_id, plan.node, stage.name, plan.attempt),
        "GPUVAL_RESULT_FILE": str(places.result),
        "GPUVAL_RUN_ID": plan.run_id,
        "GPUVAL_NODE": plan.node,
        "GPUVAL_STAGE": stage.name,
        "GPUVAL_ATTEMPT": str(plan.attempt),
        "GPUVAL_WORK_DIR": str(places.work),
        "GPUVAL_MODELS_DIR": str(places.models),
        "GPUVAL_RCLONE_CONFIG": str(places.rclone_config),
        "GPUVAL_ACCELERATOR": accelerator.vendor,
        "GPUVAL_GPU_COUNT": count,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # so that gpu:3 of a workload is gpu:3 of nvidia-smi and of the facts
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(places.temporary),
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
        folder = DATASETS_INSIDE / name if plan.in_container(stage) else places.dataset(name)
        values[f"GPUVAL_DATASET_{name.upper()}"] = str(folder)
    if plan.gang:
        values |= {"GPUVAL_GANG_FILE": str(places.work / GANG_FILE), "GPUVAL_GANG_KEYS": str(places.run / SSH_KEYS)}
    names = placeholders(plan, places, python)
    stage_values = {name: expand(value, names) for name, value in stage.environment.items() if name != MARKER_VARIABLE}
    path = [str(places.workloads), *filter(None, [stage_values.pop("PYTHONPATH", "")])]
    return {**values, **stage_values, "PYTHONPATH": ":".join(path)}
