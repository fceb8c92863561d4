"""The host beside its GPUs: processors, memory, and what the kernel counted of kills for want of memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Optional

MAX_FILE_BYTES = 1 << 20
#: Drivers of hwmon that measure processors, and the labels that stand for a whole package: the cores of coretemp are
#: read by an interrupt to each of them, which would disturb the work.
_PACKAGE, _CONTROL = re.compile(r"package", re.IGNORECASE), re.compile(r"tctl|tdie", re.IGNORECASE)
CPU_SENSORS = {"coretemp": _PACKAGE, "k10temp": _CONTROL, "zenpower": _CONTROL}
CPU_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal")


class Host:
    """Reads a machine's files below `root`; which sensors there are is looked for once."""

    def __init__(self, root: str = "/") -> None:
        self._root = Path(root)
        self._sensors = sensors(self._root)
        self._before = cpu_times(self._text("proc/stat"))
        self.absent: dict[str, str] = {}
        if not self._sensors:
            self.absent["cpu_temperature_celsius"] = "neither hwmon nor a thermal zone measures the processors here"

    def sample(self) -> dict[str, float]:
        """Return `cpu_utilisation_ratio` since the last sample, `memory_used_bytes`, `cpu_temperature_celsius`."""
        after = cpu_times(self._text("proc/stat"))
        reading: dict[str, Optional[float]] = {
            "cpu_utilisation_ratio": utilisation(self._before, after),
            "memory_used_bytes": memory_used(self._text("proc/meminfo")),
            "cpu_temperature_celsius": self._temperature(),
        }
        self._before = after or self._before
        return {name: value for name, value in reading.items() if value is not None}

    def oom_kills(self) -> Optional[int]:
        """Return how many processes the kernel killed for want of memory since boot."""
        return vmstat_oom(self._text("proc/vmstat"))

    def _temperature(self) -> Optional[float]:
        found = [value for value in map(_millidegrees, self._sensors) if value is not None]
        return max(found) if found else None

    def _text(self, name: str) -> str:
        return _read(self._root / name) or ""


def sensors(root: Path) -> list[Path]:
    """Return the temperature inputs of the processors' packages."""
    found = []
    for folder in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        wanted = CPU_SENSORS.get((_read(folder / "name") or "").strip())
        for path in sorted(folder.glob("temp*_input")) if wanted else ():
            label = _read(path.with_name(path.name.replace("_input", "_label"))) or ""
            if wanted and wanted.search(label):
                found.append(path)
    if found:
        return found
    zones = sorted((root / "sys/class/thermal").glob("thermal_zone*"))
    return [zone / "temp" for zone in zones if (_read(zone / "type") or "").strip() in CPU_ZONES]


def cpu_times(stat: str) -> Optional[tuple[int, int]]:
    """Return all and idle clock ticks of the first line of /proc/stat (proc_stat(5)); guest time is in user time."""
    fields = stat.partition("\n")[0].split()
    if len(fields) < 6 or fields[0] != "cpu" or not all(field.isdigit() for field in fields[1:]):
        return None
    ticks = [int(field) for field in fields[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


def utilisation(before: Optional[tuple[int, int]], after: Optional[tuple[int, int]]) -> Optional[float]:
    """Return the share of the time between two looks in which the processors worked."""
    if not before or not after or after[0] <= before[0]:
        return None
    return min(1.0, max(0.0, 1 - (after[1] - before[1]) / (after[0] - before[0])))


def memory_used(meminfo: str) -> Optional[int]:
    """Return the bytes in use of /proc/meminfo: what is not available, caches not counted."""
    sizes = {name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", meminfo, re.MULTILINE)}
    if "MemTotal" not in sizes or "MemAvailable" not in sizes:
        return None
    return sizes["MemTotal"] - sizes["MemAvailable"]


def vmstat_oom(vmstat: str) -> Optional[int]:
    """Return the counter `oom_kill` of /proc/vmstat."""
    match = re.search(r"^oom_kill (\d+)$", vmstat, re.MULTILINE)
    return int(match.group(1)) if match else None


def _millidegrees(path: Path) -> Optional[float]:
    text: Any = _read(path)
    try:
        return int(text) / 1000
    except (TypeError, ValueError):
        return None


def _read(path: Path) -> Optional[str]:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
