"""The telemetry helper process: reads sources that may hang in a driver, and reports to the runner by lines of JSON.

A line of settings begins a stage, the next line ends it; the end of standard input, or a stage whose source failed or
hangs, ends the process. A source of GPU readings has a thread of its own, so that a call that never returns stops no
other source.
"""

from __future__ import annotations

import functools
import io
import json
import math
import os
import re
import resource
import select
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from gpuval_node.hardware import link_counters, nics, pci
from gpuval_node.hardware.memory import NO_CONTROLLER, errors, meminfo
from gpuval_node.hardware.source import Source, SourceError
from gpuval_node.hardware.tree import Tree, read_number, read_text
from gpuval_node.network.parallel import in_parallel
from gpuval_node.process_stat import oom_kills

from gpuval_runner.telemetry import kernel_log

if TYPE_CHECKING:
    from gpuval_runner.telemetry import events

#: Seconds after which a source's first calls count as hung: these calls may have to wake every GPU.
FIRST_HUNG_SECONDS = 60.0
#: Seconds that all last readings together may take once the stage has ended; monitor.END_SECONDS is longer.
AFTER_SECONDS = 10.0
#: Seconds that tools may take to read counters, short enough to leave time for the last readings of an ended stage;
#: the second value is for sources that consist of a tool alone.
COUNTERS_SECONDS, TOOLS_SECONDS = 5.0, 20.0
#: Seconds that the last read of the kernel's log may take; it stops earlier at the log's end.
DRAIN_SECONDS = 2.0
#: Seconds that counters of network ports may take: those of InfiniBand are asked from the NIC's firmware.
PORTS_SECONDS = 2.0
LEAST_PERIOD_SECONDS, LONGEST_PERIOD_SECONDS = 0.1, 3600.0
#: Driver files that identify the GPU vendor; the first file that exists counts.
DRIVER_FILES = (
    ("nvidia", "proc/driver/nvidia"),
    ("nvidia", "dev/nvidiactl"),
    ("amd", "sys/class/kfd"),
    ("gaudi", "sys/class/accel"),
)
MAX_TEXT = 500
MAX_TEXTS_A_LOOK = 50


#: hwmon drivers of processors, and the labels of sensors for a whole package. coretemp reads each core by an interrupt
#: to that core, which would disturb the work.
_PACKAGE, _CONTROL = re.compile(r"package", re.IGNORECASE), re.compile(r"tctl|tdie", re.IGNORECASE)
CPU_SENSORS = {"coretemp": _PACKAGE, "k10temp": _CONTROL, "zenpower": _CONTROL}
#: Fields of /proc/meminfo: used memory is the total less the available, so caches do not count.
MEMORY = {"MemTotal", "MemAvailable"}
CPU_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal")


class HostSensors:
    """Reads host figures from files below `root`; the list of sensors is made once."""

    def __init__(self, root: str = "/") -> None:
        self._root, self._tree = Path(root), Tree(root)
        self._sensors = sensors(self._root)
        self._before = cpu_times(self._text("proc/stat"))
        self._errors, self._pcie = errors(self._tree), pci.aer_counts(self._tree)
        self._ports, self._ports_read_at = self._network_ports(), time.monotonic()
        self.absent = {kind: pci.NO_AER for kind, counts in self._pcie.items() if not counts}
        uncounted = link_counters.FAILURES.keys() - link_counters.failures(self._ports, self._ports, 0)
        self.absent.update(dict.fromkeys(uncounted, link_counters.NO_PORT))
        if not self._sensors:
            self.absent["cpu_temperature_celsius"] = "neither hwmon nor a thermal zone measures the processors here"
        self.absent.update({name: NO_CONTROLLER for name, count in self._errors.items() if count is None})

    def sample(self) -> dict[str, float]:
        """Return `cpu_utilisation_ratio` since the last sample, `memory_used_bytes`, `cpu_temperature_celsius`."""
        after, memory = cpu_times(self._text("proc/stat")), meminfo(self._text("proc/meminfo"))
        temperatures = [value for value in map(read_number, self._sensors) if value is not None]
        before, worked = self._before, None
        if before and after and after[0] > before[0]:
            worked = min(1.0, max(0.0, 1 - (after[1] - before[1]) / (after[0] - before[0])))
        reading: dict[str, Optional[float]] = {
            "cpu_utilisation_ratio": worked,
            "memory_used_bytes": memory["MemTotal"] - memory["MemAvailable"] if memory.keys() >= MEMORY else None,
            "cpu_temperature_celsius": max(temperatures) / 1000 if temperatures else None,
        }
        self._before = after or self._before
        return {name: value for name, value in reading.items() if value is not None}

    def oom_kills(self) -> Optional[int]:
        """Return the number of OOM kills since boot."""
        return oom_kills(self._root / "proc/vmstat")

    def memory_errors(self) -> dict[str, int]:
        """Return the memory errors by kind that the memory controllers counted since this object was made."""
        pairs = {name: (self._errors[name], now) for name, now in errors(self._tree).items()}
        return {k: max(0, now - old) for k, (old, now) in pairs.items() if old is not None and now is not None}

    def pcie_errors(self) -> dict[str, dict[str, int]]:
        """Return the PCIe errors since this object was made, by kind and device, without kinds that are not counted."""
        now = pci.aer_counts(self._tree)
        return {
            kind: {device: now[kind][device] - old for device, old in before.items() if now[kind].get(device, 0) > old}
            for kind, before in self._pcie.items()
            if before
        }

    @functools.cached_property
    def link_failures(self) -> dict[str, dict[str, float]]:
        """Return what failed on links of network ports since this object was made, by kind and port; read once."""
        now, seconds = self._network_ports(), time.monotonic() - self._ports_read_at
        return link_counters.failures(self._ports, now, seconds)

    def _network_ports(self) -> list[link_counters.NetworkPort]:
        task = functools.partial(link_counters.network_ports, self._tree)
        ports: list[link_counters.NetworkPort] = in_parallel({"ports": task}, PORTS_SECONDS).get("ports", [])
        return ports

    def _text(self, name: str) -> str:
        return read_text(self._root / name) or ""


def sensors(root: Path) -> list[Path]:
    """Return the temperature files of the CPU packages, below the root of a file system."""
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
    """Return total and idle clock ticks by the first line of /proc/stat (proc_stat(5)); guest time is in user time."""
    fields = stat.partition("\n")[0].split()
    if len(fields) < 6 or fields[0] != "cpu" or not all(field.isdigit() for field in fields[1:]):
        return None
    ticks = [int(field) for field in fields[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


_REPORTING = threading.Lock()


def report(kind: str, **fields: Any) -> None:
    """Write a message as JSON to the runner; end the process if the runner is gone."""
    view = memoryview(json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode("ascii") + b"\n")
    with _REPORTING:
        try:
            while view:
                view = view[os.write(1, view) :]
        except OSError:
            os._exit(0)


class GpuSampler(threading.Thread):
    """Thread that samples the GPUs until stopped, and reads error counters before and after."""

    def __init__(self, settings: dict[str, Any], period: float) -> None:
        super().__init__(name="gpus", daemon=True)
        self._settings, self._period, self._hung_seconds = settings, period, settings["hung_seconds"]
        self._stop_asked = threading.Event()
        #: Monotonic time until which all must be reported; set once the stage has ended.
        self._deadline = math.inf
        #: Start of the driver call under way, and its limit in seconds; None between calls.
        self.call: Optional[tuple[float, float]] = (time.monotonic(), FIRST_HUNG_SECONDS)
        #: Whether the thread has ended and holds no driver resources.
        self.ended_well = False

    def stop(self, deadline: float) -> None:
        self._deadline = deadline
        self._stop_asked.set()

    def hung(self) -> Optional[float]:
        """Return the limit in seconds that the driver call under way has exceeded, None if it has not."""
        call = self.call
        return call[1] if call and time.monotonic() - call[0] > call[1] else None

    def run(self) -> None:
        try:
            self._work()
            self.ended_well = True
        except SourceError as error:
            report("no_gpus", reason=str(error))
        except Exception as error:
            report("no_gpus", reason=f"{type(error).__name__}: {error}"[:MAX_TEXT])
        finally:
            self.call = None

    def _work(self) -> None:
        source = open_source(self._settings)
        if source is None:
            return
        report("source", name=source.name)
        self._report_counters("before", source)
        period = max(self._period, source.least_period_seconds)
        due = time.monotonic()
        while True:
            self.call = (time.monotonic(), max(self._hung_seconds, 4 * source.least_period_seconds))
            sampled_at = time.monotonic()
            report("gpus", at=sampled_at, gpus=source.sample())
            self.call = None
            due = max(due + period, time.monotonic())
            if self._stop_asked.wait(due - time.monotonic()):
                break
        self.call = (time.monotonic(), self._hung_seconds)
        report("absent", what=source.absent)  # report now as well: the next calls may hang
        self._report_counters("after", source)
        report("absent", what=source.absent)
        source.close()

    def _report_counters(self, kind: str, source: Source) -> None:
        """Report a source's counters, first those that need no tool: a slow tool must not hide a lost GPU."""
        at_once = source.counters_at_once()
        if at_once:
            report(kind, at=time.monotonic(), gpus=at_once)
            if kind == "before" and self._stop_asked.is_set():
                return  # the time that is left is for the counters after the stage
        seconds = min(COUNTERS_SECONDS if at_once else TOOLS_SECONDS, self._deadline - time.monotonic())
        if seconds > 0:
            report(kind, at=time.monotonic(), gpus=source.counters(seconds))
        elif not at_once:
            raise SourceError("no time was left to read the counters")


class Helper:
    """Samples one stage: reads host and kernel log in a loop and watches whether the GPU thread still answers."""

    def __init__(self, settings: dict[str, Any], cpu_before: float = 0.0) -> None:
        """`cpu_before`: processor time of the helper for earlier stages, in seconds."""
        self._cpu_before = cpu_before
        self._period = min(LONGEST_PERIOD_SECONDS, max(LEAST_PERIOD_SECONDS, float(settings["period_seconds"])))
        self._host = HostSensors(settings["root"])
        self._oom = self._host.oom_kills()
        self._log = None if settings["kmsg"] is None else kernel_log.KernelLog(settings["kmsg"])
        self._no_log = settings["no_kmsg"]
        self._events: Optional[events.KernelLogReader] = None
        self._unlinked = nics.without_link(Tree(settings["root"]))
        self._since = kernel_log.Position(*settings["since"])
        self._sampler = GpuSampler(settings, self._period)
        self._reported_hung = False

    def run(self, ends: tuple[int, ...]) -> bool:
        """Sample until a file descriptor of `ends` is readable or closed. Returns whether another stage may follow."""
        self._sampler.start()
        due = time.monotonic()
        while True:
            self._look()
            due = max(due + self._period, time.monotonic())
            if select.select(ends, [], [], max(0.0, due - time.monotonic()))[0]:
                break
        deadline = time.monotonic() + AFTER_SECONDS
        self._sampler.stop(deadline)
        self._report_end(kernel_log.LATE)  # if the helper is killed from here on, this says why the log is missing
        self._look()
        if self._log:
            self._drain(self._log)
        else:
            try:
                messages, position = kernel_log.by_tools(self._since, deadline - time.monotonic())
            except kernel_log.NoLogError as error:
                self._report_end(kernel_log.LATE if str(error) == kernel_log.LATE else self._no_log)
            else:
                self._report_kernel(messages.texts)
                self._report_end("", "journalctl or dmesg", lost=messages.lost, position=[*position])
        if self._sampler.hung() is None:
            self._sampler.join(max(0.0, deadline - time.monotonic()))
        if self._log:
            self._drain(self._log)  # reads messages that the last readings caused
        return self._sampler.ended_well

    def _look(self) -> None:
        report("host", at=time.monotonic(), host=self._host.sample())
        if self._log:
            self._report_kernel(self._log.read())
        limit = self._sampler.hung()
        if (limit is not None) != self._reported_hung:
            self._reported_hung = limit is not None
            report("hung" if self._reported_hung else "resumed", limit_seconds=limit)

    def _report_kernel(self, texts: list[str]) -> None:
        if not texts:
            return
        if self._events is None:  # imported here, as most stages have no messages
            from gpuval_runner.telemetry import events

            self._events = events.KernelLogReader(self._unlinked)
        counted: dict[events.KernelEvent, list[str]] = {}
        for event, text in self._events.read(texts):
            counted.setdefault(event, []).append(text[:MAX_TEXT])
        for event, lines in counted.items():
            about = {"event": event.kind, "number": event.number, "address": event.address, "critical": event.critical}
            report("kernel", **about, count=len(lines), texts=lines[:MAX_TEXTS_A_LOOK])

    def _drain(self, log: kernel_log.KernelLog) -> None:
        """Read the kernel's log to its end, in bounded time; messages of a flood beyond that are lost to this stage."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while True:
            self._report_kernel(log.read())
            is_late = log.more and time.monotonic() >= deadline
            log.lost = log.lost or is_late
            if is_late or not log.more:
                self._report_end(log.problem, "/dev/kmsg")
                return

    def _report_end(
        self, problem: str, source: str = "", *, lost: bool = False, position: Optional[list[float]] = None
    ) -> None:
        """Report processor time, OOM kills, errors of memory, PCIe and links, and how the kernel's log was read
        (`source`), or why it was not (`problem`). A later report replaces this report."""
        before, now = self._oom, self._host.oom_kills()
        report(
            "end",
            kernel_log=None if problem else source,
            kernel_problem=problem,
            kernel_lost=lost or bool(self._log and self._log.lost),
            kernel_position=position,
            oom_kills=None if before is None or now is None else max(0, now - before),
            memory_errors=self._host.memory_errors(),
            pcie_errors=self._host.pcie_errors(),
            link_failures=self._host.link_failures,
            host_absent=self._host.absent,
            cpu_seconds=round(cpu_seconds() - self._cpu_before, 3),
        )


def open_source(settings: dict[str, Any]) -> Optional[Source]:
    """Return the source that reads a vendor's GPUs; None for a node without GPUs. Raises ``SourceError``."""
    vendor, root = settings["vendor"], Path(settings["root"])
    if vendor == "auto":
        vendor = next((name for name, path in DRIVER_FILES if (root / path).exists()), "")
    if vendor == "nvidia":
        from gpuval_node.hardware.nvml import open_nvidia

        return open_nvidia()
    if vendor == "amd":
        from gpuval_node.hardware.amd_gpus import Amd

        return Amd(str(root))
    if vendor == "gaudi":
        from gpuval_node.hardware.gaudi_gpus import Gaudi

        return Gaudi()
    return None


def cpu_seconds() -> float:
    """Return the processor time of this process and its tools so far, in seconds."""
    used = [resource.getrusage(process_kind) for process_kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def serve(ended: int) -> None:
    """Sample stage after stage until the standard input ends, or the file descriptor `ended` is readable."""
    cpu_before = 0.0
    orders = io.FileIO(0, closefd=False)  # unbuffered: a buffered read would hide lines from select
    while True:
        line = b"" if ended in select.select((0, ended), (), ())[0] else orders.readline()
        if not line or not Helper(json.loads(line), cpu_before).run((0, ended)):
            return
        if ended in select.select((0, ended), (), ())[0] or not orders.readline():
            return
        cpu_before = cpu_seconds()
        report("done")


def main() -> None:
    """Run the helper; never returns. A TERM ends the helper like the end of its input."""
    ended, ending = os.pipe()
    os.set_blocking(ending, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(ending)
    try:
        serve(ended)
    finally:
        os._exit(0)  # a thread in a driver's call cannot be ended, and Python would need libgcc_s to try
