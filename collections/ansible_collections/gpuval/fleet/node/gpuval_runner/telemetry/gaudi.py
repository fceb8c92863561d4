"""Intel Gaudi devices by `hl-smi -Q`, which is asked seldom: each call starts a process."""

from __future__ import annotations

import csv

from gpuval_runner.telemetry import shared
from gpuval_runner.telemetry.source import Counters, Sample, Source, SourceError, known

TOOL_SECONDS = 20.0
PERIOD_SECONDS = 5.0
#: Properties as docs.habana.ai (System Management Interface Tool) names them. One that a release does not know makes it
#: refuse the query, so a shorter one follows.
SHORT_QUERY = ("index", "uuid", "bus_id", "temperature.aip", "memory.used")
QUERIES = (
    (
        *SHORT_QUERY,
        "power.draw",
        "utilization.aip",
        "clocks.current.soc",
        "ecc.errors.corrected.volatile.total",
        "ecc.errors.uncorrected.volatile.total",
        "pcie.link.gen.current",
        "pcie.link.width.current",
    ),
    (*SHORT_QUERY, "power.draw", "clocks.current.soc"),
    SHORT_QUERY,
)
#: What a column is read for.
READINGS = {
    "power.draw": "power_watts",
    "utilization.aip": "utilisation_ratio",
    "clocks.current.soc": "sm_clock_hertz",
    "ecc.errors.corrected.volatile.total": "ecc_corrected",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected",
    "pcie.link.gen.current": "pcie_generation",
    "pcie.link.width.current": "pcie_width",
}
NOT_TOLD = "hl-smi's query does not tell it"


class Gaudi(Source):
    """Raises ``SourceError`` where `hl-smi` is not there or lists no device."""

    name = "hl-smi"
    least_period_seconds = PERIOD_SECONDS

    def __init__(self) -> None:
        super().__init__()
        self.absent = dict.fromkeys(
            ("throttle", "row_remaps", "link_errors", "link_corrected", "pcie_replays", "power_limit_watts"), NOT_TOLD
        )
        self._query: tuple[str, ...] = ()
        problem = ""
        for query in QUERIES:
            try:
                if self._ask(query):
                    self._query = query
                    asked_for = {READINGS[column] for column in query if column in READINGS}
                    self.absent.update(dict.fromkeys(set(READINGS.values()) - asked_for, NOT_TOLD))
                    return
            except SourceError as error:
                problem = str(error)
        raise SourceError(problem or "hl-smi lists no device")

    def sample(self) -> dict[int, Sample]:
        return {index: sample for index, (sample, _counters) in self._ask(self._query).items()}

    def counters(self, seconds: float) -> dict[int, Counters]:
        return {index: counters for index, (_sample, counters) in self._ask(self._query, seconds).items()}

    @staticmethod
    def _ask(query: tuple[str, ...], seconds: float = TOOL_SECONDS) -> dict[int, tuple[Sample, Counters]]:
        answer = shared.tools().toolbox()("hl-smi", "-Q", ",".join(query), "-f", "csv,noheader", timeout=seconds)
        if answer.missing or answer.timed_out:
            raise SourceError(answer.complaint)
        return parse(answer.stdout, query)


def parse(text: str, query: tuple[str, ...]) -> dict[int, tuple[Sample, Counters]]:
    """Return samples and counters of an answer to the query; lines of another length are no answer."""
    values = shared.values()
    found = {}
    for cells in csv.reader(text.splitlines(), skipinitialspace=True):
        row = dict(zip(query, cells)) if len(cells) == len(query) else {}
        index = values.count(row.get("index"))
        if index is None:
            continue
        busy = values.number(row.get("utilization.aip"))
        width = values.count(row.get("pcie.link.width.current"))
        sample = {
            "temperature_celsius": values.number(row.get("temperature.aip")),
            "power_watts": values.number(row.get("power.draw")),
            "sm_clock_hertz": values.hertz(row.get("clocks.current.soc")),
            "utilisation_ratio": None if busy is None else busy / 100,
            "memory_used_bytes": values.size_bytes(row.get("memory.used"), "MiB"),
            "pcie_width": width,
            "pcie_generation": values.count(row.get("pcie.link.gen.current")),
        }
        counters = {
            "uuid": values.identifier(row.get("uuid")),
            "pci_address": values.pci_address(row.get("bus_id")),
            "ecc_corrected": values.count(row.get("ecc.errors.corrected.volatile.total")),
            "ecc_uncorrected": values.count(row.get("ecc.errors.uncorrected.volatile.total")),
            "pcie_width": width,
        }
        found[index] = (known(sample), known(counters))
    return found
