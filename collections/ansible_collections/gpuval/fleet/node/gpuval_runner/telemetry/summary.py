"""Metrics and curves of the telemetry helper's reports, in bounded memory however long the stage takes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from gpuval_runner.result import RecordCurve, RecordMetric, number
from gpuval_runner.telemetry.events import KINDS
from gpuval_runner.telemetry.gpu_figures import (
    BUSY_RATIO,
    CARRIED,
    COUNTERS,
    CURVES,
    FIGURES,
    HARDWARE_RATIO,
    HELD_RATIO,
    POWER_RATIO,
    GpuFigures,
    GpuReadings,
    SeenGpu,
    TelemetryComparison,
    Values,
    identity_of,
)
from gpuval_runner.telemetry.kernel_log import Position
from gpuval_runner.text import one_line

MAX_KERNEL_EVENTS = 50
MAX_KERNEL_LINES = 200
MAX_TEXT = 300
MAX_CHANGES = 100
MAX_GPUS = 1024

#: Reading that each metric is made of. Why a reading is absent explains why its metric is.
MADE_OF = {
    **{name: "throttle" if reading.startswith("throttle") else reading for name, reading, _what, _busy in FIGURES},
    POWER_RATIO: "power_limit_watts",
    HELD_RATIO: "sm_clock_hertz",
    **dict(COUNTERS),
}
#: Metrics of the host: name, reading, statistic of the values.
HOST_FIGURES = (
    ("cpu_temperature_max_celsius", "cpu_temperature_celsius", "most"),
    ("cpu_utilisation_mean_ratio", "cpu_utilisation_ratio", "mean"),
    ("memory_used_max_bytes", "memory_used_bytes", "most"),
)
#: Metrics of main memory's errors during the stage, and their names in the helper's reports.
MEMORY_ERRORS = (
    ("memory_ecc_corrected_new_count", "ecc_corrected_count"),
    ("memory_ecc_uncorrected_new_count", "ecc_uncorrected_count"),
)
LINK_DOWN = "link_down_new_count"
#: Metrics of errors that PCIe devices (AER) and network ports counted during the stage, their names in the helper's
#: reports, and in words. A ratio is that of the worst port, a count the sum.
DEVICE_ERRORS = (
    ("pcie_corrected_new_count", "pcie_corrected", "corrected PCIe errors"),
    ("pcie_nonfatal_new_count", "pcie_nonfatal", "uncorrected nonfatal PCIe errors"),
    ("pcie_fatal_new_count", "pcie_fatal", "fatal PCIe errors"),
    (LINK_DOWN, "link_down", "losses or recoveries of the link"),
    ("link_symbol_error_new_ratio", "link_symbol_error_ratio", "symbol errors for each bit"),
    ("link_carrier_down_new_count", "link_carrier_down", "losses of the carrier"),
    ("link_crc_error_new_count", "link_crc_error", "frames with a wrong checksum"),
)
HOST_MADE_OF = tuple((row[0], row[1]) for row in (*HOST_FIGURES, *MEMORY_ERRORS, *DEVICE_ERRORS))
OF_BUSY = frozenset({POWER_RATIO, HELD_RATIO, *(name for name, _reading, _what, is_busy in FIGURES if is_busy)})
NEVER_BUSY = f"no sample with a utilisation of {BUSY_RATIO:.0%} or more"
#: Reason for a missing value without an explanation by its source: it excuses nothing.
NO_VALUE = "its source gave no value"
NOT_COMPARED = "its counters were not read both before and after the stage"


class TelemetrySummary:
    """Collects the telemetry helper's messages and gives metrics, curves and environment of a record."""

    def __init__(self, begun: float, period_seconds: float, earlier: Sequence[SeenGpu] = ()) -> None:
        """`begun` is the stage's start by the monotonic clock, `earlier` are the GPUs that earlier stages saw."""
        self._earlier = list(earlier)
        self._begun, self._period = begun, period_seconds
        self._gpus: dict[int, GpuFigures] = {}
        #: Counters before and after the stage by kind of message, and the monotonic times at which they were read.
        self._counters: dict[str, GpuReadings] = {}
        self._counted_at: dict[str, Optional[float]] = {}
        self._host: dict[str, Values] = {}
        self._samples = self._host_samples = 0
        self._last = 0.0  # seconds of the stage at the last sample
        self._source = ""
        self._absent: dict[str, str] = {}
        self._kinds: Counter[str] = Counter()
        self._critical: Counter[Optional[str]] = Counter()
        self._events: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._end: dict[str, Any] = {}
        self._hung: Optional[float] = None
        self.kernel_lines: list[str] = []
        #: Why the readings of GPUs stopped, for the stage's message; empty if they did not.
        self.problem = ""

    @property
    def position(self) -> Optional[Position]:
        """Return the position up to which tools read the kernel's log, None if no tool did."""
        position = self._end.get("kernel_position")
        wall, boot = map(number, position) if isinstance(position, list) and len(position) == 2 else (None, None)
        return None if wall is None or boot is None else Position(wall, boot)

    def seen(self) -> list[SeenGpu]:
        """Return the GPUs that this stage or an earlier one saw, each with its last index."""
        gpus = {identity_of(index, gpu): (index, gpu) for index, gpu in self._earlier}
        for index, gpu in (pair for readings in self._counters.values() for pair in readings.items()):
            if gpu.get("uuid") or gpu.get("pci_address"):
                carried = {name: gpu[name] for name in CARRIED if gpu.get(name) not in (None, "")}
                gpus[identity_of(index, gpu)] = (index, carried)
        return list(gpus.values())[-MAX_GPUS:]

    def take(self, message: Any) -> None:
        """Add one message of the helper; a malformed message is ignored."""
        if not isinstance(message, dict):
            return
        kind = message.get("kind")
        if kind == "source":
            self._source = str(message.get("name"))
        elif kind in ("before", "after"):
            self._counters[kind] = _by_index(message.get("gpus"))
            self._counted_at[kind] = number(message.get("at"))
        elif kind == "end":
            self._end = message
        elif taker := getattr(self, f"_take_{kind}", None):
            taker(message)

    def _take_gpus(self, message: dict[str, Any]) -> None:
        x = number(message.get("at"))
        if x is None:
            return
        self._samples += 1
        self._last = max(0.0, x - self._begun)
        for index, sample in _by_index(message.get("gpus")).items():
            self._gpus.setdefault(index, GpuFigures()).add(self._last, sample)

    def _take_host(self, message: dict[str, Any]) -> None:
        self._host_samples += 1
        host = message.get("host")
        for name, value in host.items() if isinstance(host, dict) else ():
            self._host.setdefault(name, Values()).add(number(value))

    def _take_absent(self, message: dict[str, Any]) -> None:
        reasons = message.get("what")
        self._absent.update({str(k): str(v) for k, v in reasons.items()} if isinstance(reasons, dict) else {})

    def _take_no_gpus(self, message: dict[str, Any]) -> None:
        reason = one_line(str(message.get("reason")), MAX_TEXT)
        self._absent["gpus"] = reason
        if "before" in self._counters:
            self.problem = f"telemetry of the GPUs stopped after {self._last:.0f} s: {reason}"

    def _take_hung(self, message: dict[str, Any]) -> None:
        self._hung = number(message.get("limit_seconds"))
        self.problem = (
            f"telemetry of the GPUs stopped after {self._last:.0f} s: a call of the driver did not return within "
            f"{self._hung or 0:.0f} s"
        )
        self._absent["gpus"] = self.problem

    def _take_resumed(self, _message: dict[str, Any]) -> None:
        self._absent.pop("gpus", None)
        self.problem = ""

    def _take_kernel(self, message: dict[str, Any]) -> None:
        kind, count = message.get("event"), message.get("count")
        if kind not in KINDS or not isinstance(count, int):
            return
        room = MAX_KERNEL_LINES - len(self.kernel_lines)
        lines = message.get("texts")
        texts = [one_line(str(line), MAX_TEXT) for line in (lines if isinstance(lines, list) else [])[: max(1, room)]]
        address = message.get("address")
        self._kinds[kind] += count
        if message.get("critical"):
            self._critical[address] += count
        xid, text = message.get("number"), texts[0] if texts else ""
        key = (kind, xid, address)
        if key not in self._events and len(self._events) >= MAX_KERNEL_EVENTS:  # more events of a kind share an entry
            key, text = (kind, None, None), ""
        new = {**dict(zip(("kind", "number", "address"), key)), "count": 0, "text": text}
        self._events.setdefault(key, new)["count"] += count
        self.kernel_lines += texts[: max(0, room)]

    def stop(self, reason: str) -> None:
        """Note why the helper ended before it had reported everything."""
        if not self._end:
            self.problem = self.problem or reason
            self._absent.setdefault("telemetry", reason)

    def metrics(self) -> list[RecordMetric]:
        """Return the metrics that are known so far; `environment` has the reasons for absent ones."""
        summary: list[RecordMetric] = []

        def add(name: str, value: Optional[float], scope: str = "node") -> None:
            if value is not None:
                # Six decimals are enough for sensors, but not for ratios of errors.
                value = round(value, 6) if abs(value) > 1e-6 else value
                summary.append({"name": name, "value": value, "unit": name.rpartition("_")[2], "scope": scope})

        samples = self._samples if self._source else self._host_samples
        add("telemetry_samples_count", samples)
        for name, reading, statistic in HOST_FIGURES:
            add(name, getattr(self._host.get(reading), statistic, None))
        rises = self._end.get("memory_errors")
        for name, reading in MEMORY_ERRORS:
            add(name, number(rises.get(reading)) if isinstance(rises, dict) else None)
        for name, errors in self._device_errors():
            add(name, max(errors.values(), default=0) if name.endswith("_ratio") else sum(errors.values()))
        kernel = {f"kernel_{kind}_count": self._counted(self._kinds[kind]) for kind in KINDS}
        if kernel["kernel_oom_count"] is None and self._end:
            kernel["kernel_oom_count"] = self._end.get("oom_kills")
        kernel["kernel_xid_critical_count"] = self._counted(sum(self._critical.values()))
        for name, value in kernel.items():
            add(name, value)
        compared = self._compared()
        exact = compared.throttled if compared else {}
        for index, gpu_figures in sorted(self._gpus.items()):
            sampled, counted = gpu_figures.figures(), exact.get(index, {})
            if counted.get(HARDWARE_RATIO) == 0 and sampled.get(HARDWARE_RATIO):
                del counted[HARDWARE_RATIO]  # the samples show a slowdown that has no counter
            for name, figure in {**sampled, **counted}.items():
                add(name, figure, f"gpu:{index}")
        if compared:
            for index, name, rise in compared.new:
                add(name, rise, f"gpu:{index}")
            add("gpu_lost_count", len(compared.lost))
            add("topology_changed_count", compared.topology)
        for index, gpu in sorted(self._counters.get("before", {}).items()):
            if gpu.get("pci_address"):
                add("gpu_xid_critical_count", self._counted(self._critical[gpu["pci_address"]]), f"gpu:{index}")
        return summary

    def _device_errors(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield each metric of PCIe and link errors, with the number of errors by device or port."""
        fields = [self._end.get(name) for name in ("pcie_errors", "link_failures")]
        rises = {kind: errors for field in fields if isinstance(field, dict) for kind, errors in field.items()}
        for name, kind, _words in DEVICE_ERRORS:
            if isinstance(rises.get(kind), dict):
                yield name, {str(device): number(rise) or 0 for device, rise in rises[kind].items()}

    def _counted(self, count: int) -> Optional[int]:
        """Return a count of kernel messages; None for zero if the log was not read completely."""
        is_complete = self._end.get("kernel_log") and not self._end.get("kernel_lost")
        return count if count or is_complete else None

    def _compared(self) -> Optional[TelemetryComparison]:
        before, after = (self._counters.get(kind) for kind in ("before", "after"))
        if before is None or after is None or not (before or after or self._earlier):
            return None
        begin, end = (self._counted_at[kind] for kind in ("before", "after"))
        return TelemetryComparison(before, after, self._earlier, None if begin is None or end is None else end - begin)

    def curves(self) -> list[RecordCurve]:
        """Return the GPUs' curves over seconds since the stage began."""
        return [
            {
                "name": name,
                "unit": unit,
                "scope": f"gpu:{index}",
                "x_unit": "seconds",
                "x": [round(x, 2) for x, _ in gpu.curves[reading].points()],
                "y": [round(y, decimals or None) for _, y in gpu.curves[reading].points()],
            }
            for index, gpu in sorted(self._gpus.items())
            for name, unit, reading, decimals in CURVES
            if reading in gpu.curves
        ]

    def environment(self) -> dict[str, Any]:
        """Return `telemetry` (source, cost, changes, what is absent and why) and `kernel_events`."""
        end = self._end
        telemetry: dict[str, Any] = {
            "source": self._source or None,
            "period_seconds": self._period,
            "cpu_seconds": end.get("cpu_seconds"),
            "kernel_log": end.get("kernel_log") or end.get("kernel_problem") or None,
            "absent": self._reasons(),
        }
        compared = self._compared()
        words = {name: text for name, _kind, text in DEVICE_ERRORS}
        errors_in_words = [
            f"{one_line(device, 32)}: {rise:.6g} {words[name]}"
            for name, errors in self._device_errors()
            for device, rise in errors.items()
            if rise
        ]
        if compared or errors_in_words:
            telemetry["changes"] = [*errors_in_words, *(compared.changes if compared else ())][:MAX_CHANGES]
        lost = dict(self._device_errors()).get(LINK_DOWN, {})
        if any(lost.values()):
            telemetry["links_down"] = [one_line(port, 32) for port, rise in lost.items() if rise][:MAX_CHANGES]
        if compared:
            telemetry["throttling"] = "counters of the driver" if any(compared.throttled.values()) else "samples"
        if end.get("kernel_lost"):
            telemetry["kernel_log_lost"] = "messages came faster than they could be read"
        before = self._counters.get("before", {})
        by_address = {gpu.get("pci_address"): {"gpu": index} for index, gpu in before.items()}
        events = [{**event, **by_address.get(event["address"], {})} for event in self._events.values()]
        return {"telemetry": telemetry, "kernel_events": events}

    def _reasons(self) -> dict[str, str]:
        absent = {name: one_line(reason, MAX_TEXT) for name, reason in self._absent.items() if name in OWN_REASONS}
        absent.update({k: v for k, v in self._absent.items() if k.startswith("gpu:") or k in TOOLS})
        present = {metric["name"] for metric in self.metrics()}
        if self._source or self._gpus:
            for name, reading in MADE_OF.items():
                if name not in present:
                    absent[name] = self._why(name, reading)
            if self._end and "gpu_lost_count" not in present:
                absent["gpu_lost_count"] = absent["topology_changed_count"] = NOT_COMPARED
        if self._end and not self._end.get("kernel_log"):
            absent["kernel_log"] = str(self._end.get("kernel_problem") or "cannot be read")
        host_absent = self._end.get("host_absent") or {}
        for name, reading in HOST_MADE_OF:
            if name not in present and reading in host_absent:
                absent[name] = str(host_absent[reading])
        return absent

    def _why(self, name: str, reading: str) -> str:
        """Return why the metric `name`, which is made of a reading, is absent."""
        reason = self._absent.get(reading)
        if reason:
            return reason
        if any(reading in gpu.always for gpu in self._gpus.values()):
            return NEVER_BUSY if name in OF_BUSY else "no value"
        return NOT_COMPARED if reading in dict(COUNTERS).values() and not self._compared() else NO_VALUE


OWN_REASONS = frozenset({"gpus", "telemetry"})
TOOLS = frozenset({"nvml", "amd-smi", "rocm-smi"})


def _by_index(gpus: Any) -> GpuReadings:
    """Return the readings of the reported GPUs. In JSON the GPU's index is a text."""
    pairs = gpus.items() if isinstance(gpus, dict) else ()
    return {int(k): v for k, v in list(pairs)[:MAX_GPUS] if str(k).isdigit() and isinstance(v, dict)}
