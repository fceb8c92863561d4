"""AMD GPUs: read by `amd-smi` or the older `rocm-smi`, for telemetry by the driver's files in sysfs.

The files cost microseconds; `amd-smi` is a Python program of half a second and runs in the loop only where the files
are not there (a container), and then seldom. Files: kernel documentation, gpu/amdgpu/thermal.rst and driver-misc.rst.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Optional

from . import values
from .gpu import Detection, Fields, Gpu, failed_detection, read_fields
from .source import Counters, Sample, Source, SourceError, known
from .tools import VENDOR_TOOL_TIMEOUT_SECONDS, Run, ToolResult, toolbox
from .tree import Tree, read_number, read_text

VENDOR = "amd"
#: Partition mode of a GPU that is listed as several cards, if its tool does not name the mode.
SEVERAL_CARDS = "cpx"
ROCM_SMI_ARGUMENTS = (
    *("--showproductname", "--showuniqueid", "--showserial", "--showbus", "--showmeminfo", "vram"),
    *("--showdriverversion", "--showtemp", "--showpower", "--showmaxpower", "--showvbios", "--json"),
)


def detect(run: Run) -> Detection:
    newer = _detect_amd_smi(run)
    if newer.gpus or newer.hung:
        return newer
    older = _detect_rocm_smi(run)
    return older if older.gpus or not newer.installed else newer


def _detect_amd_smi(run: Run) -> Detection:
    answers: dict[str, Any] = {}
    problem, unclear = None, False
    for view in ("static", "list", "metric"):
        result = run("amd-smi", view, "--json", timeout=VENDOR_TOOL_TIMEOUT_SECONDS)
        if failed := failed_detection(VENDOR, result):
            return failed
        answers[view] = find_json(result.stdout)
        if answers[view] is None and view != "metric":
            problem = _unanswered(result, f"amd-smi {view} --json did not write JSON")
            unclear = result.ok  # without a driver amd-smi fails
    version = find_json(run("amd-smi", "version", "--json").stdout)
    gpus = parse_amd_smi(answers["static"], answers["list"], answers["metric"], version)
    if not gpus:
        return Detection(VENDOR, problem=problem or "amd-smi lists no GPU", unclear=unclear)
    return Detection(VENDOR, gpus, problem)


def _detect_rocm_smi(run: Run) -> Detection:
    result = run("rocm-smi", *ROCM_SMI_ARGUMENTS, timeout=VENDOR_TOOL_TIMEOUT_SECONDS)
    if failed := failed_detection(VENDOR, result, "neither amd-smi nor rocm-smi is installed"):
        return failed
    answer = find_json(result.stdout)
    gpus = parse_rocm_smi(answer)  # rocm-smi ends with status 0 even when there is no driver
    parts = [gpu for gpu in gpus if gpu.partitioned]
    problem = f"{len(parts)} of {len(gpus)} GPUs are partitions or listed more than once" if parts else None
    return Detection(VENDOR, gpus, problem if gpus else _unanswered(result, "rocm-smi lists no GPU"))


def _unanswered(result: ToolResult, otherwise: str) -> str:
    return otherwise if result.ok else result.complaint


def find_json(output: str) -> Any:
    """Return the JSON document in a tool's output, after warnings that some releases print; None without one."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"^\s*[\[{]", output, re.MULTILINE):
        try:
            return decoder.raw_decode(output, match.end() - 1)[0]
        except ValueError:
            continue
    return None


def parse_amd_smi(static: Any, listing: Any, metric: Any, version: Any = None) -> list[Gpu]:
    """Return the GPUs in the JSON of `amd-smi static`, `list`, `metric` and `version`; each document may be None.
    Releases differ: a list of GPUs at the top or below `gpu_data`, bare numbers or `{"value", "unit"}`."""
    views = {"static": by_index(static), "list": by_index(listing), "metric": by_index(metric)}
    release = version[0] if isinstance(version, list) and version else version
    rocm = values.version(_get(release, "rocm_version"))
    gpus = []
    for index in sorted({*views["static"], *views["list"]}):
        answers = {name: view.get(index) for name, view in views.items()}
        gpus.append(Gpu(VENDOR, index, runtime_version=rocm, **read_fields(AMD_SMI_FIELDS, partial(_get, answers))))
    return gpus


def xgmi_errors(value: Any) -> Optional[dict[str, int]]:
    """Return `{"xgmi": errors}` from amd-smi's value: by release an object, a number as text or a state in words. None
    if the value shows neither errors nor their absence."""
    if isinstance(value, dict):
        counts = [count for key, count in value.items() if "err" in str(key) and isinstance(count, int)]
        return {"xgmi": sum(counts)} if counts else None
    text = str(value).strip().lower()
    if text.isdigit():
        return {"xgmi": int(text)}
    if text in ("no_errors", "no errors detected", "amdsmi_xgmi_status_no_errors"):
        return {"xgmi": 0}
    return {"xgmi": 1} if "error" in text else None


def parse_rocm_smi(answer: Any) -> list[Gpu]:
    """Return the GPUs in the JSON of `rocm-smi`: one object per card, whose keys are spelled differently by release."""
    if not isinstance(answer, dict):
        return []
    system = _lower_keys(answer.get("system"))
    driver = values.version(system.get("driver version"))
    gpus: dict[str, Gpu] = {}
    for name, card in answer.items():
        match = re.fullmatch(r"card(\d+)", name)
        if match is None or not isinstance(card, dict):
            continue
        facts = _lower_keys(card)
        readings = read_fields(ROCM_SMI_FIELDS, facts.get)
        readings["driver_version"] = driver or values.version(facts.get("driver version"))
        gpu = Gpu(VENDOR, int(match.group(1)), **readings)
        # Partitions of a GPU are listed as cards of their own, at one address and with one unique id.
        first = gpus.setdefault(gpu.pci_address or gpu.uuid or name, gpu)
        if first is not gpu:
            first.index = min(first.index, gpu.index)
            first.partition_mode = first.partition_mode or SEVERAL_CARDS
    return sorted(gpus.values(), key=lambda gpu: gpu.index)


def by_index(answer: Any) -> dict[int, dict[str, Any]]:
    """Return the rows in the JSON of an amd-smi command by GPU index."""
    if isinstance(answer, dict):
        answer = answer.get("gpu_data", [answer] if "gpu" in answer else [])
    rows = answer if isinstance(answer, list) else []
    return {row["gpu"]: row for row in rows if isinstance(row, dict) and isinstance(row.get("gpu"), int)}


def _get(mapping: Any, path: str) -> Any:
    for key in path.split("."):
        if not isinstance(mapping, dict):
            return None
        mapping = mapping.get(key)
    return mapping


def _lower_keys(mapping: Any) -> dict[str, Any]:
    return {str(key).lower(): value for key, value in mapping.items()} if isinstance(mapping, dict) else {}


#: Counters of throttled samples in `amd-smi metric`, by kind of throttling. The tool also counts all samples.
_VIOLATIONS = {
    "throttle_thermal": ("socket_thermal_accumulated", "vr_thermal_accumulated", "hbm_thermal_accumulated"),
    "throttle_power": ("ppt_accumulated",),
    "throttle_hardware": ("prochot_accumulated",),
}


def violations(section: Any) -> Optional[dict[str, int]]:
    """Return how many samples were throttled by kind (`throttle_power_ticks`), and `throttle_ticks`, all samples, from
    the section `throttle` of `amd-smi metric`. None if that has no counters."""
    counts = {name: values.count(value) for name, value in _lower_keys(section).items()}
    in_all = counts.get("accumulation_counter")
    if not in_all:
        return None
    of_kinds = {kind: [counts.get(name) for name in names] for kind, names in _VIOLATIONS.items()}
    known_kinds = {kind: [count for count in several if count is not None] for kind, several in of_kinds.items()}
    return {"throttle_ticks": in_all, **{f"{kind}_ticks": max(some) for kind, some in known_kinds.items() if some}}


_LIMITS = ("socket_power", "ppt0.socket_power_limit", "max_power", "ppt0.max_power_limit")
#: Fields of a GPU, by their paths in the answers of `amd-smi static`, `list` and `metric`.
AMD_SMI_FIELDS: Fields = (
    ("name", values.text, "static.asic.market_name", "static.board.product_name"),
    ("uuid", values.identifier, "list.uuid", "static.asic.asic_serial"),
    ("serial", values.identifier, "static.board.product_serial", "static.asic.asic_serial"),
    ("pci_address", values.pci_address, "static.bus.bdf", "list.bdf", "metric.bus.bdf"),
    ("driver_version", values.version, "static.driver.version", "static.driver.driver_version"),
    ("firmware_version", values.text, "static.vbios.version", "static.ifwi.version", "static.vbios.name"),
    ("memory_bytes", values.megabytes, "metric.mem_usage.total_vram", "metric.vram.total", "static.vram.size"),
    ("memory_used_bytes", values.megabytes, "metric.mem_usage.used_vram", "metric.vram.used"),
    # AMD GPUs throttle by the hot spot; Instinct GPUs have no edge sensor.
    ("temperature_celsius", values.number, "metric.temperature.hotspot", "metric.temperature.edge"),
    ("memory_temperature_celsius", values.number, "metric.temperature.mem"),
    ("utilisation_ratio", values.ratio, "metric.usage.gfx_activity"),
    ("power_draw_watts", values.watts, *(f"metric.power.{kind}socket_power" for kind in ("", "current_", "average_"))),
    ("power_limit_watts", values.watts, *(f"static.limit.{name}" for name in _LIMITS)),
    ("core_clock_hertz", values.hertz, "metric.clock.gfx_0.clk", "metric.clock.GFX_0.clk"),
    ("core_clock_max_hertz", values.hertz, "metric.clock.gfx_0.max_clk", "metric.clock.GFX_0.max_clk"),
    ("memory_clock_hertz", values.hertz, "metric.clock.mem_0.clk", "metric.clock.MEM_0.clk"),
    # The counters start at zero when the driver loads, so they are of this boot.
    ("ecc_corrected_count", values.count, "metric.ecc.total_correctable_count"),
    ("ecc_uncorrected_count", values.count, "metric.ecc.total_uncorrectable_count"),
    ("pcie_generation", values.pcie_generation, "metric.pcie.speed"),
    ("pcie_generation_max", values.pcie_generation, "static.bus.max_pcie_speed"),
    ("pcie_width", values.count, "metric.pcie.width"),
    ("pcie_width_max", values.count, "static.bus.max_pcie_width"),
    ("pcie_replay_count", values.count, "metric.pcie.replay_count"),
    ("link_errors", xgmi_errors, "metric.xgmi_err"),
    ("throttle_counters", violations, "metric.throttle"),
    ("partition_mode", values.lower, "static.partition.compute_partition", "static.partition.accelerator_partition"),
    ("module_id", values.count, "static.asic.oam_id"),
)
_PACKAGE = " graphics package power (w)"
#: Fields of a GPU, by the keys of a `rocm-smi` card in lower case.
ROCM_SMI_FIELDS: Fields = (
    ("name", values.text, "card series", "device name"),
    ("uuid", values.identifier, "unique id"),
    ("serial", values.identifier, "serial number", "unique id"),
    ("pci_address", values.pci_address, "pci bus"),
    ("firmware_version", values.text, "vbios version"),
    ("memory_bytes", values.count, "vram total memory (b)"),
    ("memory_used_bytes", values.count, "vram total used memory (b)"),
    ("temperature_celsius", values.number, "temperature (sensor junction) (c)", "temperature (sensor edge) (c)"),
    ("power_draw_watts", values.watts, "current socket" + _PACKAGE, "average" + _PACKAGE),
    ("partition_mode", values.lower, "compute partition"),
    ("power_limit_watts", values.watts, "max" + _PACKAGE),
)
PCI_VENDOR = "0x1002"
DRM, CARD = "sys/class/drm", re.compile(r"card\d+")
TOOL_SECONDS = 20.0
#: Seconds to wait for amd-smi's GPU indices; without them, GPUs are numbered by PCI address, as the tools do.
LIST_SECONDS = 5.0
TOOL_PERIOD_SECONDS = 5.0
NO_FILE = "not there: amdgpu has no such file for this GPU"
VIRTUAL = "not supported by a virtual function, which reports 0"
RETIRES = "AMD GPUs retire pages instead"
NO_THROTTLE = "amdgpu reports why clocks are low in gpu_metrics only, which is not read"


class Amd(Source):
    """Readings of AMD GPUs, by sysfs or tools. Raises ``SourceError`` if neither lists a GPU."""

    name = "amdgpu"

    def __init__(self, root: str = "/") -> None:
        super().__init__()
        self._cards = {index: Card(folder) for index, folder in cards(Path(root)).items()}
        self._cards = by_tool_index(self._cards, self._ask(LIST_SECONDS, "amd-smi", "list", "--json"))
        if not self._cards:
            self.least_period_seconds = TOOL_PERIOD_SECONDS
            if not self._by_tools(TOOL_SECONDS):
                raise SourceError("no AMD GPU in /sys/class/drm, amd-smi or rocm-smi")
        self.absent["throttle"] = NO_THROTTLE
        self.absent["row_remaps"] = RETIRES
        for card in self._cards.values():
            self.absent.update(card.absent)

    def sample(self) -> dict[int, Sample]:
        if self._cards:
            return {index: card.sample() for index, card in self._cards.items()}
        return {gpu.index: gpu.sample() for gpu in self._by_tools(TOOL_SECONDS)}

    def counters(self, seconds: float) -> dict[int, Counters]:
        by_tool = {gpu.index: gpu.counters() for gpu in self._by_tools(seconds)}
        if not self._cards:
            if not by_tool:
                raise SourceError("amd-smi and rocm-smi gave no counters in time")
            return by_tool
        return {index: {**by_tool.get(index, {}), **gpu} for index, gpu in self.counters_at_once().items()}

    def counters_at_once(self) -> dict[int, Counters]:
        return {index: card.counters() for index, card in self._cards.items()}

    def _by_tools(self, seconds: float) -> list[Gpu]:
        """Return the AMD GPUs by `amd-smi`, else by `rocm-smi`, within `seconds` in all."""
        deadline = time.monotonic() + seconds
        metric = self._ask(seconds, "amd-smi", "metric", "--json")
        gpus = parse_amd_smi(None, metric, metric)
        seconds_left = deadline - time.monotonic()
        if gpus or seconds_left <= 0:
            return gpus
        return parse_rocm_smi(self._ask(seconds_left, "rocm-smi", *ROCM_SMI_ARGUMENTS))

    def _ask(self, seconds: float, tool: str, *arguments: str) -> Any:
        answer = toolbox()(tool, *arguments, timeout=seconds)
        if answer.missing or answer.timed_out:
            self.absent[tool] = answer.complaint
            return None
        return find_json(answer.stdout)


def cards(root: Path) -> dict[int, Path]:
    """Return the sysfs device folders of amdgpu's cards by index; indices follow PCI addresses, as in the tools."""
    names = (name for name in Tree(str(root)).entries(DRM) if CARD.fullmatch(name))
    devices = (root / DRM / name / "device" for name in names)
    folders = {
        folder.resolve().name: folder
        for folder in devices
        if read_text(folder / "vendor") == PCI_VENDOR and (folder / "mem_info_vram_used").exists()
    }
    return dict(enumerate(folders[address] for address in sorted(folders)))


def by_tool_index(cards_seen: dict[int, Card], listing: Any) -> dict[int, Card]:
    """Return AMD GPUs (cards) by their indices in `amd-smi list --json`; unchanged if that does not list them all."""
    index = {str(row.get("bdf")).lower(): number for number, row in by_index(listing).items()}
    if not all(card.address in index for card in cards_seen.values()):
        return cards_seen
    return {index[card.address]: card for card in cards_seen.values()}


class Card:
    """The sysfs files of one AMD GPU; the list of files is made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = folder.resolve().name
        hwmon = next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder / "hwmon")
        #: Files of the GPU and of its sensors by name, and the sensors' inputs by label.
        files = {path.name: path for path in (*folder.glob("*"), *hwmon.glob("power1_*"))}
        for kind in ("temp", "freq"):
            for path in sorted(hwmon.glob(f"{kind}*_input")):
                label = read_text(path.with_name(path.name.replace("_input", "_label"))) or path.name
                files[f"{kind} {label.lower()}"] = path
        existing = {name: [files[key] for key in keys if key in files] for name, (_read, *keys) in FILES.items()}
        self._files = {name: paths[0] for name, paths in existing.items() if paths}
        #: Readings that this GPU lacks, and why: only a missing file is a reason, not an unreadable one.
        self.absent = dict.fromkeys((name for name, paths in existing.items() if not paths), NO_FILE)
        if read_text(folder / "current_link_width") == "0":
            self.absent.update(dict.fromkeys(("pcie_width", "pcie_generation"), VIRTUAL))

    def sample(self) -> Sample:
        return known({name: FILES[name][0](read_text(path)) for name, path in self._files.items() if FILES[name][0]})

    def counters(self) -> Counters:
        folder = self._folder
        corrected, uncorrected = ras_counts(folder / "ras")
        return known(
            {
                "uuid": read_text(folder / "unique_id"),
                "pci_address": self.address,
                "ecc_corrected": corrected,
                "ecc_uncorrected": uncorrected,
                "pcie_replays": read_number(folder / "pcie_replay_count"),
                "pcie_width": read_number(folder / "current_link_width") or None,  # 0: a virtual function
                "lost": None if folder.exists() else True,
            }
        )


def _divided(by: float) -> Callable[[Optional[str]], Optional[float]]:
    def read(text: Optional[str]) -> Optional[float]:
        value = values.number(text)
        return None if value is None else value / by

    return read


#: For each reading, the function that parses its sysfs text (millidegrees, microwatts, a percentage), then names of
#: files or sensor labels, of which the first that exists is read. Error counters have no function: samples lack them.
FILES: dict[str, tuple[Any, ...]] = {
    "temperature_celsius": (_divided(1000), "temp junction", "temp edge"),  # AMD GPUs throttle by the junction
    "memory_temperature_celsius": (_divided(1000), "temp mem"),
    "power_watts": (_divided(1e6), "power1_average", "power1_input"),
    "power_limit_watts": (_divided(1e6), "power1_cap"),
    "sm_clock_hertz": (values.number, "freq sclk"),
    "memory_clock_hertz": (values.number, "freq mclk"),
    "utilisation_ratio": (values.ratio, "gpu_busy_percent"),
    "memory_used_bytes": (values.number, "mem_info_vram_used"),
    "pcie_width": (lambda text: values.number(text) or None, "current_link_width"),  # 0: a virtual function
    "pcie_generation": (values.pcie_generation, "current_link_speed"),
    "pcie_replays": (None, "pcie_replay_count"),
    "ecc_corrected": (None, "ras"),
    "ecc_uncorrected": (None, "ras"),
}


def ras_counts(folder: Path) -> list[Optional[int]]:
    """Return an AMD GPU's correctable and uncorrectable errors, sums over the files `<block>_err_count` of a folder."""
    text = "\n".join(read_text(path) or "" for path in sorted(folder.glob("*_err_count")))
    counts = ([int(count) for count in re.findall(rf"^{kind}:\s*(\d+)", text, re.MULTILINE)] for kind in ("ce", "ue"))
    return [sum(numbers) if numbers else None for numbers in counts]
