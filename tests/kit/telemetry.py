"""What the tests of telemetry share: NVML's stand-in, compiled, and the hardware package under its name on a node."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

DATA = Path(__file__).parents[1] / "unit" / "runner" / "data" / "telemetry"
LIBRARY = "libnvidia-ml.so.1"


def hardware_package() -> None:
    """Let `gpuval_node` be found, as in the runner's archive."""
    name = "ansible_collections.gpuval.fleet.plugins.module_utils"
    sys.modules.setdefault("gpuval_node", importlib.import_module(name))


def build_nvml(folder: Path, *options: str) -> Path:
    """Compile the stand-in; returns the library."""
    library = folder / LIBRARY
    command = ["gcc", "-O1", "-shared", "-fPIC", "-w", *options, "-o", str(library), str(DATA / "nvml.c")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return library
