"""Which boot of the machine this is, and elapsed time that survives a reboot."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from gpuval_node.hardware.tree import read_text

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def boot_id(path: Path = BOOT_ID_FILE) -> str:
    """Return the id of the present boot; empty where it cannot be read."""
    return (read_text(path) or "")[:64]


@dataclass(frozen=True)
class Instant:
    """A moment on two clocks: wall time, and seconds since a named boot."""

    wall: float
    boot: str
    since_boot: float


def instant(boot_id_file: Path = BOOT_ID_FILE) -> Instant:
    """Return the present; time since boot includes sleep."""
    return Instant(time.time(), boot_id(boot_id_file), time.clock_gettime(time.CLOCK_BOOTTIME))


def elapsed(start: Instant, end: Instant) -> float:
    """Return seconds between two instants: by the boot's clock, which cannot be set; across a reboot by wall time."""
    if start.boot and start.boot == end.boot:
        return max(0.0, end.since_boot - start.since_boot)
    return max(0.0, end.wall - start.wall)
