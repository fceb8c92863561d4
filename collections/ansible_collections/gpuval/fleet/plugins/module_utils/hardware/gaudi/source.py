"""Samples Intel Gaudi devices by `hl-smi`."""

from __future__ import annotations

from ..gpu import Gpu
from ..source import SourceError, ToolSource
from ..tools import toolbox
from .smi import READING_OF_PROPERTY, SAMPLE_QUERIES, ask, parse

NOT_REPORTED = "hl-smi's query does not report it"


class Gaudi(ToolSource):
    name = "hl-smi"
    queries = SAMPLE_QUERIES
    reading_of = {name: READING_OF_PROPERTY[name] for name in SAMPLE_QUERIES[0] if name in READING_OF_PROPERTY}
    never = dict.fromkeys(
        ("throttle", "row_remaps", "link_errors", "link_corrected", "pcie_replays", "power_limit_watts"), NOT_REPORTED
    )
    not_asked = NOT_REPORTED

    def ask(self, query: tuple[str, ...], seconds: float) -> list[Gpu]:
        answer = ask(toolbox(), query, seconds)
        if answer.missing or answer.timed_out:
            raise SourceError(answer.complaint)
        return parse(answer.stdout, query)
