"""Records (gpuval.record/1) and series (gpuval.series/1): built, bounded in size, written in one step and sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from gpuval_runner.clock import now
from gpuval_runner.files import read_object, to_json, write_atomically
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.log import note
from gpuval_runner.machine import FINISHED, STATES
from gpuval_runner.plan import NodePlan, Stage
from gpuval_runner.result import (
    MAX_ARTIFACTS,
    MAX_ENVIRONMENT,
    MAX_MESSAGE,
    MAX_METRICS,
    RecordCurve,
    RecordMetric,
    ResultFile,
)
from gpuval_runner.text import encodable, one_line

if TYPE_CHECKING:  # a launch reads records and must not import HTTP
    from gpuval_runner.upload import Source, Uploader

SCHEMA = "gpuval.record/1"
SERIES_SCHEMA = "gpuval.series/1"
MAX_RECORD_BYTES = 1 << 20
MAX_SERIES_BYTES = 8 << 20
MAX_ATTEMPTS = 9
MAX_COMMAND_WORDS = 256
MAX_WORD = 8192
#: Types that the runner checks in a record on disk, since a stage may have changed the file.
CHECKED = {"attempt": int, "attempts": list, "metrics": list, "environment": dict, "message": str}


@dataclass
class StageRecord:
    """The record of one stage on one node; the fields are those of the schema gpuval.record/1."""

    run_id: str
    node: str
    stage: str
    workload: str
    attempt: int
    state: str = "pending"
    message: str = ""
    started_at: Optional[str] = None
    updated_at: str = ""
    finished_at: Optional[str] = None
    duration_seconds: Optional[float] = None
    command: list[str] = field(default_factory=list)
    image: Optional[str] = None
    exit_code: Optional[int] = None
    signal: Optional[str] = None
    metrics: list[RecordMetric] = field(default_factory=list)
    fingerprints: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    nonce: str = ""

    @classmethod
    def pending(cls, plan: NodePlan, stage: Stage, attempts: Iterable[dict[str, Any]] = ()) -> StageRecord:
        """Return the record of a stage that has not started."""
        return cls(
            run_id=plan.run_id,
            node=plan.node,
            stage=stage.name,
            workload=stage.workload,
            attempt=plan.attempt,
            nonce=plan.nonce,
            command=[encodable(word)[:MAX_WORD] for word in stage.command[:MAX_COMMAND_WORDS]],
            image=(stage.image or "")[:512] if plan.in_container(stage) else None,
            attempts=list(attempts),
        )

    def merge(self, result: ResultFile, more_metrics: Iterable[RecordMetric] = ()) -> None:
        """Set the results that the workload reported; they replace metrics of the same name that its output has."""
        metrics = {(m["name"], m["scope"]): m for m in more_metrics}
        metrics.update({(m["name"], m["scope"]): m for m in result.metrics})
        self.metrics = list(metrics.values())[:MAX_METRICS]
        self.fingerprints = result.fingerprints
        self.environment = result.environment
        self.artifacts = result.artifacts[:MAX_ARTIFACTS]

    def add_telemetry(self, metrics: Iterable[RecordMetric], environment: Mapping[str, Any]) -> None:
        """Add the telemetry of the stage, after :meth:`merge`; the workload's metrics of the same name stay."""
        recorded = {(metric["name"], metric["scope"]) for metric in self.metrics}
        more = [metric for metric in metrics if (metric["name"], metric["scope"]) not in recorded]
        self.metrics = [*self.metrics, *more[: max(0, MAX_METRICS - len(self.metrics))]]
        names = [name for name in environment if name not in self.environment]
        names = names[: max(0, MAX_ENVIRONMENT - len(self.environment))]
        self.environment = {**self.environment, **{name: environment[name] for name in names}}

    def encode(self) -> bytes:
        """Return the record as JSON of at most 1 MiB, stamped with the present time. The message names what was left
        out to fit: first environments of earlier attempts, then large entries of this attempt's environment, metrics of
        single parts, and other fields. Metrics of earlier attempts are left out last: a fault that they show must not
        be lost while this attempt's figures pass."""
        self.updated_at = now()
        document = {"schema": SCHEMA, **vars(self)}
        document["message"] = one_line(self.message, MAX_MESSAGE)
        dropped: list[str] = []
        shrinks = iter((_shrink_attempts, _shrink_environment, _shrink_metrics, _shrink_rest, _clear_attempts))
        while len(data := to_json(document)) > MAX_RECORD_BYTES and (shrink := next(shrinks, None)):
            dropped += filter(None, [shrink(document, len(data) - MAX_RECORD_BYTES + 1024)])
            note = f"left out to keep the record within 1 MiB: {', '.join(dropped)}"
            text = "; ".join(filter(None, (self.message[: MAX_MESSAGE - 400], note)))
            document["message"] = one_line(text, MAX_MESSAGE)
        return data


def load(path: Path, plan: NodePlan) -> Optional[dict[str, Any]]:
    """Read a record file of the plan's run and node; None when it is missing or damaged."""
    document = read_object(path, 2 * MAX_RECORD_BYTES)
    identity = {"schema": SCHEMA, "run_id": plan.run_id, "node": plan.node, "stage": path.stem}
    is_record = (
        set(document) | {"nonce"} == {"schema", *StageRecord.__dataclass_fields__}
        and identity.items() <= {name: document[name] for name in identity}.items()
        and document["state"] in STATES
        and all(isinstance(document[name], kind) for name, kind in CHECKED.items())
    )
    return document if is_record else None


def is_finished(directory: NodeDirectory, plan: NodePlan) -> bool:
    """Whether every stage of the plan has ended in the plan's attempt."""
    documents = [load(directory.record(stage.name), plan) for stage in plan.stages]
    return all(d is not None and d["attempt"] == plan.attempt and d["state"] in FINISHED for d in documents)


def restore(document: dict[str, Any]) -> StageRecord:
    """Return a record's JSON document, as :func:`load` returns it, as a `StageRecord`."""
    return StageRecord(**{name: value for name, value in document.items() if name != "schema"})


def archived(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a record and its earlier attempts as a flat list, oldest first, for the next record's ``attempts``."""
    earlier = [item.copy() for item in document["attempts"] if isinstance(item, dict)]
    return [*earlier, {**document, "attempts": []}][-MAX_ATTEMPTS:]


def encode_series(plan: NodePlan, stage: Stage, series: list[RecordCurve]) -> bytes:
    """Return the series document of a stage as JSON of at most 8 MiB; the longest curves are left out to fit."""
    kept_curves = _fitting(sorted(series, key=lambda curve: len(curve["x"])), MAX_SERIES_BYTES - 1024)
    return to_json(
        {
            "schema": SERIES_SCHEMA,
            "run_id": plan.run_id,
            "node": plan.node,
            "stage": stage.name,
            "attempt": plan.attempt,
            "series": series if len(kept_curves) == len(series) else kept_curves,
        }
    )


def _shrink_attempts(document: dict[str, Any], _: int) -> str:
    if not document["attempts"]:
        return ""
    document["attempts"] = [{**attempt, "environment": {}, "artifacts": []} for attempt in document["attempts"]]
    return "environments of earlier attempts"


def _clear_attempts(document: dict[str, Any], _: int) -> str:
    document["attempts"] = [
        {**attempt, "metrics": [], "fingerprints": {}, "command": attempt["command"][:1]}
        for attempt in document["attempts"]
    ]
    return "figures of earlier attempts" if document["attempts"] else ""


def _shrink_environment(document: dict[str, Any], _: int) -> str:
    sizes = {key: len(to_json(value)) for key, value in document["environment"].items()}
    large = [key for key, size in sizes.items() if size > MAX_RECORD_BYTES // 32]
    document["environment"] = {k: v for k, v in document["environment"].items() if k not in large}
    return f"{len(large)} entries of environment" if large else ""


def _shrink_metrics(document: dict[str, Any], excess_bytes: int) -> str:
    metrics = sorted(document["metrics"], key=lambda metric: metric["scope"] != "node")
    room = sum(len(to_json(metric)) for metric in metrics) - max(0, excess_bytes)
    document["metrics"] = kept_metrics = _fitting(metrics, room)
    return f"{len(metrics) - len(kept_metrics)} of {len(metrics)} metrics" if len(kept_metrics) < len(metrics) else ""


def _fitting(entries: list[Any], room_bytes: int) -> list[Any]:
    """Return the first entries, as many as fit into `room_bytes` of JSON."""
    sizes = accumulate(len(to_json(entry)) for entry in entries)
    return [entry for entry, size in zip(entries, sizes) if size <= room_bytes]


def _shrink_rest(document: dict[str, Any], _: int) -> str:
    document.update(environment={}, fingerprints={}, artifacts=[], command=document["command"][:1])
    return "environment, fingerprints, artifacts, arguments"


class ResultPublisher:
    """Writes results to files and sends them to the store. A full disk is only noted: the store may still get them."""

    def __init__(self, directory: NodeDirectory, plan: NodePlan, uploader: Optional[Uploader]) -> None:
        self._directory, self._plan, self._uploader = directory, plan, uploader
        self.write_problem = ""

    def record(self, record: StageRecord) -> bytes:
        """Write and send a record; returns its JSON. The record of an ended stage also removes the stage's secrets."""
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
        """Write a stage's time series to its file and send it; nothing if there are none."""
        if series:
            data = encode_series(self._plan, stage, series)
            self._write(f"series/{stage.name}", data)
            self._send(f"series/{stage.name}", data)

    def log(self, stage: Stage) -> None:
        """Queue a stage's log for sending, with its content at the time of sending."""
        path = self._directory.result(f"logs/{stage.name}")
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
