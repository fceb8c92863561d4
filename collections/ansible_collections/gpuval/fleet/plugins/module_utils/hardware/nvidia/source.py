"""Samples NVIDIA GPUs: by NVML, and where that cannot be loaded by `nvidia-smi`."""

from __future__ import annotations

from ..gpu import Gpu
from ..source import Source, SourceError, ToolSource
from ..tools import toolbox
from .nvml import Nvml
from .smi import ERROR, QUERIES, READING_OF_COLUMN, parse_row, parse_rows, refusals

NOT_ASKED = "this driver's nvidia-smi does not report it"
NOT_REPORTED = "nvidia-smi's query does not report it, and NVML could not be loaded"


def open_nvidia() -> Source:
    """Return NVML, else nvidia-smi. Raises ``SourceError`` when neither can be read."""
    try:
        return Nvml()
    except SourceError as error:
        problem = str(error)
    try:
        source = NvidiaSmi()
    except SourceError as error:
        raise SourceError(f"{problem}; {error}") from None
    source.absent["nvml"] = problem
    return source


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
                if reason == ERROR or reading not in self.absent:  # of several GPUs' cells an error is what counts
                    self.absent[reading] = reason
        return [gpu for gpu in map(parse_row, rows) if gpu]
