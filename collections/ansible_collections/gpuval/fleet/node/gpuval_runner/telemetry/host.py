"""The host beside its GPUs: processors, memory, and what the kernel counted of kills for want of memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Optional

from gpuval_node.hardware.memory import NO_CONTROLLER, errors, meminfo
from gpuval_node.hardware.tree import Tree, read_number, read_text

from gpuval_runner import oom

#: Drivers of hwmon that measure processors, and the labels that stand for a whole package: the cores of coretemp are
#: read by an interrupt to each of them, which would disturb the work.
_PACKAGE, _CONTROL = re.compile(r"package", re.IGNORECASE), re.compile(r"tctl|tdie", re.IGNORECASE)
CPU_SENSORS = {"coretemp": _PACKAGE, "k10temp": _CONTROL, "zenpower": _CONTROL}
CPU_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal")


class HostSensors:
    """Reads a machine's files below `root`; which sensors there are is looked for once."""

    def __init__(self, root: str = "/") -> None:
        self._root, self._tree = Path(root), Tree(root)
        self._sensors = sensors(self._root)
        self._before = cpu_times(self._text("proc/stat"))
        self._errors = errors(self._tree)
        self.absent: dict[str, str] = {}
        if not self._sensors:
            self.absent["cpu_temperature_celsius"] = "neither hwmon nor a thermal zone measures the processors here"
        self.absent.update({name: NO_CONTROLLER for name, count in self._errors.items() if count is None})

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
        return oom.counter(self._root / "proc/vmstat")

    def memory_errors(self) -> dict[str, int]:
        """Return by kind how many errors the memory controllers counted since this object was made."""
        pairs = {name: (self._errors[name], now) for name, now in errors(self._tree).items()}
        return {k: max(0, now - old) for k, (old, now) in pairs.items() if old is not None and now is not None}

    def _temperature(self) -> Optional[float]:
        temperatures = [value for value in map(read_number, self._sensors) if value is not None]
        return max(temperatures) / 1000 if temperatures else None

    def _text(self, name: str) -> str:
        return read_text(self._root / name) or ""


def sensors(root: Path) -> list[Path]:
    """Return the temperature inputs of the processors' packages."""
    paths = []
    for folder in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        label_pattern = CPU_SENSORS.get(read_text(folder / "name") or "")
        for path in sorted(folder.glob("temp*_input")) if label_pattern else ():
            label = read_text(path.with_name(path.name.replace("_input", "_label"))) or ""
            if label_pattern and label_pattern.search(label):
                paths.append(path)
    if paths:
        return paths
    zones = sorted((root / "sys/class/thermal").glob("thermal_zone*"))
    return [zone / "temp" for zone in zones if read_text(zone / "type") in CPU_ZONES]


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


def memory_used(text: str) -> Optional[int]:
    """Return the bytes in use of /proc/meminfo: what is not available, caches not counted."""
    sizes = meminfo(text)
    return sizes["MemTotal"] - sizes["MemAvailable"] if {"MemTotal", "MemAvailable"} <= sizes.keys() else None
