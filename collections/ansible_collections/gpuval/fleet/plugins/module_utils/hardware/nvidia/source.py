"""Samples NVIDIA GPUs: by NVML, and where that cannot be loaded by one `nvidia-smi` that keeps printing rows."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import time
from typing import IO, Optional, cast

from ..gpu import Gpu
from ..source import Counters, Sample, Source, SourceError
from ..tools import EXTRA_DIRECTORIES
from .nvml import Nvml
from .smi import ERROR, QUERIES, READING_OF_COLUMN, parse_header, parse_row, parse_rows, refusals

#: The driver wakes GPUs one after another without persistence mode.
FIRST_SECONDS = 60.0
LATE_SECONDS = 30.0
MAX_LINE_BYTES = 1 << 16
#: How long nothing must follow before a sweep counts as complete. With fewer GPUs than the last one had, rows may still
#: be on their way, and a GPU that is only late is not lost.
QUIET_SECONDS, SHORT_QUIET_SECONDS = 0.2, 3.0
NOT_ASKED = "this driver's nvidia-smi does not report it"
NOT_REPORTED = "nvidia-smi's query does not report it, and NVML could not be loaded"


def open_nvidia(period_seconds: float) -> Source:
    """Return NVML, else nvidia-smi. Raises ``SourceError`` when neither can be read."""
    try:
        return Nvml()
    except SourceError as error:
        problem = str(error)
    try:
        source = NvidiaSmi(period_seconds)
    except SourceError as error:
        raise SourceError(f"{problem}; {error}") from None
    source.absent["nvml"] = problem
    return source


class NvidiaSmi(Source):
    """Raises ``SourceError`` when no query gets an answer."""

    name = "nvidia-smi"

    def __init__(self, period_seconds: float = 1.0) -> None:
        super().__init__()
        search = os.pathsep.join([os.environ.get("PATH", os.defpath), *EXTRA_DIRECTORIES])
        path = shutil.which("nvidia-smi", path=search)
        if path is None:
            raise SourceError("nvidia-smi is not installed")
        self._header: list[str] = []
        self._fresh: dict[int, Gpu] = {}
        self._latest: dict[int, Gpu] = {}
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
        self.absent.update(dict.fromkeys(("row_remaps", "link_errors", "link_corrected", "pcie_replays"), NOT_REPORTED))
        asked_for = {READING_OF_COLUMN[column] for column in query if column in READING_OF_COLUMN}
        self.absent.update(dict.fromkeys(set(READING_OF_COLUMN.values()) - asked_for, NOT_ASKED))

    def _start(self, path: str, query: tuple[str, ...], period_seconds: float) -> None:
        milliseconds = str(max(100, round(period_seconds * 1000)))
        self._buffer, self._header, self._fresh, self._latest = b"", [], {}, {}
        self._process = subprocess.Popen(
            [path, f"--query-gpu={','.join(query)}", "--format=csv", "-lms", milliseconds],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C"},
        )
        self._output = cast("IO[bytes]", self._process.stdout)
        os.set_blocking(self._output.fileno(), False)

    def sample(self) -> dict[int, Sample]:
        self._sweep(LATE_SECONDS)
        return {index: gpu.sample() for index, gpu in self._latest.items()}

    def counters(self, seconds: float) -> dict[int, Counters]:
        return {index: gpu.counters() for index, gpu in self._latest.items()}

    def close(self) -> None:
        if self._process:
            self._process.kill()
            self._output.close()
            self._process = None

    def _sweep(self, limit: float) -> None:
        """Wait for all GPUs' rows of one moment. Raises ``SourceError`` when they do not come in time."""
        last_output = time.monotonic()
        deadline = last_output + limit
        last_line = ""
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while True:
                while b"\n" in self._buffer:
                    line, _, self._buffer = self._buffer.partition(b"\n")
                    text = line.decode("utf-8", "replace").strip()
                    last_line = text or last_line
                    if self._read_line(text):
                        return
                if time.monotonic() >= deadline:
                    raise SourceError(f"no output for {limit:.0f} s")
                if not selector.select(QUIET_SECONDS):
                    if self._settled(time.monotonic() - last_output):
                        return
                    continue
                last_output = time.monotonic()
                data = os.read(self._output.fileno(), 1 << 16)
                if not data:
                    raise SourceError(f"it ended: {last_line[:200] or 'without output'}")
                self._buffer = (self._buffer + data)[-MAX_LINE_BYTES:]

    def _read_line(self, text: str) -> bool:
        """Read a line; returns whether it began a new sweep, so that the one before it is complete."""
        if text.startswith("index,"):
            self._header = parse_header(text)
            return False
        rows = parse_rows(text, self._header) if self._header else []
        if not rows:
            return False
        gpu = parse_row(rows[0])
        if gpu is None:
            return False
        for reading, reason in refusals(rows[0]).items():
            if reason == ERROR or reading not in self.absent:  # of several GPUs' cells an error is what counts
                self.absent[reading] = reason
        complete = gpu.index in self._fresh
        if complete:
            self._latest, self._fresh = self._fresh, {}
        self._fresh[gpu.index] = gpu
        return complete

    def _settled(self, quiet: float) -> bool:
        """Whether a sweep is complete because nothing follows it: so the last one does not wait for the next."""
        least = QUIET_SECONDS if self._latest and len(self._fresh) >= len(self._latest) else SHORT_QUIET_SECONDS
        if not self._fresh or self._buffer or quiet < least:
            return False
        self._latest, self._fresh = self._fresh, {}
        return True
