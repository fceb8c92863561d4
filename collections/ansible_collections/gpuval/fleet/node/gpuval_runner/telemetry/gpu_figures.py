"""Figures and curves of one GPU's samples, in bounded memory however long the stage takes. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Optional

from gpuval_runner.result import number

BUSY_RATIO = 0.9
MAX_POINTS = 600

#: Curve of a GPU: name, unit, reading, decimals.
CURVES = (
    ("gpu_power_watts", "watts", "power_watts", 1),
    ("gpu_temperature_celsius", "celsius", "temperature_celsius", 1),
    ("gpu_sm_clock_hertz", "hertz", "sm_clock_hertz", 0),
    ("gpu_utilisation_ratio", "ratio", "utilisation_ratio", 3),
    ("gpu_memory_used_bytes", "bytes", "memory_used_bytes", 0),
)


@dataclass
class Mean:
    """A mean, and the extremes, of what comes one by one."""

    total: float = 0.0
    count: int = 0
    least: Optional[float] = None
    most: Optional[float] = None

    def add(self, value: Optional[float]) -> None:
        if value is None:
            return
        self.total += value
        self.count += 1
        self.least = value if self.least is None else min(self.least, value)
        self.most = value if self.most is None else max(self.most, value)

    @property
    def value(self) -> Optional[float]:
        return self.total / self.count if self.count else None


class ThinnedCurve:
    """Points thinned by means: whenever there are too many, each two become one."""

    def __init__(self, most: int = MAX_POINTS) -> None:
        self._most = most
        self._per_point = 1
        self._points: list[tuple[float, float]] = []
        self._open: list[tuple[float, float]] = []

    def add(self, x: float, y: float) -> None:
        self._open.append((x, y))
        if len(self._open) < self._per_point:
            return
        self._points.append(_middle(self._open))
        self._open = []
        if len(self._points) >= self._most:
            self._points = [_middle(self._points[i : i + 2]) for i in range(0, len(self._points), 2)]
            self._per_point *= 2

    def points(self) -> list[tuple[float, float]]:
        return [*self._points, *([_middle(self._open)] if self._open else [])]


def _middle(points: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)


def percentile(counts: Counter[int], share: float) -> Optional[int]:
    """Return the value that so large a share of the counted values does not exceed (nearest rank)."""
    total = sum(counts.values())
    reached = 0
    for value in sorted(counts):
        reached += counts[value]
        if reached >= share * total:
            return value
    return None


@dataclass
class GpuFigures:
    """The figures and curves of one GPU's samples."""

    means: dict[str, Mean] = field(default_factory=dict)
    busy: dict[str, Mean] = field(default_factory=dict)
    whole_degrees: Counter[int] = field(default_factory=Counter)
    whole_watts: Counter[int] = field(default_factory=Counter)
    limit: Optional[float] = None
    curves: dict[str, ThinnedCurve] = field(default_factory=dict)

    def add(self, x: float, sample: dict[str, Any]) -> None:
        values = {name: number(value) for name, value in sample.items()}
        for name, value in values.items():
            self.means.setdefault(name, Mean()).add(value)
        utilisation = values.get("utilisation_ratio")
        if utilisation is not None and utilisation >= BUSY_RATIO:
            for name in ("power_watts", "sm_clock_hertz", "pcie_generation"):
                self.busy.setdefault(name, Mean()).add(values.get(name))
        for reading, whole in (("temperature_celsius", self.whole_degrees), ("power_watts", self.whole_watts)):
            value = values.get(reading)
            if value is not None:
                whole[round(value)] += 1
        limit = values.get("power_limit_watts")
        self.limit = self.limit if limit is None else limit
        for _name, _unit, reading, _decimals in CURVES:
            value = values.get(reading)
            if value is not None:
                self.curves.setdefault(reading, ThinnedCurve()).add(x, value)

    def figures(self) -> dict[str, Optional[float]]:
        means, busy = self.means, self.busy
        nothing = Mean()
        power = busy.get("power_watts", nothing).value
        return {
            "gpu_temperature_max_celsius": means.get("temperature_celsius", nothing).most,
            "gpu_temperature_p95_celsius": percentile(self.whole_degrees, 0.95),
            "gpu_memory_temperature_max_celsius": means.get("memory_temperature_celsius", nothing).most,
            "gpu_power_mean_watts": means.get("power_watts", nothing).value,
            "gpu_power_p50_watts": percentile(self.whole_watts, 0.5),
            "gpu_power_max_watts": means.get("power_watts", nothing).most,
            "gpu_power_limit_watts": self.limit,
            "gpu_power_busy_mean_watts": power,
            "gpu_power_busy_ratio": power / self.limit if power is not None and self.limit else None,
            "gpu_sm_clock_busy_mean_hertz": busy.get("sm_clock_hertz", nothing).value,
            "gpu_utilisation_mean_ratio": means.get("utilisation_ratio", nothing).value,
            "gpu_memory_used_max_bytes": means.get("memory_used_bytes", nothing).most,
            "gpu_throttle_thermal_ratio": means.get("throttle_thermal", nothing).value,
            "gpu_throttle_power_ratio": means.get("throttle_power", nothing).value,
            "gpu_throttle_hardware_ratio": means.get("throttle_hardware", nothing).value,
            "gpu_pcie_width_min_count": means.get("pcie_width", nothing).least,
            # A link slows down by design while its GPU is idle.
            "gpu_pcie_generation_min_count": busy.get("pcie_generation", nothing).least,
        }
