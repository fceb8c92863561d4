"""NVIDIA GPUs by `nvidia-smi`: the XML log (`-q -x`) for facts, the rows of `--query-gpu` for telemetry. The
attributes of ``Gpu`` say where each reads its values."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from . import values
from .gpu import READINGS, Detection, Gpu, read_fields, smi_fields
from .source import Counters, SourceError, ToolSource
from .tools import VENDOR_TOOL_TIMEOUT_SECONDS, Run, toolbox

VENDOR = "nvidia"
ESSENTIAL = ("product_name", "uuid", "fb_memory_usage/total")

#: Exit codes of nvidia-smi: no device was found, no driver is loaded, the driver's library is missing.
NO_GPU_STATUS = (6, 9, 12)
_END = "</nvidia_smi_log>"
# nvidia-smi's errors read "GPU0000:CB:00.0: Unknown Error", "GPU 0000:CB:00.0: ..." or "GPU1: 0000:34:00.0: ...".
_UNREADABLE = re.compile(
    r"device handle for GPU\s*(?:\d+:\s*)?([0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7])", re.IGNORECASE
)

#: Why clocks are low: the bits of nvmlClocksEventReason, which NVML and nvidia-smi share.
SW_POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
KINDS = {
    "throttle_thermal": SW_THERMAL | HW_THERMAL,
    "throttle_power": SW_POWER_CAP | HW_POWER_BRAKE,
    "throttle_hardware": HW_SLOWDOWN | HW_THERMAL | HW_POWER_BRAKE,
}
#: nvidia-smi's columns by kind of throttling: microseconds since the driver was loaded. (NVML's numbers for these
#: counters changed between drivers.)
_SLOW = "clocks_event_reasons_counters."
THROTTLE_COUNTERS = {
    "throttle_thermal": (f"{_SLOW}sw_thermal_slowdown", f"{_SLOW}hw_thermal_slowdown"),
    "throttle_power": (f"{_SLOW}sw_power_cap", f"{_SLOW}hw_power_brake_slowdown"),
    "throttle_hardware": (f"{_SLOW}hw_thermal_slowdown", f"{_SLOW}hw_power_brake_slowdown"),
}
#: Time limit of nvidia-smi for throttle counters: it answers in 0.1 s, and a slow call must not look like a hang.
THROTTLE_SECONDS = 5.0


def detect(run: Run) -> Detection:
    result = run("nvidia-smi", "-q", "-x", timeout=VENDOR_TOOL_TIMEOUT_SECONDS)
    if result.missing:
        return Detection(VENDOR, problem=result.complaint, installed=False)
    lost = unreadable(result.stdout + "\n" + result.stderr)
    try:
        gpus, lost_in_log = parse(result.stdout)
    except ET.ParseError:
        problem = result.complaint if not result.ok else "nvidia-smi -q -x did not write XML"
        unclear = result.returncode not in NO_GPU_STATUS
        return Detection(VENDOR, problem=problem, lost=lost, hung=result.timed_out, unclear=unclear)
    lost = sorted({*lost, *lost_in_log})
    counted = re.search(r"<attached_gpus>\s*(\d{1,4})\s*<", result.stdout)
    unlisted = max(0, int(counted.group(1)) - len(gpus) - len(lost)) if counted else 0
    unclear = not gpus and not result.ok and result.returncode not in NO_GPU_STATUS
    listed_count = len(gpus) + len(lost)
    problems = (
        (unlisted, f"nvidia-smi counts {listed_count + unlisted} GPUs and lists {listed_count}"),
        (lost, f"nvidia-smi cannot read the GPU at {', '.join(lost)}"),
        (not result.ok, result.complaint),
        (not gpus, "nvidia-smi lists no GPU"),
    )
    reason = next((text for is_so, text in problems if is_so), None)
    return Detection(VENDOR, gpus, reason, lost, unlisted=unlisted, hung=result.timed_out, unclear=unclear)


def parse(xml: str) -> tuple[list[Gpu], list[str]]:
    """Return the usable GPUs in the log of `nvidia-smi -q -x`, and the PCI addresses of GPUs that the driver lost.
    Raises `xml.etree.ElementTree.ParseError` when the text is no XML."""
    log = ET.fromstring(_document(xml))  # noqa: S314 - this machine's own driver wrote it
    driver = values.version(log.findtext("driver_version"))
    cuda = values.version(log.findtext("cuda_version"))
    gpus, lost = [], []
    for index, element in enumerate(log.findall("gpu")):
        gpu = _gpu(element, index)
        gpu.driver_version, gpu.runtime_version = driver, cuda
        # A GPU that fell off the bus may still be listed, with an error in place of its values.
        words = {(element.findtext(path) or "").strip().strip("[]").lower() for path in ESSENTIAL}
        if gpu.uuid is None or words & values.ERRORS:
            lost.append(gpu.pci_address or f"index {index}")
        else:
            gpus.append(gpu)
    return gpus, lost


def unreadable(output: str) -> list[str]:
    """Return the PCI addresses in nvidia-smi's errors (`Unable to determine the device handle for GPU`)."""
    addresses = (values.pci_address(address) for address in _UNREADABLE.findall(output))
    return sorted({address for address in addresses if address})


def _document(output: str) -> str:
    """Return the XML log in the output, without errors printed before or after it."""
    start, end = output.find("<nvidia_smi_log"), output.rfind(_END)
    return output[start : end + len(_END)] if 0 <= start < end else output.strip()


def processes(run: Run, seconds: float) -> dict[int, str]:
    """Return the program names of compute processes on NVIDIA GPUs by pid; empty if nvidia-smi does not answer."""
    pairs = _pairs(run, "--query-compute-apps=pid,process_name", seconds)
    return {int(pid): name for pid, name in pairs if pid.isdigit()}


def gpus_of_processes(run: Run, seconds: float) -> dict[int, list[str]]:
    """Return the NVIDIA GPUs (``gpu:1``) that compute processes use, by pid; empty if nvidia-smi does not answer."""
    indices = {uuid: int(index) for uuid, index in _pairs(run, "--query-gpu=uuid,index", seconds) if index.isdigit()}
    gpus: dict[int, list[str]] = {}
    for pid, uuid in _pairs(run, "--query-compute-apps=pid,gpu_uuid", seconds):
        if pid.isdigit() and uuid in indices:
            gpus.setdefault(int(pid), []).append(f"gpu:{indices[uuid]}")
    return gpus


def _pairs(run: Run, query: str, seconds: float) -> list[list[str]]:
    """Return the two cells of each line of a query of nvidia-smi; empty without an answer within `seconds`."""
    answer = run("nvidia-smi", query, "--format=csv,noheader", timeout=seconds)
    lines = answer.stdout.splitlines() if answer.ok else ()
    return [[cell.strip() for cell in line.partition(",")[::2]] for line in lines]


def parse_rows(text: str) -> list[dict[str, str]]:
    """Return the rows of `--query-gpu=index,... --format=csv` by column name, without the units in brackets and lines
    with another number of cells than the header."""
    lines = iter(csv.reader(text.splitlines(), skipinitialspace=True))
    header = next((line for line in lines if line and line[0] == "index"), [])
    names = [name.partition(" [")[0] for name in header]
    return [dict(zip(names, row)) for row in lines if len(row) == len(names)]


def throttle_counters(run: Run, seconds: float) -> tuple[dict[str, dict[str, int]], str]:
    """Return microseconds of throttling since the driver's start, `{GPU UUID: {kind: count}}`, else why there are none.
    `seconds`: time limit."""
    columns = list(dict.fromkeys(column for pair in THROTTLE_COUNTERS.values() for column in pair))
    query = f"--query-gpu=index,uuid,{','.join(columns)}"
    answer = run("nvidia-smi", query, "--format=csv", timeout=min(seconds, THROTTLE_SECONDS))
    rows = [row for row in parse_rows(answer.stdout) if row.keys() >= {"uuid", *columns}]
    if not rows:  # with a lost GPU nvidia-smi fails, but lists the others
        return {}, NOT_ASKED if answer.returncode is not None else answer.complaint
    by_uuid = {}
    for row in rows:
        counts = {column: values.count(row[column]) for column in columns}
        by_uuid[row["uuid"]] = {
            f"{kind}_microseconds": sum(counts[column] or 0 for column in pair)
            for kind, pair in THROTTLE_COUNTERS.items()
            if all(counts[column] is not None for column in pair)
        }
    return by_uuid, ""


def add_throttle_counters(by_gpu: dict[int, Counters], absent: dict[str, str], seconds: float) -> None:
    """Add throttle counters to `by_gpu`, a node's counters by GPU index; to `absent`, the reason if there are none."""
    by_uuid, absent_reason = throttle_counters(toolbox(), seconds)
    for counters in by_gpu.values():
        counters.update(by_uuid.get(counters.get("uuid", ""), {}))
    if absent_reason:
        absent["throttle_counters"] = absent_reason


def parse_row(row: dict[str, str]) -> Optional[Gpu]:
    """Return the GPU in a row of `parse_rows`, whose values carry their units (`34.50 W`); None without an index."""
    index = values.count(row.get("index"))
    return None if index is None else Gpu(VENDOR, index, **read_fields(QUERY_FIELDS, row.get))


def refusals(row: dict[str, str]) -> dict[str, str]:
    """Return why readings are missing in a row of nvidia-smi: by `NO_VALUE` if the GPU lacks them, else `ERROR`."""
    reasons = {}
    for column, reading in READING_OF_COLUMN.items():
        cell = row.get(column, "").lower()
        if cell in NO_VALUE or cell.startswith("["):
            reasons[reading] = NO_VALUE.get(cell, ERROR)
    return reasons


def _gpu(element: ET.Element, index: int) -> Gpu:
    readings = read_fields(LOG_FIELDS, element.findtext)
    readings["pci_address"] = readings["pci_address"] or values.pci_address(element.get("id"))
    for kind, generations in (("corrected", CORRECTED), ("uncorrected", UNCORRECTED)):
        for period, attribute in (("volatile", f"ecc_{kind}_count"), ("aggregate", f"ecc_{kind}_aggregate_count")):
            sums = (_sum(element, [f"ecc_errors/{period}/{name}" for name in names]) for names in generations)
            readings[attribute] = next((count for count in sums if count is not None), None)
    mig = _text(element, "mig_mode/current_mig")
    health = {part.tag: (part.text or "").strip() for part in element.findall("fabric/health/*")}
    return Gpu(
        VENDOR,
        index,
        **readings,
        fabric_health=health or None,
        fabric_problem=fabric_problem({**health, "status": (element.findtext("fabric/status") or "").strip()}),
        memory_repair_pending_count=_sum(element, _REPAIRS),
        partition_mode=None if mig is None else f"mig {mig.lower()}",
        processes=[_process(process) for process in element.findall("processes/process_info")],
    )


def throttle(reasons: int) -> dict[str, int]:
    """Return 1 for kinds of throttling in NVIDIA's bit mask of reasons, 0 for others. Idle, set clocks do not count."""
    return {kind: int(bool(reasons & bits)) for kind, bits in KINDS.items()}


def throttle_of_hex(word: Any) -> Optional[dict[str, int]]:
    """Return the kinds of throttling in a hexadecimal bit mask (`0x0000000000000004`); None for any other text."""
    try:
        return throttle(int(word, 16))
    except (TypeError, ValueError):
        return None


LOG_FIELDS = smi_fields("paths")
#: Columns that not every driver knows (`nvidia-smi --help-query-gpu`): with an unknown name the whole query fails.
_NEWER = ("temperature.memory", "ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total")
_EVENTS, _THROTTLE = "clocks_event_reasons.active", "clocks_throttle_reasons.active"
_MARGIN = "temperature.gpu.tlimit"
QUERY_FIELDS = (*smi_fields("columns"), ("throttle", throttle_of_hex, _EVENTS, _THROTTLE))
_COLUMNS = [name for _attribute, _read, *names in QUERY_FIELDS for name in names]
_BASE = ("index", *(name for name in _COLUMNS if name not in (*_NEWER, _EVENTS, _THROTTLE, _MARGIN)))
#: Queries of nvidia-smi to try, from the newest driver to the oldest.
QUERIES = ((*_BASE, *_NEWER, _EVENTS, _MARGIN), (*_BASE, *_NEWER, _EVENTS), (*_BASE, *_NEWER, _THROTTLE), _BASE)
READING_OF_COLUMN = {name: READINGS[attribute] for attribute, _read, *names in QUERY_FIELDS for name in names}
NOT_SUPPORTED = "not supported by the GPU"
#: What nvidia-smi prints for a value that a GPU does not support; any other text in brackets is an error.
NO_VALUE = {
    "[n/a]": NOT_SUPPORTED,
    "n/a": NOT_SUPPORTED,
    "[not supported]": NOT_SUPPORTED,
    "[insufficient permissions]": "not permitted",
}
ERROR = "nvidia-smi prints an error in its place"

_REPAIRS = ("ecc_errors/channel_repair_pending", "ecc_errors/tpc_repair_pending")
# ECC counts of SRAM in both generations of the driver's format, and of DRAM; earlier drivers have totals.
CORRECTED = (("sram_correctable", "dram_correctable"), ("single_bit/total",))
UNCORRECTED = (
    ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "sram_uncorrectable", "dram_uncorrectable"),
    ("double_bit/total",),
)


def _sum(element: ET.Element, paths: Iterable[str]) -> Optional[int]:
    counts = [count for count in (values.count(element.findtext(path)) for path in paths) if count is not None]
    return sum(counts) if counts else None


#: Values of the parts of `fabric` (nvidia-smi) for a healthy NVLink fabric.
_HEALTHY = {
    "status": "success",
    "summary": "healthy",
    "bandwidth": "full",
    "route_recovery_in_progress": "false",
    "route_unhealthy": "false",
    "access_timeout_recovery": "false",
    "incorrect_configuration": "false",
}


def fabric_problem(words: Mapping[str, str]) -> Optional[str]:
    """Return the parts of an NVLink fabric that are not healthy, as text; None if all are. `words`: state by part."""
    wrong = [
        f"{name} {words[name]}"
        for name, healthy in _HEALTHY.items()
        if values.word(words.get(name, "")) not in (None, "no", healthy, *values.ABSENT)
    ]
    return ", ".join(wrong) or None


def _process(element: ET.Element) -> dict[str, Any]:
    return {
        "pid": values.count(_text(element, "pid")),
        "type": _text(element, "type"),
        "name": _text(element, "process_name"),
        "memory_used_bytes": values.size_bytes(_text(element, "used_memory"), "MiB"),
    }


def _text(element: ET.Element, path: str) -> Optional[str]:
    return values.text(element.findtext(path))


NOT_ASKED = "this driver's nvidia-smi does not report it"
NOT_REPORTED = "nvidia-smi's query does not report it, and NVML could not be loaded"


class NvidiaSmi(ToolSource):
    name = "nvidia-smi"
    first_seconds = 60.0  # without persistence mode the driver wakes the GPUs one after another
    queries = QUERIES
    reading_of = READING_OF_COLUMN
    never = dict.fromkeys(("row_remaps", "link_errors", "link_corrected", "pcie_replays"), NOT_REPORTED)
    not_asked = NOT_ASKED

    def ask(self, query: tuple[str, ...], seconds: float) -> list[Gpu]:
        answer = toolbox()("nvidia-smi", f"--query-gpu={','.join(query)}", "--format=csv", timeout=seconds)
        rows = parse_rows(answer.stdout)
        if not rows and not answer.ok:
            raise SourceError(answer.complaint)
        for row in rows:
            for reading, reason in refusals(row).items():
                if reason == ERROR or reading not in self.absent:  # one GPU's error outweighs other reasons
                    self.absent[reading] = reason
        return [gpu for gpu in map(parse_row, rows) if gpu]

    def counters(self, seconds: float) -> dict[int, Counters]:
        by_gpu = super().counters(seconds)
        add_throttle_counters(by_gpu, self.absent, seconds)
        return by_gpu
