"""Intel Gaudi devices by `hl-smi`.

`hl-smi -Q` refuses a whole query for one property it does not know, so a short query that every release knows follows.
"""

from __future__ import annotations

import csv
from typing import Optional

from . import values
from .gpu import Detection, Gpu
from .tools import VENDOR_TOOL_TIMEOUT_SECONDS, Run

VENDOR = "gaudi"
SHORT_QUERY = ("index", "uuid", "bus_id", "name", "driver_version", "memory.total", "memory.used", "temperature.aip")
FULL_QUERY = (
    *SHORT_QUERY,
    "module_id",
    "serial",
    "power.draw",
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.corrected.aggregate.total",
    "ecc.errors.uncorrected.aggregate.total",
    "ecc.mode.current",
    "clocks.current.soc",
    "clocks.max.soc",
)


def detect(run: Run) -> Detection:
    problem = None
    for query in (FULL_QUERY, SHORT_QUERY):
        result = run("hl-smi", "-Q", ",".join(query), "-f", "csv,noheader", timeout=VENDOR_TOOL_TIMEOUT_SECONDS)
        if result.missing:
            return Detection(VENDOR, problem=result.complaint, installed=False)
        if result.timed_out:
            return Detection(VENDOR, problem=result.complaint, hung=True)
        gpus = parse(result.stdout, query)
        if gpus:
            return Detection(VENDOR, gpus, None if result.ok else result.complaint)
        problem = "hl-smi lists no device" if result.ok else result.complaint
    return Detection(VENDOR, problem=problem)


def parse(text: str, query: tuple[str, ...]) -> list[Gpu]:
    """Devices of an `hl-smi -Q <query> -f csv,noheader` answer; lines that are no answer to the query are left out."""
    gpus = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        gpu = _gpu(dict(zip(query, row))) if len(row) == len(query) else None
        if gpu is not None:
            gpus.append(gpu)
    return sorted(gpus, key=lambda gpu: gpu.index)


def _gpu(column: dict[str, str]) -> Optional[Gpu]:
    index = values.count(column["index"])
    address = values.pci_address(column["bus_id"])
    if index is None or address is None:
        return None
    ecc_mode = values.text(column.get("ecc.mode.current"))
    return Gpu(
        vendor=VENDOR,
        index=index,
        name=values.text(column["name"]),
        uuid=values.identifier(column["uuid"]),
        serial=values.identifier(column.get("serial")),
        pci_address=address,
        driver_version=values.text(column["driver_version"]),
        memory_bytes=values.size_bytes(column["memory.total"], "MiB"),
        memory_used_bytes=values.size_bytes(column["memory.used"], "MiB"),
        temperature_celsius=values.number(column["temperature.aip"]),
        power_draw_watts=values.number(column.get("power.draw")),
        core_clock_hertz=values.hertz(column.get("clocks.current.soc")),
        core_clock_max_hertz=values.hertz(column.get("clocks.max.soc")),
        ecc_mode=None if ecc_mode is None else ecc_mode.lower(),
        ecc_corrected_count=values.count(column.get("ecc.errors.corrected.volatile.total")),
        ecc_uncorrected_count=values.count(column.get("ecc.errors.uncorrected.volatile.total")),
        ecc_corrected_aggregate_count=values.count(column.get("ecc.errors.corrected.aggregate.total")),
        ecc_uncorrected_aggregate_count=values.count(column.get("ecc.errors.uncorrected.aggregate.total")),
        module_id=values.count(column.get("module_id")),
    )
