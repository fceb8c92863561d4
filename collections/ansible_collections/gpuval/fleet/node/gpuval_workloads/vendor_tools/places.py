"""Where tools lie, and how many accelerators the node has, without asking any library."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

#: The folders that packages and images put the tools into, looked through after ``--path`` and PATH.
USUAL = (
    "/usr/local/bin",
    "/opt/nccl-tests/build",
    "/opt/nccl_tests/build",
    "/usr/local/nccl-tests/build",
    "/workspace/nccl-tests/build",
    "/nccl-tests/build",
    "/root/nccl-tests/build",
    "/opt/rccl-tests/build",
    "/opt/rccl-tests/bin",
    "/workspace/rccl-tests/build",
    "/rccl-tests/build",
    "/root/rccl-tests/build",
    "/opt/rocm/bin",
    "/opt/rocm/extras-7/bin",
    "/opt/amd/agfhc",
    "/opt/amdtools/agfhc",
    "/opt/habanalabs/qual/gaudi3/bin",
    "/opt/habanalabs/qual/gaudi2/bin",
    "/opt/habanalabs/qual/gaudi/bin",
)

_KFD_NODES = "sys/class/kfd/kfd/topology/nodes"
_DEVICES = {"nvidia": ("dev", r"nvidia\d+"), "gaudi": ("dev/accel", r"accel\d+")}
_PRESENT = {"nvidia": "dev/nvidiactl", "amd": "dev/kfd", "gaudi": "dev/accel"}


class ExecutableSearch:
    """Looks for executables in given folders, then on PATH, then in the usual places."""

    def __init__(self, preferred: Sequence[Path], environ: Mapping[str, str], usual: Sequence[str] = USUAL) -> None:
        on_path = [Path(folder) for folder in environ.get("PATH", "").split(os.pathsep) if folder]
        self._folders = [*preferred, *on_path, *map(Path, usual)]

    def find(self, name: str) -> Path | None:
        """Return the first executable file of this name."""
        for folder in self._folders:
            path = folder / name
            try:
                if path.is_file() and os.access(path, os.X_OK):
                    return path
            except OSError:  # a folder that may not be looked into
                continue
        return None


def vendor(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Return ``nvidia``, ``amd``, ``gaudi`` or ``cpu``: as GPUVAL_ACCELERATOR says, else by the devices there are."""
    declared = environ.get("GPUVAL_ACCELERATOR") or "auto"
    if declared != "auto":
        return declared
    return next((name for name, device in _PRESENT.items() if (root / device).exists()), "cpu")


def gpu_count(environ: Mapping[str, str], name: str, root: Path = Path("/")) -> int | None:
    """Return how many GPUs the node is to have, GPUVAL_GPU_COUNT, else how many devices there are; None: unknown."""
    text = (environ.get("GPUVAL_GPU_COUNT") or "").strip()
    if text.isdecimal():
        return int(text)
    try:
        if name == "amd":
            nodes = (root / _KFD_NODES).iterdir()
            return sum((node / "gpu_id").read_text().strip() not in ("", "0") for node in nodes) or None
        folder, pattern = _DEVICES[name]
        return sum(bool(re.fullmatch(pattern, entry.name)) for entry in (root / folder).iterdir()) or None
    except (KeyError, OSError):
        return None
