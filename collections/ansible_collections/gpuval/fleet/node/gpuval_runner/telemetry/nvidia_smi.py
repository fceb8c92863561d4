"""NVIDIA GPUs where NVML cannot be loaded: one `nvidia-smi` that goes on printing, read as it comes."""

from __future__ import annotations

import csv
import os
import selectors
import shutil
import subprocess
import time
from typing import Any, Optional

from gpuval_runner.telemetry import shared
from gpuval_runner.telemetry.nvml import throttle
from gpuval_runner.telemetry.source import Counters, Sample, Source, SourceError, known

#: `nvidia-smi --help-query-gpu`. One name that a driver does not know makes it refuse the whole query.
BASE = (
    "index",
    "uuid",
    "pci.bus_id",
    "temperature.gpu",
    "power.draw",
    "enforced.power.limit",
    "clocks.current.sm",
    "clocks.current.memory",
    "utilization.gpu",
    "memory.used",
    "pcie.link.width.current",
    "pcie.link.gen.current",
)
MORE = ("temperature.memory", "ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total")
QUERIES = (
    (*BASE, *MORE, "clocks_event_reasons.active"),
    (*BASE, *MORE, "clocks_throttle_reasons.active"),
    BASE,
)
#: The driver wakes GPUs one after another without persistence mode.
FIRST_SECONDS = 60.0
LATE_SECONDS = 30.0
MAX_LINE_BYTES = 1 << 16
#: How long nothing must follow before a sweep counts as whole: at once with all GPUs of the last one, else rows may be
#: on their way still, and a GPU that is only late is not lost.
QUIET_SECONDS, SHORT_QUIET_SECONDS = 0.2, 3.0
#: What a column is read for, where that is judged.
READINGS = {
    "temperature.gpu": "temperature_celsius",
    "temperature.memory": "memory_temperature_celsius",
    "power.draw": "power_watts",
    "enforced.power.limit": "power_limit_watts",
    "clocks.current.sm": "sm_clock_hertz",
    "utilization.gpu": "utilisation_ratio",
    "memory.used": "memory_used_bytes",
    "pcie.link.width.current": "pcie_width",
    "pcie.link.gen.current": "pcie_generation",
    "ecc.errors.corrected.volatile.total": "ecc_corrected",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected",
    "clocks_event_reasons.active": "throttle",
    "clocks_throttle_reasons.active": "throttle",
}
NOT_SUPPORTED = "not supported by the GPU"
#: Words in a cell by which the tool says that a good GPU gives no value; any other are an error.
CANNOT = {
    "[n/a]": NOT_SUPPORTED,
    "n/a": NOT_SUPPORTED,
    "[not supported]": NOT_SUPPORTED,
    "[insufficient permissions]": "not permitted",
}
ERROR = "nvidia-smi tells an error in its place"
NOT_ASKED = "this driver's nvidia-smi does not tell it"
NOT_TOLD = "nvidia-smi's query does not tell it, and NVML could not be loaded"


def parse_rows(text: str, header: list[str]) -> list[dict[str, str]]:
    """Return rows of `nvidia-smi --query-gpu=... --format=csv` by column name; lines of another length are left out."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [dict(zip(header, row)) for row in rows if len(row) == len(header)]


def parse_header(line: str) -> list[str]:
    """Return column names without their units: `power.draw [W]` is `power.draw`."""
    return [name.partition(" [")[0].strip() for name in line.split(",")]


def read(row: dict[str, str]) -> tuple[Optional[int], Sample, Counters]:
    """Return index, sample and counters of one row. Values carry their units (`34.50 W`); `[N/A]` is not there."""
    values = shared.values()
    number, count = values.number, values.count
    busy, mask = number(row.get("utilization.gpu")), row.get("clocks_event_reasons.active")
    reasons = _mask(mask or row.get("clocks_throttle_reasons.active"))
    sample: dict[str, Any] = {
        "temperature_celsius": number(row.get("temperature.gpu")),
        "memory_temperature_celsius": number(row.get("temperature.memory")),
        "power_watts": number(row.get("power.draw")),
        "power_limit_watts": number(row.get("enforced.power.limit")),
        "sm_clock_hertz": values.hertz(row.get("clocks.current.sm")),
        "memory_clock_hertz": values.hertz(row.get("clocks.current.memory")),
        "utilisation_ratio": None if busy is None else busy / 100,
        "memory_used_bytes": values.size_bytes(row.get("memory.used"), "MiB"),
        "pcie_width": count(row.get("pcie.link.width.current")),
        "pcie_generation": count(row.get("pcie.link.gen.current")),
        **(throttle(reasons) if reasons is not None else {}),
    }
    counters = {
        "uuid": values.text(row.get("uuid")),
        "pci_address": values.pci_address(row.get("pci.bus_id")),
        "ecc_corrected": count(row.get("ecc.errors.corrected.volatile.total")),
        "ecc_uncorrected": count(row.get("ecc.errors.uncorrected.volatile.total")),
        "pcie_width": sample["pcie_width"],
    }
    return count(row.get("index")), known(sample), known(counters)


def refusals(row: dict[str, str]) -> dict[str, str]:
    """Return what a row says in words instead of a value, by reading."""
    found = {}
    for column, reading in READINGS.items():
        cell = row.get(column, "").lower()
        if cell in CANNOT or cell.startswith("["):
            found[reading] = CANNOT.get(cell, ERROR)
    return found


def _mask(word: Optional[str]) -> Optional[int]:
    try:
        return int(word or "", 16)
    except ValueError:
        return None


class NvidiaSmi(Source):
    """Raises ``SourceError`` when no query gets an answer."""

    name = "nvidia-smi"

    def __init__(self, period_seconds: float = 1.0) -> None:
        super().__init__()
        shared.values()
        tools = shared.tools()
        search = os.pathsep.join([os.environ.get("PATH", os.defpath), *tools.EXTRA_DIRECTORIES])
        path = shutil.which("nvidia-smi", path=search)
        if path is None:
            raise SourceError("nvidia-smi is not installed")
        self._latest: dict[int, tuple[Sample, Counters]] = {}
        self._process: Optional[subprocess.Popen[bytes]] = None
        problem = ""
        for query in QUERIES:
            self._start(path, query, period_seconds)
            try:
                self._sweep(FIRST_SECONDS)
                break
            except SourceError as error:
                problem = str(error)
                self.close()
        else:
            raise SourceError(f"nvidia-smi gives no readings: {problem}")
        self.absent.update(dict.fromkeys(("row_remaps", "link_errors", "link_corrected", "pcie_replays"), NOT_TOLD))
        asked_for = {READINGS[column] for column in query if column in READINGS}
        self.absent.update(dict.fromkeys(set(READINGS.values()) - asked_for, NOT_ASKED))

    def _start(self, path: str, query: tuple[str, ...], period_seconds: float) -> None:
        milliseconds = str(max(100, round(period_seconds * 1000)))
        self._left, self._header, self._fresh, self._latest = b"", [], {}, {}
        self._process = subprocess.Popen(
            [path, f"--query-gpu={','.join(query)}", "--format=csv", "-lms", milliseconds],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C"},
        )
        os.set_blocking(self._process.stdout.fileno(), False)

    def sample(self) -> dict[int, Sample]:
        self._sweep(LATE_SECONDS)
        return {index: sample for index, (sample, _counters) in self._latest.items()}

    def counters(self, seconds: float) -> dict[int, Counters]:
        return {index: counters for index, (_sample, counters) in self._latest.items()}

    def close(self) -> None:
        if self._process:
            self._process.kill()
            self._process.stdout.close()
            self._process = None

    def _sweep(self, limit: float) -> None:
        """Wait for all GPUs' rows of one moment. Raises ``SourceError`` when they do not come in time."""
        heard = time.monotonic()
        deadline = heard + limit
        said = ""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                while b"\n" in self._left:
                    line, _, self._left = self._left.partition(b"\n")
                    text = line.decode("utf-8", "replace").strip()
                    said = text or said
                    if self._take(text):
                        return
                if time.monotonic() >= deadline:
                    raise SourceError(f"nothing for {limit:.0f} s")
                if not selector.select(QUIET_SECONDS):
                    if self._settled(time.monotonic() - heard):
                        return
                    continue
                heard = time.monotonic()
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    raise SourceError(f"it ended: {said[:200] or 'without a word'}")
                self._left = (self._left + data)[-MAX_LINE_BYTES:]

    def _take(self, text: str) -> bool:
        """Take a line; returns whether it began a new sweep, so that the one before it is whole."""
        if text.startswith("index,"):
            self._header = parse_header(text)
            return False
        rows = parse_rows(text, self._header) if self._header else []
        if not rows:
            return False
        index, sample, counters = read(rows[0])
        if index is None:
            return False
        for reading, reason in refusals(rows[0]).items():
            if reason == ERROR or reading not in self.absent:  # of several GPUs' cells an error is what counts
                self.absent[reading] = reason
        whole = index in self._fresh
        if whole:
            self._latest, self._fresh = self._fresh, {}
        self._fresh[index] = (sample, counters)
        return whole

    def _settled(self, quiet: float) -> bool:
        """Whether a sweep is whole because nothing follows it: so the last one does not wait for the next."""
        least = QUIET_SECONDS if self._latest and len(self._fresh) >= len(self._latest) else SHORT_QUIET_SECONDS
        if not self._fresh or self._left or quiet < least:
            return False
        self._latest, self._fresh = self._fresh, {}
        return True
