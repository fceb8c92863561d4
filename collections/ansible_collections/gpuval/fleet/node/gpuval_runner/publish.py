"""Records, logs and series to the node directory and, where there is one, to the store."""

from __future__ import annotations

import contextlib
import sys
from typing import Optional

from gpuval_runner.clock import now
from gpuval_runner.files import write_atomically
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.plan import NodePlan, Stage
from gpuval_runner.record import StageRecord, encode_series
from gpuval_runner.result import RecordCurve
from gpuval_runner.text import one_line
from gpuval_runner.upload import Source, Uploader


def note(text: str) -> None:
    """Write a line to the runner's own log, its standard error."""
    with contextlib.suppress(OSError):  # a full disk under runner.log must not end the run
        print(f"{now()} {one_line(text, 1000)}", file=sys.stderr, flush=True)


class ResultPublisher:
    """Writes results and has them sent. A full disk is noted and is no error: the store may still get them."""

    def __init__(self, directory: NodeDirectory, plan: NodePlan, uploader: Optional[Uploader]) -> None:
        self._directory, self._plan, self._uploader = directory, plan, uploader
        self.write_problem = ""

    def record(self, record: StageRecord) -> bytes:
        """Write and send a record; returns its text. With the end of a stage its secrets go."""
        if record.finished_at:
            with contextlib.suppress(OSError):
                self._directory.secrets(record.stage).unlink()
        key, message = f"records/{record.stage}", record.message
        data = record.encode()
        if not self._write(key, data):
            record.message = "; ".join(filter(None, [message, f"the node could not store it: {self.write_problem}"]))
            data = record.encode()
            record.message = message
        self._send(key, data)
        return data

    def series(self, stage: Stage, series: list[RecordCurve]) -> None:
        """Write and send the curves of a stage, if it has any."""
        if series:
            data = encode_series(self._plan, stage, series)
            self._write(f"series/{stage.name}", data)
            self._send(f"series/{stage.name}", data)

    def log(self, stage: Stage) -> None:
        """Send the log as it is by the time it is sent."""
        path = self._directory.log(stage.name)
        if path.exists():
            self._send(f"logs/{stage.name}", path)

    def _write(self, key: str, data: bytes) -> bool:
        problem = ""
        try:
            write_atomically(self._directory.result(key), data)
        except OSError as error:
            problem = error.strerror or str(error)
            if problem != self.write_problem:
                note(f"cannot write {key}: {problem}: free space on the node")
        self.write_problem = problem
        return not problem

    def _send(self, key: str, source: Source) -> None:
        if self._uploader:
            self._uploader.put(key, source)
