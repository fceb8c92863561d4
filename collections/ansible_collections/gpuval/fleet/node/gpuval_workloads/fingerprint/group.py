"""One line of text on device and software, which must be equal on two nodes to compare their fingerprints."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch
from gpuval_node.hardware.cpu import processors

from .sizes import SEQUENCE

REQUIRED_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NVIDIA_TF32_OVERRIDE": "0"}
"""cuBLAS promises the same bits from run to run with this workspace; TF32 would round fp32 products to 11 bits."""

_STEERING = (
    "ATEN_CPU_CAPABILITY",
    "CUBLASLT_HEURISTICS_CACHE_CAPACITY",
    "CUBLAS_EMULATION_STRATEGY",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "PYTORCH_TUNABLEOP_ENABLED",
    "ROCBLAS_TENSILE_LIBPATH",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_BLAS_PREFER_HIPBLASLT",
)
_LIBRARIES = {"cuBLAS": ("libcublas.so", "cublasGetProperty"), "cuBLASLt": ("libcublasLt.so", "cublasLtGetProperty")}


def fingerprint_group(device: torch.device, environ: Mapping[str, str] = os.environ) -> str:
    """Return a line on device, software and settings that select kernels: equal lines need equal fingerprints."""
    parts = [f"sequence {SEQUENCE}", f"torch {torch.__version__}"]
    if device.type == "cuda":
        parts += _gpu(device)
    else:
        parts += [cpu_identity(_read("/proc/cpuinfo")), torch.backends.cpu.get_cpu_capability()]
        parts.append(f"{torch.get_num_threads()} thread per part")
    return "; ".join(parts + [f"{name}={environ[name]}" for name in _STEERING if environ.get(name)])


def loaded_library(name: str, maps: str) -> str | None:
    """Return the path of a library that this process has loaded, from the text of ``/proc/self/maps``."""
    match = re.search(rf"(/\S*/{re.escape(name)}[.\d]*)$", maps, re.MULTILINE)
    return match.group(1) if match else None


def cpu_identity(cpuinfo: str) -> str:
    """Return the model of the first CPU, and a digest of its features: libraries select kernels by both."""
    fields = next(iter(processors(cpuinfo)), {})
    model = fields.get("model name") or fields.get("CPU part") or "unknown CPU"
    numbers = "/".join(fields.get(name, "?") for name in ("cpu family", "model", "stepping"))
    flags = " ".join(sorted((fields.get("flags") or fields.get("Features") or "").split()))
    return f"{model} {numbers} flags {hashlib.sha256(flags.encode()).hexdigest()[:8]}"


def _gpu(device: torch.device) -> list[str]:
    properties = torch.cuda.get_device_properties(device)
    capability = f"{properties.major}.{properties.minor}"
    # The number of multiprocessors also determines kernels and the split of sums: a partial GPU is another device.
    parts = [f"{properties.name}, capability {capability}, {properties.multi_processor_count} multiprocessors"]
    if torch.version.hip:
        architecture = getattr(properties, "gcnArchName", "?")
        return [*parts, f"{architecture}, ROCm {torch.version.hip}", f"driver {_driver('amdgpu')}"]
    parts.append(f"CUDA {torch.version.cuda}")
    maps = _read("/proc/self/maps")
    for title, (file, call) in _LIBRARIES.items():
        parts.append(f"{title} {_library_version(loaded_library(file, maps), call)}")
    # PyTorch and cuBLAS contain machine code for most devices; for others the driver compiles it.
    native = f"sm_{properties.major}{properties.minor}" in torch.cuda.get_arch_list()
    driver = _driver("nvidia")
    return [*parts, f"driver {driver.partition('.')[0] if native else f'{driver} compiles'}"]


def _library_version(path: str | None, call: str) -> str:
    """Return the version of the library at ``path``; ``call`` is its function that returns major, minor and patch."""
    numbers: list[str] = []
    with suppress(OSError, AttributeError):
        function, value = getattr(ctypes.CDLL(path), call) if path else None, ctypes.c_int()
        while function and len(numbers) < 3 and function(len(numbers), ctypes.byref(value)) == 0:
            numbers.append(str(value.value))
    return ".".join(numbers) if len(numbers) == 3 else "unknown"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _driver(module: str) -> str:
    return _read(f"/sys/module/{module}/version").strip() or "unknown"
