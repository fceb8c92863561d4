"""Metrics and curves of what the helper told, in bounded memory however long the stage takes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from gpuval_runner.result import number
from gpuval_runner.telemetry.events import KINDS
from gpuval_runner.telemetry.kernel_log import Position
from gpuval_runner.text import one_line

BUSY_RATIO = 0.9
MAX_POINTS = 600
MAX_KERNEL_EVENTS = 50
MAX_KERNEL_LINES = 200
MAX_TEXT = 300
MAX_CHANGES = 100
MAX_GPUS = 1024

#: Curve of a GPU: name, unit, reading, decimals.
CURVES = (
    ("gpu_power_watts", "watts", "power_watts", 1),
    ("gpu_temperature_celsius", "celsius", "temperature_celsius", 1),
    ("gpu_sm_clock_hertz", "hertz", "sm_clock_hertz", 0),
    ("gpu_utilisation_ratio", "ratio", "utilisation_ratio", 3),
    ("gpu_memory_used_bytes", "bytes", "memory_used_bytes", 0),
)
#: Counters that are compared before and after: metric and reading.
COUNTERS = (
    ("gpu_ecc_corrected_new_count", "ecc_corrected"),
    ("gpu_ecc_uncorrected_new_count", "ecc_uncorrected"),
    ("gpu_row_remap_new_count", "row_remaps"),
    ("gpu_link_error_new_count", "link_errors"),
    ("gpu_link_corrected_new_count", "link_corrected"),
    ("gpu_pcie_replay_new_count", "pcie_replays"),
)
#: Which reading a metric is made of, to say why it is absent.
MADE_OF = {
    "gpu_temperature_max_celsius": "temperature_celsius",
    "gpu_power_mean_watts": "power_watts",
    "gpu_power_max_watts": "power_watts",
    "gpu_power_limit_watts": "power_limit_watts",
    "gpu_power_busy_mean_watts": "power_watts",
    "gpu_power_busy_ratio": "power_limit_watts",
    "gpu_sm_clock_busy_mean_hertz": "sm_clock_hertz",
    "gpu_utilisation_mean_ratio": "utilisation_ratio",
    "gpu_memory_used_max_bytes": "memory_used_bytes",
    "gpu_memory_temperature_max_celsius": "memory_temperature_celsius",
    "gpu_throttle_thermal_ratio": "throttle",
    "gpu_throttle_power_ratio": "throttle",
    "gpu_throttle_hardware_ratio": "throttle",
    "gpu_pcie_width_min_count": "pcie_width",
    "gpu_pcie_generation_min_count": "pcie_generation",
    **dict(COUNTERS),
}
OF_BUSY = frozenset(
    {
        "gpu_power_busy_mean_watts",
        "gpu_power_busy_ratio",
        "gpu_sm_clock_busy_mean_hertz",
        "gpu_pcie_generation_min_count",
    }
)
NEVER_BUSY = f"no sample with a utilisation of {BUSY_RATIO:.0%} or more"
#: Where no source says that it cannot be had: no excuse.
NO_VALUE = "its source gave no value"
NOT_COMPARED = "its counters were not read both before and after the stage"


#: What tells a GPU from others, and a GPU that was seen, with its index then.
IDENTITY = ("uuid", "pci_address")
SeenGpu = tuple[int, dict[str, Any]]


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


class Curve:
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
class _Gpu:
    """What one GPU's samples come to."""

    means: dict[str, Mean] = field(default_factory=dict)
    busy: dict[str, Mean] = field(default_factory=dict)
    whole_degrees: Counter[int] = field(default_factory=Counter)
    whole_watts: Counter[int] = field(default_factory=Counter)
    limit: Optional[float] = None
    curves: dict[str, Curve] = field(default_factory=dict)

    def add(self, x: float, sample: dict[str, Any]) -> None:
        values = {name: number(value) for name, value in sample.items()}
        for name, value in values.items():
            self.means.setdefault(name, Mean()).add(value)
        utilisation = values.get("utilisation_ratio")
        if utilisation is not None and utilisation >= BUSY_RATIO:
            for name in ("power_watts", "sm_clock_hertz", "pcie_generation"):
                self.busy.setdefault(name, Mean()).add(values.get(name))
        if values.get("temperature_celsius") is not None:
            self.whole_degrees[round(values["temperature_celsius"])] += 1
        if values.get("power_watts") is not None:
            self.whole_watts[round(values["power_watts"])] += 1
        self.limit = self.limit if values.get("power_limit_watts") is None else values["power_limit_watts"]
        for _name, _unit, reading, _decimals in CURVES:
            if values.get(reading) is not None:
                self.curves.setdefault(reading, Curve()).add(x, values[reading])

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


class Summary:
    """Takes the helper's messages; gives metrics, curves and what else is to be known."""

    def __init__(self, begun: float, period_seconds: float, earlier: Sequence[SeenGpu] = ()) -> None:
        """`begun` is the stage's start by the monotonic clock; `earlier` the GPUs that stages before it saw."""
        self._earlier = list(earlier)
        self._begun, self._period = begun, period_seconds
        self._gpus: dict[int, _Gpu] = {}
        self._before: Optional[dict[int, dict[str, Any]]] = None
        self._after: Optional[dict[int, dict[str, Any]]] = None
        self._host: dict[str, Mean] = {}
        self._samples = self._host_samples = 0
        self._source = ""
        self._absent: dict[str, str] = {}
        self._kinds: Counter[str] = Counter()
        self._critical: Counter[Optional[str]] = Counter()
        self._events: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._end: Optional[dict[str, Any]] = None
        self._hung: Optional[float] = None
        self.kernel_lines: list[str] = []
        #: Why the GPUs' readings stopped, for the stage's message.
        self.problem = ""

    @property
    def ended(self) -> bool:
        """Whether the helper has told everything."""
        return self._end is not None

    @property
    def position(self) -> Optional[Position]:
        """Up to where tools were asked for the kernel's log, if they were and answered."""
        told = (self._end or {}).get("kernel_position")
        times = [number(value) for value in told] if isinstance(told, list) else []
        return Position(*times) if len(times) == 2 and None not in times else None

    def seen(self) -> list[SeenGpu]:
        """Return the GPUs that this stage or one before it saw, each where it was last."""
        found = {_identity(index, gpu): (index, gpu) for index, gpu in self._earlier}
        for index, gpu in [*(self._before or {}).items(), *(self._after or {}).items()]:
            if gpu.get("uuid") or gpu.get("pci_address"):
                found[_identity(index, gpu)] = (index, {name: gpu[name] for name in IDENTITY if gpu.get(name)})
        return list(found.values())[-MAX_GPUS:]

    def take(self, message: Any) -> None:
        """Take one message; what is none is passed over."""
        if not isinstance(message, dict):
            return
        taker = getattr(self, f"_take_{message.get('kind')}", None)
        if taker:
            taker(message)

    def _take_source(self, message: dict[str, Any]) -> None:
        self._source = str(message.get("name"))

    def _take_before(self, message: dict[str, Any]) -> None:
        self._before = _by_index(message.get("gpus"))

    def _take_after(self, message: dict[str, Any]) -> None:
        self._after = _by_index(message.get("gpus"))

    def _take_gpus(self, message: dict[str, Any]) -> None:
        x = number(message.get("at"))
        if x is None:
            return
        self._samples += 1
        for index, sample in _by_index(message.get("gpus")).items():
            self._gpus.setdefault(index, _Gpu()).add(max(0.0, x - self._begun), sample)

    def _take_host(self, message: dict[str, Any]) -> None:
        self._host_samples += 1
        host = message.get("host")
        for name, value in host.items() if isinstance(host, dict) else ():
            self._host.setdefault(name, Mean()).add(number(value))

    def _take_absent(self, message: dict[str, Any]) -> None:
        what = message.get("what")
        self._absent.update({str(k): str(v) for k, v in what.items()} if isinstance(what, dict) else {})

    def _take_no_gpus(self, message: dict[str, Any]) -> None:
        told = one_line(str(message.get("reason")), MAX_TEXT)
        self._absent["gpus"] = told
        if self._before is not None:
            self.problem = f"telemetry of the GPUs stopped after {self._since()}: {told}"

    def _take_hung(self, message: dict[str, Any]) -> None:
        self._hung = number(message.get("limit_seconds"))
        self.problem = (
            f"telemetry of the GPUs stopped after {self._since()}: a call of the driver did not return within "
            f"{self._hung or 0:.0f} s"
        )
        self._absent["gpus"] = self.problem

    def _take_resumed(self, _message: dict[str, Any]) -> None:
        self._absent.pop("gpus", None)
        self.problem = ""

    def _since(self) -> str:
        last = max((points[-1][0] for points in self._last_points()), default=0.0)
        return f"{last:.0f} s"

    def _last_points(self) -> list[list[tuple[float, float]]]:
        curves = [curve.points() for gpu in self._gpus.values() for curve in gpu.curves.values()]
        return [points for points in curves if points]

    def _take_kernel(self, message: dict[str, Any]) -> None:
        kind, count = message.get("event"), message.get("count")
        if kind not in KINDS or not isinstance(count, int):
            return
        room = MAX_KERNEL_LINES - len(self.kernel_lines)
        told = message.get("texts")
        texts = [one_line(str(text), MAX_TEXT) for text in (told if isinstance(told, list) else [])[: max(1, room)]]
        address = message.get("address")
        self._kinds[kind] += count
        if message.get("critical"):
            self._critical[address] += count
        key = (kind, message.get("number"), address)
        if key not in self._events and len(self._events) < MAX_KERNEL_EVENTS:
            self._events[key] = {
                "kind": kind,
                "number": message.get("number"),
                "address": address,
                "count": 0,
                "text": texts[0] if texts else "",
            }
        if key in self._events:
            self._events[key]["count"] += count
        self.kernel_lines += texts[: max(0, room)]

    def _take_end(self, message: dict[str, Any]) -> None:
        self._end = message

    def stop(self, reason: str) -> None:
        """The helper is gone without having told everything."""
        if not self.ended:
            self.problem = self.problem or reason
            self._absent.setdefault("telemetry", reason)

    def metrics(self) -> list[dict[str, Any]]:
        """Return what can be said so far; what cannot is left out, and `environment` says why."""
        found: list[dict[str, Any]] = []

        def add(name: str, value: Optional[float], scope: str = "node") -> None:
            if value is not None:
                found.append({"name": name, "value": _plain(value), "unit": _unit(name), "scope": scope})

        samples = self._samples if self._source else self._host_samples
        add("telemetry_samples_count", samples)
        nothing = Mean()
        add("cpu_temperature_max_celsius", self._host.get("cpu_temperature_celsius", nothing).most)
        add("cpu_utilisation_mean_ratio", self._host.get("cpu_utilisation_ratio", nothing).value)
        add("memory_used_max_bytes", self._host.get("memory_used_bytes", nothing).most)
        for name, value in self._kernel_figures().items():
            add(name, value)
        for index in sorted(self._gpus):
            for name, value in self._gpus[index].figures().items():
                add(name, value, f"gpu:{index}")
        compared = self._compared()
        if compared:
            for index, name, value in compared.new:
                add(name, value, f"gpu:{index}")
            add("gpu_lost_count", len(compared.lost))
            add("topology_changed_count", compared.topology)
        for index, gpu in sorted((self._before or {}).items()):
            if gpu.get("pci_address"):
                add("gpu_xid_critical_count", self._counted(self._critical[gpu["pci_address"]]), f"gpu:{index}")
        return found

    def _kernel_readable(self) -> bool:
        return bool(self._end and self._end.get("kernel_log"))

    def _kernel_figures(self) -> dict[str, Optional[int]]:
        """Return the counts of the kernel's log; none where it could not be read, not zero."""
        counts = {f"kernel_{kind}_count": self._counted(self._kinds[kind]) for kind in KINDS}
        if counts["kernel_oom_count"] is None and self._end:
            counts["kernel_oom_count"] = self._end.get("oom_kills")
        return {**counts, "kernel_xid_critical_count": self._counted(sum(self._critical.values()))}

    def _counted(self, count: int) -> Optional[int]:
        """What was seen counts, whatever became of the log; that nothing was is known of a log that was read whole."""
        whole = self._kernel_readable() and not (self._end or {}).get("kernel_lost")
        return count if count or whole else None

    def _compared(self) -> Optional[Comparison]:
        if self._before is None or self._after is None or not (self._before or self._after or self._earlier):
            return None
        return compare(self._before, self._after, self._earlier)

    def curves(self) -> list[dict[str, Any]]:
        """Return the series of the GPUs, by seconds since the stage began."""
        found = []
        for index in sorted(self._gpus):
            for name, unit, reading, decimals in CURVES:
                curve = self._gpus[index].curves.get(reading)
                points = curve.points() if curve else []
                if points:
                    found.append(
                        {
                            "name": name,
                            "unit": unit,
                            "scope": f"gpu:{index}",
                            "x_unit": "seconds",
                            "x": [round(x, 2) for x, _ in points],
                            "y": [round(y, decimals) if decimals else round(y) for _, y in points],
                        }
                    )
        return found

    def environment(self) -> dict[str, Any]:
        """Return `telemetry` (source, cost, changes, what is absent and why) and `kernel_events`."""
        end = self._end or {}
        telemetry: dict[str, Any] = {
            "source": self._source or None,
            "period_seconds": self._period,
            "cpu_seconds": end.get("cpu_seconds"),
            "kernel_log": end.get("kernel_log") or end.get("kernel_problem") or None,
            "absent": self._reasons(),
        }
        compared = self._compared()
        if compared:
            telemetry["changes"] = compared.changes[:MAX_CHANGES]
        if end.get("kernel_lost"):
            telemetry["kernel_log_lost"] = "messages came faster than they could be read"
        by_address = {gpu.get("pci_address"): index for index, gpu in (self._before or {}).items()}
        events = [
            {**event, "gpu": by_address[event["address"]]} if event["address"] in by_address else event
            for event in self._events.values()
        ]
        return {"telemetry": telemetry, "kernel_events": events}

    def _reasons(self) -> dict[str, str]:
        absent = {name: one_line(reason, MAX_TEXT) for name, reason in self._absent.items() if name in OWN_REASONS}
        absent.update({k: v for k, v in self._absent.items() if k.startswith("gpu:") or k in TOOLS})
        there = {metric["name"] for metric in self.metrics()}
        if self._source or self._gpus:
            for name, reading in MADE_OF.items():
                if name not in there:
                    absent[name] = self._why(name, reading)
            if self._end and "gpu_lost_count" not in there:
                absent["gpu_lost_count"] = absent["topology_changed_count"] = NOT_COMPARED
        if self._end and not self._kernel_readable():
            absent["kernel_log"] = str(self._end.get("kernel_problem") or "cannot be read")
        host_absent = (self._end or {}).get("host_absent") or {}
        if "cpu_temperature_max_celsius" not in there and host_absent:
            absent["cpu_temperature_max_celsius"] = str(next(iter(host_absent.values())))
        return absent

    def _why(self, name: str, reading: str) -> str:
        told = self._absent.get(reading)
        if told:
            return told
        if any(reading in gpu.means for gpu in self._gpus.values()):
            return NEVER_BUSY if name in OF_BUSY else "no value"
        compared = reading in dict(COUNTERS).values()
        return NOT_COMPARED if compared and not self._compared() else NO_VALUE


OWN_REASONS = frozenset({"gpus", "telemetry"})
TOOLS = frozenset({"nvml", "amd-smi", "rocm-smi"})


@dataclass
class Comparison:
    """What differs between before and after: new errors by GPU, GPUs that are lost, changes in words."""

    new: list[tuple[int, str, int]] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    topology: int = 0
    changes: list[str] = field(default_factory=list)


def compare(
    before: dict[int, dict[str, Any]], after: dict[int, dict[str, Any]], earlier: Sequence[SeenGpu] = ()
) -> Comparison:
    """Compare counters and topology. A GPU is the same by its UUID, its PCI address or, without both, its index.

    A GPU that an earlier stage saw, or that the driver counts and has lost, is lost to this stage as well.
    """
    found = Comparison()
    old = {_identity(index, gpu): (index, gpu) for index, gpu in before.items() if not gpu.get("lost")}
    new = {_identity(index, gpu): (index, gpu) for index, gpu in after.items() if not gpu.get("lost")}
    for identity, (index, gpu) in old.items():
        place = f"gpu:{index} ({gpu.get('pci_address') or identity})"
        if identity not in new:
            found.lost.append(index)
            found.topology += 1
            found.changes.append(f"{place} is lost")
            continue
        _compare_gpu(found, index, place, gpu, new[identity][1])
    for identity in new.keys() - old.keys():
        found.topology += 1
        found.changes.append(f"gpu:{new[identity][0]} ({identity}) came")
    _lost_before(found, before, after, earlier)
    return found


def _lost_before(
    found: Comparison, before: dict[int, dict[str, Any]], after: dict[int, dict[str, Any]], earlier: Sequence[SeenGpu]
) -> None:
    """Add the GPUs that were lost when the stage began, and still are at its end."""
    there = [gpu for gpus in (before, after) for gpu in gpus.values() if not gpu.get("lost")]
    missing: list[int] = []
    names = {gpu.get(name) for gpu in there for name in IDENTITY} - {None}
    if all(any(gpu.get(name) for name in IDENTITY) for gpu in there):  # else nobody can say who is missing
        for index, gpu in earlier:
            if not names & {gpu.get(name) for name in IDENTITY}:
                missing.append(index)
                found.topology += 1
                found.changes.append(f"gpu:{index} ({gpu.get('pci_address') or gpu.get('uuid')}) was lost before")
    gone = [
        index
        for index, gpu in before.items()
        if gpu.get("lost") and not gpu.get("refused") and after.get(index, {}).get("lost")
    ]
    # A lost GPU has no name any more: those that are known by name are these.
    unnamed = [index for index in gone if index not in missing][: max(0, len(gone) - len(missing))]
    found.lost += [*missing, *unnamed]
    found.changes += [f"gpu:{index} was lost before" for index in unnamed]


def _compare_gpu(found: Comparison, index: int, place: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    for name, reading in COUNTERS:
        if reading not in old or reading not in new:
            continue
        if isinstance(old[reading], dict) and isinstance(new[reading], dict):
            risen = {link: _risen(old[reading].get(link, 0), value) for link, value in new[reading].items()}
            found.changes += [f"{place} link {link}: {rise} new errors" for link, rise in risen.items() if rise]
            found.new.append((index, name, sum(risen.values())))
            continue
        rise = _risen(old[reading], new[reading])
        found.new.append((index, name, rise))
        if rise and reading != "link_corrected":  # rises all the time
            found.changes.append(f"{place} {reading}: {old[reading]} before, {new[reading]} after")
    for name in ("pci_address", "pcie_width"):
        if old.get(name) != new.get(name) and name in old and name in new:
            found.topology += 1
            found.changes.append(f"{place} {name}: {old[name]} before, {new[name]} after")
    for name in ("row_remap_pending", "row_remap_failed"):
        if new.get(name) and not old.get(name):
            found.changes.append(f"{place} {name}")
    if "links_up" in old and "links_up" in new:
        was, now = set(old["links_up"]), set(new["links_up"])
        found.topology += len(was ^ now)
        found.changes += [f"{place} link {link} went down" for link in sorted(was - now)]
        found.changes += [f"{place} link {link} came up" for link in sorted(now - was)]


def _risen(old: Any, new: Any) -> int:
    """Return by how much a counter rose; one that is smaller than before was set back, by a reset of the GPU."""
    if not isinstance(old, int) or not isinstance(new, int):
        return 0
    return new - old if new >= old else new


def _identity(index: int, gpu: dict[str, Any]) -> str:
    return str(gpu.get("uuid") or gpu.get("pci_address") or f"index {index}")


def _by_index(gpus: Any) -> dict[int, dict[str, Any]]:
    """Return GPUs by index; JSON made the indices texts."""
    found = gpus.items() if isinstance(gpus, dict) else ()
    return {int(k): v for k, v in list(found)[:MAX_GPUS] if str(k).isdigit() and isinstance(v, dict)}


def _unit(name: str) -> str:
    return name.rpartition("_")[2]


def _plain(value: float) -> float:
    """Return a value as records carry it: six digits after the point are more than any sensor has."""
    return value if isinstance(value, int) else round(value, 6)
