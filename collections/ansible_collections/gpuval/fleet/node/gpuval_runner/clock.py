"""Wall time in the format of records, and elapsed time also across a reboot."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from gpuval_node.node_directory import BOOT_ID_FILE, boot_id


def now() -> str:
    """Return the present time as RFC 3339 text in UTC with milliseconds and Z."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def parse(text: str) -> datetime:
    """Read an RFC 3339 time in UTC with Z. Raises ``ValueError``."""
    if not text.endswith("Z"):
        raise ValueError(f"{text!r} is not a time in UTC ending in Z")
    return datetime.fromisoformat(text[:-1]).replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Instant:
    """A moment on two clocks: seconds since 1970, and seconds since the boot with the id `boot`."""

    wall: float
    boot: str
    since_boot: float


def instant(boot_id_file: Path = BOOT_ID_FILE) -> Instant:
    """Return the present moment on both clocks; seconds since boot include sleep."""
    return Instant(time.time(), boot_id(boot_id_file), time.clock_gettime(time.CLOCK_BOOTTIME))


def elapsed(start: Instant, end: Instant) -> float:
    """Return seconds from `start` to `end` by the clock since boot, which cannot be set; over a reboot by wall time."""
    if start.boot and start.boot == end.boot:
        return max(0.0, end.since_boot - start.since_boot)
    return max(0.0, end.wall - start.wall)
