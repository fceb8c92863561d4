"""What the tests of telemetry share: NVML's stand-in, compiled."""

from __future__ import annotations

import subprocess
from pathlib import Path

DATA = Path(__file__).parents[1] / "unit" / "runner" / "data" / "telemetry"
LIBRARY = "libnvidia-ml.so.1"


def build_nvml(folder: Path, *options: str) -> Path:
    """Compile the stand-in; returns the library."""
    library = folder / LIBRARY
    command = ["gcc", "-O1", "-shared", "-fPIC", "-w", *options, "-o", str(library), str(DATA / "nvml.c")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return library
