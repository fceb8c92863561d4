"""Intel Gaudi devices by `hl-smi`, for facts and telemetry (docs.habana.ai, System Management Interface Tool). A query
fails as a whole if the release lacks one property, so a short query follows whose properties all releases know."""

from __future__ import annotations

import csv
import re

from . import values
from .gpu import READINGS, Detection, Fields, Gpu, failed_detection, read_fields
from .source import SourceError, ToolSource
from .tools import VENDOR_TOOL_TIMEOUT_SECONDS, Run, ToolResult, toolbox

VENDOR = "gaudi"
_PROCESS = re.compile(r"^\|?\s*\d+\s+(\d+)\s+\S*C\S*\s+(\S+)", re.MULTILINE)


#: Fields of a device, by their properties in `hl-smi`.
FIELDS: Fields = (
    ("uuid", values.identifier, "uuid"),
    ("pci_address", values.pci_address, "bus_id"),
    ("name", values.text, "name"),
    ("driver_version", values.version, "driver_version"),
    ("memory_bytes", values.megabytes, "memory.total"),
    ("memory_used_bytes", values.megabytes, "memory.used"),
    ("temperature_celsius", values.number, "temperature.aip"),
    ("module_id", values.count, "module_id"),
    ("serial", values.identifier, "serial"),
    ("power_draw_watts", values.watts, "power.draw"),
    ("ecc_corrected_count", values.count, "ecc.errors.corrected.volatile.total"),
    ("ecc_uncorrected_count", values.count, "ecc.errors.uncorrected.volatile.total"),
    ("ecc_corrected_aggregate_count", values.count, "ecc.errors.corrected.aggregate.total"),
    ("ecc_uncorrected_aggregate_count", values.count, "ecc.errors.uncorrected.aggregate.total"),
    ("ecc_mode", values.lower, "ecc.mode.current"),
    ("core_clock_hertz", values.hertz, "clocks.current.soc"),
    ("core_clock_max_hertz", values.hertz, "clocks.max.soc"),
    ("utilisation_ratio", values.ratio, "utilization.aip"),
    ("pcie_generation", values.count, "pcie.link.gen.current"),
    ("pcie_width", values.count, "pcie.link.width.current"),
)
NOT_REPORTED = "hl-smi's query does not report it"

SHORT_QUERY = ("index", "uuid", "bus_id", "name", "driver_version", "memory.total", "memory.used", "temperature.aip")
_ECC = ("ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total")
_AGGREGATE_ECC = ("ecc.errors.corrected.aggregate.total", "ecc.errors.uncorrected.aggregate.total")
FULL_QUERY = (
    *(*SHORT_QUERY, "module_id", "serial", "power.draw", *_ECC, *_AGGREGATE_ECC, "ecc.mode.current"),
    "clocks.current.soc",
    "clocks.max.soc",
)
_SAMPLED = ("index", "uuid", "bus_id", "temperature.aip", "memory.used")
_LINK = ("pcie.link.gen.current", "pcie.link.width.current")
#: Telemetry queries to try, from the newest release to the oldest.
SAMPLE_QUERIES = (
    (*_SAMPLED, "power.draw", "utilization.aip", "clocks.current.soc", *_ECC, *_LINK),
    (*_SAMPLED, "power.draw", "clocks.current.soc"),
    _SAMPLED,
)


def detect(run: Run) -> Detection:
    problem, unclear = None, False
    for query in (FULL_QUERY, SHORT_QUERY):
        result = ask(run, query, VENDOR_TOOL_TIMEOUT_SECONDS)
        if failed := failed_detection(VENDOR, result):
            return failed
        gpus = [gpu for gpu in parse(result.stdout, query) if gpu.pci_address]
        if gpus:
            return Detection(VENDOR, gpus, None if result.ok else result.complaint)
        problem = "hl-smi lists no device" if result.ok else result.complaint
        unclear = result.ok and bool(result.stdout.strip())
    return Detection(VENDOR, problem=problem, unclear=unclear)


def ask(run: Run, query: tuple[str, ...], seconds: float) -> ToolResult:
    return run("hl-smi", "-Q", ",".join(query), "-f", "csv,noheader", timeout=seconds)


def parse(text: str, query: tuple[str, ...]) -> list[Gpu]:
    """Return the devices in the output of `hl-smi -Q <query> -f csv,noheader`; other lines are left out."""
    gpus = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        cells = dict(zip(query, row)) if len(row) == len(query) else {}
        index = values.count(cells.pop("index", None))
        if index is not None:
            gpus.append(Gpu(VENDOR, index, **read_fields(FIELDS, cells.get)))
    return sorted(gpus, key=lambda gpu: gpu.index)


def processes(run: Run, seconds: float) -> dict[int, str]:
    """Return the names of processes on Gaudi devices by pid, from the table of `hl-smi`; empty without an answer."""
    result = run("hl-smi", timeout=seconds)
    return {int(pid): name for pid, name in _PROCESS.findall(result.stdout)} if result.ok else {}


class Gaudi(ToolSource):
    name = "hl-smi"
    queries = SAMPLE_QUERIES
    reading_of = {name: READINGS[attribute] for attribute, _read, name in FIELDS if name in SAMPLE_QUERIES[0]}
    never = dict.fromkeys(
        ("throttle", "row_remaps", "link_errors", "link_corrected", "pcie_replays", "power_limit_watts"), NOT_REPORTED
    )
    not_asked = NOT_REPORTED

    def ask(self, query: tuple[str, ...], seconds: float) -> list[Gpu]:
        answer = ask(toolbox(), query, seconds)
        if answer.missing or answer.timed_out:
            raise SourceError(answer.complaint)
        return parse(answer.stdout, query)
