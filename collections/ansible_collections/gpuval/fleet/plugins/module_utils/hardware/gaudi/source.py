"""Samples Intel Gaudi devices by `hl-smi`, seldom, as each call starts a process."""

from __future__ import annotations

from ..gpu import Gpu
from ..source import Counters, Sample, Source, SourceError
from ..tools import toolbox
from .smi import READING_OF_PROPERTY, SAMPLE_QUERIES, ask, parse

TOOL_SECONDS = 20.0
PERIOD_SECONDS = 5.0
NOT_REPORTED = "hl-smi's query does not report it"


class Gaudi(Source):
    """Raises ``SourceError`` where `hl-smi` is missing or lists no device."""

    name = "hl-smi"
    least_period_seconds = PERIOD_SECONDS

    def __init__(self) -> None:
        super().__init__()
        self.absent = dict.fromkeys(
            ("throttle", "row_remaps", "link_errors", "link_corrected", "pcie_replays", "power_limit_watts"),
            NOT_REPORTED,
        )
        problem = ""
        for query in SAMPLE_QUERIES:
            self._query = query
            try:
                if not self._ask(TOOL_SECONDS):
                    continue
            except SourceError as error:
                problem = str(error)
                continue
            asked_for = {READING_OF_PROPERTY[name] for name in query if name in READING_OF_PROPERTY}
            all_readings = {READING_OF_PROPERTY[name] for name in SAMPLE_QUERIES[0] if name in READING_OF_PROPERTY}
            self.absent.update(dict.fromkeys(all_readings - asked_for, NOT_REPORTED))
            return
        raise SourceError(problem or "hl-smi lists no device")

    def sample(self) -> dict[int, Sample]:
        return {gpu.index: gpu.sample() for gpu in self._ask(TOOL_SECONDS)}

    def counters(self, seconds: float) -> dict[int, Counters]:
        return {gpu.index: gpu.counters() for gpu in self._ask(seconds)}

    def _ask(self, seconds: float) -> list[Gpu]:
        answer = ask(toolbox(), self._query, seconds)
        if answer.missing or answer.timed_out:
            raise SourceError(answer.complaint)
        return parse(answer.stdout, self._query)
