"""Chooses a workload's devices, by ``GPUVAL_ACCELERATOR`` and what PyTorch sees. A CPU never replaces a GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .result import WorkloadFailure

ACCELERATORS = ("auto", "cpu", "nvidia", "amd", "gaudi")


@dataclass(frozen=True)
class TorchDevices:
    """The devices to use: PyTorch's name of their ``kind`` (``cuda`` also for AMD), ``count``, collective backend."""

    kind: str
    count: int
    backend: str

    @property
    def is_gpu(self) -> bool:
        return self.kind != "cpu"


CPU = TorchDevices("cpu", 0, "gloo")


def choose_accelerator(environ: Mapping[str, str] = os.environ) -> TorchDevices:
    """Return the devices to use: ``GPUVAL_GPU_COUNT`` if set, else all that PyTorch sees. Raises ``WorkloadFailure`` if
    expected devices are missing."""
    expected = environ.get("GPUVAL_ACCELERATOR") or "auto"
    if expected not in ACCELERATORS:
        raise WorkloadFailure(f"GPUVAL_ACCELERATOR is {expected!r}: use one of {', '.join(ACCELERATORS)}")
    text = (environ.get("GPUVAL_GPU_COUNT") or "").strip()
    if text and not text.isdecimal():
        raise WorkloadFailure(f"GPUVAL_GPU_COUNT is {text!r}: give the number of GPUs, or leave it empty")
    declared = int(text) if text else None
    if expected == "cpu":
        return CPU
    devices = _gaudi(declared) if expected == "gaudi" else _cuda(expected, declared)
    if devices.is_gpu and declared is not None and declared > devices.count:
        raise WorkloadFailure(
            f"{declared} GPUs are expected (GPUVAL_GPU_COUNT) but PyTorch sees {devices.count}: look for a GPU without "
            "a driver or off the bus (the facts stage names it), CUDA_VISIBLE_DEVICES, or a container given too few"
        )
    return TorchDevices(devices.kind, declared, devices.backend) if devices.is_gpu and declared else devices


def describe_devices(accelerator: TorchDevices) -> list[dict]:
    """Return PyTorch's description of each device in use: index, name, memory in bytes, UUID if known."""
    if accelerator.kind != "cuda":
        return []
    import torch

    devices = [torch.cuda.get_device_properties(index) for index in range(accelerator.count)]
    return [
        {"index": index, "name": d.name, "memory_bytes": d.total_memory, "uuid": str(getattr(d, "uuid", ""))}
        for index, d in enumerate(devices)
    ]


def _cuda(expected: str, declared: int | None) -> TorchDevices:
    import torch

    if expected == "auto" and not torch.cuda.is_available():
        if declared:
            raise WorkloadFailure(
                f"{declared} GPUs are expected (GPUVAL_GPU_COUNT) but PyTorch sees none: {_what_torch_is()}"
            )
        return CPU
    if not torch.cuda.is_available() or torch.cuda.device_count() == 0:
        count = "" if declared is None else f"{declared} "
        raise WorkloadFailure(
            f"the node has {count}{expected} GPUs (GPUVAL_ACCELERATOR) but PyTorch sees none: {_what_torch_is()}. "
            "Check the driver on the node, that the container is given the devices, and that the image's PyTorch "
            "is built for this vendor and driver"
        )
    is_amd = torch.version.hip is not None
    if expected != "auto" and is_amd != (expected == "amd"):
        raise WorkloadFailure(
            f"the node has {expected} GPUs (GPUVAL_ACCELERATOR) but this is {_what_torch_is()}: use the image made for "
            f"{expected}"
        )
    return TorchDevices("cuda", torch.cuda.device_count(), "nccl")


def _gaudi(declared: int | None) -> TorchDevices:
    try:
        import habana_frameworks.torch.core  # noqa: F401 - registers the hpu device
        import torch

        hpu = getattr(torch, "hpu", None)
        count = hpu.device_count() if hpu and hpu.is_available() else 0
    except ImportError as error:
        raise WorkloadFailure(
            f"the node has Gaudi accelerators (GPUVAL_ACCELERATOR) but habana_frameworks cannot be imported ({error}): "
            "use an image with the Gaudi PyTorch of the node's driver version"
        ) from error
    if count == 0:
        expected = "" if declared is None else f"{declared} "
        raise WorkloadFailure(
            f"the node has {expected}Gaudi accelerators (GPUVAL_ACCELERATOR) but PyTorch sees none: check "
            "hl-smi on the node and that the container is given the devices"
        )
    return TorchDevices("hpu", count, "hccl")


def _what_torch_is() -> str:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    build = f"ROCm {torch.version.hip}" if torch.version.hip else build
    return f"PyTorch {torch.__version__} built for {build}"
