"""Figures and curves of one GPU's samples, in bounded memory however long the stage takes, and what changed between
the GPUs before and after it: error counters, topology, lost GPUs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Optional

from gpuval_runner.result import number

BUSY_RATIO = 0.9
MAX_POINTS = 600

#: Curves of a GPU: name, unit, reading, decimals.
CURVES = (
    ("gpu_power_watts", "watts", "power_watts", 1),
    ("gpu_temperature_celsius", "celsius", "temperature_celsius", 1),
    ("gpu_sm_clock_hertz", "hertz", "sm_clock_hertz", 0),
    ("gpu_utilisation_ratio", "ratio", "utilisation_ratio", 3),
    ("gpu_memory_used_bytes", "bytes", "memory_used_bytes", 0),
)


#: Counters that are compared before and after a stage: metric and reading.
COUNTERS = (
    ("gpu_ecc_corrected_new_count", "ecc_corrected"),
    ("gpu_ecc_uncorrected_new_count", "ecc_uncorrected"),
    ("gpu_row_remap_new_count", "row_remaps"),
    ("gpu_link_error_new_count", "link_errors"),
    ("gpu_link_corrected_new_count", "link_corrected"),
    ("gpu_pcie_replay_new_count", "pcie_replays"),
)
#: Kinds of throttling whose time the driver counts; their metrics are gpu_KIND_ratio.
THROTTLING = ("throttle_thermal", "throttle_power", "throttle_hardware")
HARDWARE_RATIO = "gpu_throttle_hardware_ratio"
IDENTITY = ("uuid", "pci_address")
#: Readings of a GPU that are kept for the next stage, which counts the errors since the end of the stage before.
CARRIED = (*IDENTITY, *(reading for _, reading in COUNTERS))
#: A GPU that an earlier stage saw: its index, and value by reading.
SeenGpu = tuple[int, dict[str, Any]]
#: Readings of all GPUs: `{GPU index: {reading: value}}`.
GpuReadings = dict[int, dict[str, Any]]


@dataclass
class Values:
    """Sum, count, minimum, maximum and last of values added one by one; `whole` counts rounded ones for percentiles."""

    whole: Optional[Counter[int]] = None
    total: float = 0.0
    count: int = 0
    least: Optional[float] = None
    most: Optional[float] = None
    last: Optional[float] = None

    def add(self, value: Optional[float]) -> None:
        """Add one value; None is ignored."""
        if value is None:
            return
        self.total += value
        self.count += 1
        self.last = value
        self.least = value if self.least is None else min(self.least, value)
        self.most = value if self.most is None else max(self.most, value)
        if self.whole is not None:
            self.whole[round(value)] += 1

    @property
    def mean(self) -> Optional[float]:
        return self.total / self.count if self.count else None

    p50 = property(lambda self: percentile(self.whole or Counter(), 0.5))
    p95 = property(lambda self: percentile(self.whole or Counter(), 0.95))


#: Metrics of a GPU: name, reading, statistic of the values, whether of busy samples alone.
FIGURES = (
    ("gpu_temperature_max_celsius", "temperature_celsius", "most", False),
    ("gpu_temperature_p95_celsius", "temperature_celsius", "p95", False),
    ("gpu_memory_temperature_max_celsius", "memory_temperature_celsius", "most", False),
    ("gpu_temperature_margin_min_celsius", "temperature_margin_celsius", "least", False),
    ("gpu_power_mean_watts", "power_watts", "mean", False),
    ("gpu_power_p50_watts", "power_watts", "p50", False),
    ("gpu_power_max_watts", "power_watts", "most", False),
    ("gpu_power_limit_watts", "power_limit_watts", "last", False),
    ("gpu_power_busy_mean_watts", "power_watts", "mean", True),
    ("gpu_sm_clock_busy_mean_hertz", "sm_clock_hertz", "mean", True),
    ("gpu_utilisation_mean_ratio", "utilisation_ratio", "mean", False),
    ("gpu_memory_used_max_bytes", "memory_used_bytes", "most", False),
    ("gpu_throttle_thermal_ratio", "throttle_thermal", "mean", False),
    ("gpu_throttle_power_ratio", "throttle_power", "mean", False),
    (HARDWARE_RATIO, "throttle_hardware", "mean", False),
    ("gpu_pcie_width_min_count", "pcie_width", "least", False),
    # A link slows down by design while its GPU is idle.
    ("gpu_pcie_generation_min_count", "pcie_generation", "least", True),
)
COUNTED = frozenset(reading for _name, reading, statistic, _busy in FIGURES if statistic in ("p50", "p95"))
POWER_RATIO = "gpu_power_busy_ratio"
#: The clock of a busy GPU in the last tenth of a stage, divided by that in the first tenth. Needs LEAST_POINTS points.
HELD_RATIO = "gpu_sm_clock_held_ratio"
LEAST_POINTS = 20


class ThinnedCurve:
    """A curve of bounded length: when there are too many points, each pair is replaced by its mean."""

    def __init__(self) -> None:
        self._per_point = 1
        self._points: list[tuple[float, float]] = []
        self._open: list[tuple[float, float]] = []

    def add(self, x: float, y: float) -> None:
        self._open.append((x, y))
        if len(self._open) < self._per_point:
            return
        self._points.append(_middle(self._open))
        self._open = []
        if len(self._points) >= MAX_POINTS:
            self._points = [_middle(self._points[i : i + 2]) for i in range(0, len(self._points), 2)]
            self._per_point *= 2

    def points(self) -> list[tuple[float, float]]:
        return [*self._points, *([_middle(self._open)] if self._open else [])]


def _middle(points: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)


def percentile(counts: Counter[int], share: float) -> Optional[int]:
    """Return the percentile at `share` (0 to 1) of counted values, by nearest rank; None without values."""
    values = sorted(counts)
    reached = accumulate(counts[value] for value in values)
    least = share * sum(counts.values())
    return next((value for value, count in zip(values, reached) if count >= least), None)


@dataclass
class GpuFigures:
    """Collects one GPU's samples and gives their figures and curves."""

    always: dict[str, Values] = field(default_factory=dict)
    busy: dict[str, Values] = field(default_factory=dict)
    curves: dict[str, ThinnedCurve] = field(default_factory=dict)
    busy_clock: ThinnedCurve = field(default_factory=ThinnedCurve)

    def add(self, x: float, sample: dict[str, Any]) -> None:
        """Add a sample (value by reading) from `x` seconds after the stage's start."""
        values = {name: number(value) for name, value in sample.items()}
        groups = [self.always, self.busy] if (values.get("utilisation_ratio") or 0) >= BUSY_RATIO else [self.always]
        for name, value in values.items():
            for group in groups:
                group.setdefault(name, Values(Counter() if name in COUNTED else None)).add(value)
        clock = values.get("sm_clock_hertz")
        if clock is not None and len(groups) > 1:
            self.busy_clock.add(x, clock)
        for _name, _unit, reading, _decimals in CURVES:
            value = values.get(reading)
            if value is not None:
                self.curves.setdefault(reading, ThinnedCurve()).add(x, value)

    def figures(self) -> dict[str, Optional[float]]:
        """Return the GPU's metrics by name, None for a metric without values."""
        value_by_name: dict[str, Optional[float]] = {
            name: getattr((self.busy if is_busy else self.always).get(reading), statistic, None)
            for name, reading, statistic, is_busy in FIGURES
        }
        power, limit = value_by_name["gpu_power_busy_mean_watts"], value_by_name["gpu_power_limit_watts"]
        value_by_name[POWER_RATIO] = power / limit if power is not None and limit else None
        clocks = [clock for _, clock in self.busy_clock.points()]
        tenth = len(clocks) // 10
        is_known = len(clocks) >= LEAST_POINTS and sum(clocks[:tenth]) != 0
        value_by_name[HELD_RATIO] = sum(clocks[-tenth:]) / sum(clocks[:tenth]) if is_known else None
        return value_by_name


class TelemetryComparison:
    """Compares the GPUs before and after a stage, matched by UUID, else PCI address, else index: new errors by GPU,
    lost GPUs, changes in words. A GPU that an earlier stage saw, or that the driver counts and has lost, is lost
    here."""

    def __init__(
        self, before: GpuReadings, after: GpuReadings, earlier: Sequence[SeenGpu] = (), seconds: Optional[float] = None
    ) -> None:
        """`seconds` passed between the readings `before` and `after`; None if that is not known."""
        self._seconds = seconds
        self.new: list[tuple[int, str, int]] = []
        self.lost: list[int] = []
        self.topology = 0
        self.changes: list[str] = []
        #: Share of the time between both readings that the driver counted as throttled, by GPU and metric.
        self.throttled: dict[int, dict[str, float]] = {}
        counted = {identity_of(index, gpu): gpu for index, gpu in earlier}
        old = {identity_of(index, gpu): (index, gpu) for index, gpu in before.items() if not gpu.get("lost")}
        new = {identity_of(index, gpu): (index, gpu) for index, gpu in after.items() if not gpu.get("lost")}
        for identity, (index, gpu) in old.items():
            label = f"gpu:{index} ({gpu.get('pci_address') or identity})"
            if identity not in new:
                self.lost.append(index)
                self._change_topology(f"{label} is lost")
                continue
            counters = {name: value for name, value in counted.get(identity, {}).items() if name not in IDENTITY}
            self._compare_gpu(index, label, {**gpu, **counters}, new[identity][1])
            self.throttled[index] = dict(self._throttled(gpu, new[identity][1]))
        for identity in new.keys() - old.keys():
            self._change_topology(f"gpu:{new[identity][0]} ({identity}) appeared")
        self._find_lost_before(before, after, earlier)

    def _change_topology(self, text: str) -> None:
        self.topology += 1
        self.changes.append(text)

    def _find_lost_before(self, before: GpuReadings, after: GpuReadings, earlier: Sequence[SeenGpu]) -> None:
        """Add the GPUs that were lost before the stage began and still are at its end."""
        present = [gpu for gpus in (before, after) for gpu in gpus.values() if not gpu.get("lost")]
        missing: list[int] = []
        names = {gpu.get(name) for gpu in present for name in IDENTITY} - {None}
        if all(any(gpu.get(name) for name in IDENTITY) for gpu in present):  # else it is unknown which GPU is missing
            for index, gpu in earlier:
                if not names & {gpu.get(name) for name in IDENTITY}:
                    missing.append(index)
                    name = gpu.get("pci_address") or gpu.get("uuid")
                    self._change_topology(f"gpu:{index} ({name}) was lost before the stage")
        still_lost = {index for index, gpu in after.items() if gpu.get("lost")}
        is_lost = {index for index, gpu in before.items() if gpu.get("lost") and not gpu.get("refused")}
        lost_gpus = [index for index in before if index in is_lost & still_lost]
        # A lost GPU has no UUID any more: GPUs that are missing by UUID are among the lost ones.
        unnamed = [index for index in lost_gpus if index not in missing][: max(0, len(lost_gpus) - len(missing))]
        self.lost += [*missing, *unnamed]
        self.changes += [f"gpu:{index} was lost before the stage" for index in unnamed]

    def _throttled(self, old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, float]]:
        """Yield pairs of metric and share of the stage's time, by the driver's counters. A counter that fell was reset
        and has no share."""
        for unit, in_all in (
            ("ticks", _rise_of("throttle_ticks", old, new)),
            ("microseconds", (self._seconds or 0) * 1e6),
        ):
            for kind in THROTTLING:
                rise = _rise_of(f"{kind}_{unit}", old, new)
                if rise is not None and in_all:
                    yield f"gpu_{kind}_ratio", min(1.0, rise / in_all)

    def _compare_gpu(self, index: int, label: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        for name, reading in COUNTERS:
            if reading not in old or reading not in new:
                continue
            if isinstance(old[reading], dict) and isinstance(new[reading], dict):
                risen = {link: _risen(old[reading].get(link, 0), value) for link, value in new[reading].items()}
                self.changes += [f"{label} link {link}: {rise} new errors" for link, rise in risen.items() if rise]
                self.new.append((index, name, sum(risen.values())))
                continue
            rise = _risen(old[reading], new[reading])
            self.new.append((index, name, rise))
            if rise and reading != "link_corrected":  # corrected link errors rise all the time
                self.changes.append(f"{label} {reading}: {old[reading]} before, {new[reading]} after")
        for name in ("pci_address", "pcie_width", "fabric"):
            if old.get(name) != new.get(name) and name in old and name in new:
                self._change_topology(f"{label} {name}: {old[name]} before, {new[name]} after")
        for name in ("row_remap_pending", "row_remap_failed"):
            if new.get(name) and not old.get(name):
                self.changes.append(f"{label} {name}")
        if "links_up" in old and "links_up" in new:
            was, now = set(old["links_up"]), set(new["links_up"])
            self.topology += len(was ^ now)
            self.changes += [f"{label} link {link} went down" for link in sorted(was - now)]
            self.changes += [f"{label} link {link} came up" for link in sorted(now - was)]


def _risen(old: Any, new: Any) -> int:
    """Return the rise of a counter; a smaller new value means that a GPU reset set the counter to 0."""
    if not isinstance(old, int) or not isinstance(new, int):
        return 0
    return new - old if new >= old else new


def _rise_of(reading: str, old: dict[str, Any], new: dict[str, Any]) -> Optional[int]:
    before, after = old.get(reading), new.get(reading)
    return after - before if isinstance(before, int) and isinstance(after, int) and after >= before else None


def identity_of(index: int, gpu: dict[str, Any]) -> str:
    """Return a GPU's UUID, else its PCI address, else its index as text, to find it in other readings."""
    return str(gpu.get("uuid") or gpu.get("pci_address") or f"index {index}")
