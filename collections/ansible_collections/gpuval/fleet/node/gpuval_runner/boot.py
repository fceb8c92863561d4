"""Which boot of the machine this is, and elapsed time that survives a reboot."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def boot_id(path: Path = BOOT_ID_FILE) -> str:
    """Return the id of the present boot; empty where it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()[:64]
    except OSError:
        return ""


def boot_seconds() -> float:
    """Return seconds since boot, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Instant:
    """A moment on two clocks: wall time, and seconds since a named boot."""

    wall: float
    boot: str
    since_boot: float


@dataclass(frozen=True)
class Clock:
    """Source of instants; the parts are parameters so that a test can simulate a reboot."""

    boot_id_file: Path = BOOT_ID_FILE
    wall: Callable[[], float] = field(default=time.time)
    since_boot: Callable[[], float] = field(default=boot_seconds)

    def now(self) -> Instant:
        return Instant(self.wall(), boot_id(self.boot_id_file), self.since_boot())


def elapsed(start: Instant, end: Instant) -> float:
    """Return seconds between two instants: by the boot's clock, which cannot be set; across a reboot by wall time."""
    if start.boot and start.boot == end.boot:
        return max(0.0, end.since_boot - start.since_boot)
    return max(0.0, end.wall - start.wall)
