"""Whether ranks may use the RDMA devices: files in /dev, memory that may be locked. Containers often lack both."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from .sysfs import Sysfs

FOLDER = "class/infiniband_verbs"
#: What NCCL registers for its buffers is more than a limit below this allows.
LOCKED_BYTES = 2**30
_IPC_LOCK = 1 << 14


def closed_devices(sysfs: Sysfs, dev: Path = Path("/dev/infiniband")) -> list[str]:
    """The RDMA devices whose file is not there, or may not be opened for reading and writing."""
    names = {name: sysfs.read(f"{FOLDER}/{name}/ibdev") for name in sysfs.entries(FOLDER)}
    return sorted(device for name, device in names.items() if device and not os.access(dev / name, os.R_OK | os.W_OK))


def locked_limit(status: Path = Path("/proc/self/status")) -> int | None:
    """How many bytes this process may lock; None where it may lock all there is."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY or _may_lock(status) else limit


def _may_lock(status: Path) -> bool:
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) & _IPC_LOCK)
