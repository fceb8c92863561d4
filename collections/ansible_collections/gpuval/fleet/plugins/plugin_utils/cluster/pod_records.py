"""Makes records of stages whose pod ended before its runner stored them, from the pod's state and output, which are
untrusted. Pure.

A stage of a dead pod is recorded as ``crash`` if its container ended by a fault that speaks about the node (out of
memory, a signal, an exit code without a report, accelerators that its runtime could not provide), and as the state in
its runner's termination report, without figures. Eviction, disruption, deletion, a lost node, a missing image, no room
on the node, and the deadline prove nothing: stages stay as they are, and missing evidence makes the node INCOMPLETE.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ...module_utils import root_cause
from ..core.escape import one_line
from ..records.documents import FINAL_STATES
from ..records.evidence import MAX_RECORD_BYTES, ON_HOST
from .pod_diagnosis import PodTrouble
from .pod_state import ContainerState, termination_report
from .pod_tracker import PodStatus

MAX_ATTEMPTS = 9
MAX_COMMAND_WORDS, MAX_WORD = 256, 8192
#: Key in a record's environment that marks records which the runner did not write.
RECORDED_BY = "recorded_by"
_SOURCE = "recorded by the controller from the state of the pod"

_MARKER = re.compile(r"-----(BEGIN|END) GPUVAL RECORD ([a-z][a-z0-9_]{0,31})-----\s*")


@dataclass(frozen=True)
class Owed:
    """Stages that an ended pod left open. records: documents of gpuval.record/1 to write for them. cut_off: stages that
    were at work and whose end proves nothing. not_run: stages whose container never ran. Another attempt runs cut_off
    and not_run, and the stages that watch/attempts.py names."""

    records: list[dict[str, Any]] = field(default_factory=list)
    cut_off: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)


def owed(status: PodStatus, plan: Mapping[str, Any], records: Mapping[str, Mapping[str, Any]], moment: str) -> Owed:
    """The stages that an ended pod left open. `records`: those accepted so far, by stage; `moment`: the time now, RFC
    3339 UTC."""
    owed_records = Owed()
    for stage in plan["stages"] if status.done else ():
        name, attempt = stage["name"], status.attempt
        before, container, trouble = records.get(name), status.stages.get(name), status.trouble
        if name in cut_short(status, records):
            owed_records.cut_off.append(name)
            continue
        if before is not None and before["attempt"] >= attempt and before["state"] in FINAL_STATES:
            continue
        end = PodStageEnd(container, plan, name, attempt, moment, before)
        record = end.reported()
        if record is None and trouble and trouble.evidence and trouble.stage == name:
            record = end.crashed(trouble)
        if record is not None and cut_short(status, {name: record}):
            owed_records.cut_off.append(name)
        elif record is not None:
            owed_records.records.append(record)
        elif container is not None and container.ran:
            owed_records.cut_off.append(name)
        else:
            owed_records.not_run.append(name)
    return owed_records


def cut_short(status: PodStatus, records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Stages that their runner cancelled because the pod ended, which proves nothing about the node."""
    if not (status.done and status.trouble and status.trouble.retryable):
        return []
    return [
        stage
        for stage, record in records.items()
        if record["state"] == "cancelled" and record["attempt"] == status.attempt
    ]


def launch_of(status: PodStatus, launch: Mapping[str, Any]) -> dict[str, Any]:
    """The launch of a node, updated by the status of its pod: `failed` with class, message and remedy if the pod never
    ran and will not; `started` if it ran, with the reason of its end as ``contact``, which explains missing records;
    else unchanged apart from the pod's phase."""
    trouble = status.trouble
    reason = trouble.reason if trouble else {}
    kept_keys = {key: value for key, value in launch.items() if key != "contact"} | {"class": None, "remedy": None}
    if status.started or (status.done and trouble is not None and trouble.evidence):
        ended = trouble is not None and not trouble.evidence
        lost = {"contact": {**reason, "pod": status.pod or status.job or status.node}} if ended else {}
        return {**kept_keys, **lost, "state": "started", "attempt": status.attempt, "message": ""}
    if status.done and trouble is not None:
        return {**kept_keys, **reason, "state": "failed", "attempt": status.attempt}
    return {**kept_keys, "message": f"{status.phase}: {trouble.message}" if trouble else status.phase}


def split_output(text: str, stage: str) -> tuple[bytes | None, str]:
    """Split a container's output (see the runner's pod.py) into the last complete record of its stage, unchecked, and
    the text around all records. Records that are cut off or too large are left out."""
    record, inside = None, ""
    lines: list[str] = []
    kept_lines: list[str] = []
    for line in text.split("\n"):
        marker = _MARKER.fullmatch(line)
        if marker is None:
            (lines if inside else kept_lines).append(line)
            continue
        data = "\n".join(lines).strip().encode("utf-8", "surrogatepass")
        is_whole = marker[1] == "END" and inside == marker[2]  # a BEGIN without END was cut off
        if is_whole and inside == stage and len(data) <= MAX_RECORD_BYTES:
            record = data
        inside, lines = marker[2] if marker[1] == "BEGIN" else "", []
    return record, "\n".join(kept_lines).rstrip("\n")


@dataclass(frozen=True)
class PodStageEnd:
    """The end of a stage in a pod. `container`: the stage's, None if the pod has none; `before`: the stage's record in
    the store; `moment`: the time now, RFC 3339 UTC."""

    container: ContainerState | None
    plan: Mapping[str, Any]
    stage: str
    attempt: int
    moment: str
    before: Mapping[str, Any] | None = None

    def reported(self) -> dict[str, Any] | None:
        """The stage's record, made from its termination report; None without one. Success counts only with exit code 0,
        or 1 for the last container when another stage failed."""
        container = self.container
        report = termination_report(self.stage, container) if container else None
        if container is None or report is None or (report.state == "success" and container.exit_code not in (0, 1)):
            return None
        message = "; ".join(filter(None, [report.message, f"{_SOURCE}: its figures did not arrive"]))
        return self._record(report.state, message, report.exit_code, report.signal, report.cause)

    def skipped(self, trouble: PodTrouble | None) -> dict[str, Any]:
        """The record of a stage whose container will not run, because its pod ended before."""
        why = trouble.message if trouble else "its pod ended"
        return replace(self, container=None)._record("skipped", f"its container was not started: {why}; {_SOURCE}")

    def crashed(self, trouble: PodTrouble) -> dict[str, Any]:
        """The record of a stage that this trouble ended, with the last output and root cause."""
        container, message = self.container, f"{trouble.message}; {_SOURCE}"
        output = container.message if container and container.reason not in trouble.message else ""
        cause = root_cause.in_text(f"{trouble.message}\n{output}")
        last_words = output and f"last output: {output}"
        if cause and cause.text not in trouble.message:
            last_words = cause.sentence()
        tail = one_line(last_words, 300)
        if tail and (cause or one_line(output, 300) not in message):
            message += f"; {tail}"
        code, signal = (container.exit_code, container.signal) if container else (None, None)
        return self._record("crash", message, code, signal, cause)

    def _record(
        self,
        state: str,
        message: str,
        exit_code: int | None = None,
        signal: str | None = None,
        cause: root_cause.RootCause | None = None,
    ) -> dict[str, Any]:
        plan, container, before = self.plan, self.container, self.before
        declared = next(item for item in plan["stages"] if item["name"] == self.stage)
        started = container.started_at if container else None
        finished = (container.finished_at if container else None) or self.moment
        document: dict[str, Any] = {
            "schema": "gpuval.record/1",
            "run_id": plan["run_id"],
            "node": plan["node"],
            "stage": self.stage,
            "workload": declared["workload"],
            "command": [str(word)[:MAX_WORD] for word in declared["command"][:MAX_COMMAND_WORDS]],
            "image": None if self.stage in ON_HOST else declared["image"],
            "metrics": [],
            "fingerprints": {},
            "environment": {},
            "artifacts": [],
            "attempts": [],
        }
        if before is not None:
            attempts = [*before["attempts"], {**before, "attempts": []}][-MAX_ATTEMPTS:]
            if before["attempt"] != self.attempt:
                document["attempts"] = attempts
            else:
                document |= before
                started = before["started_at"] or started
                # Metrics of a heartbeat are not final: failures count, passes do not.
                if state == "success" and before["metrics"]:
                    document |= {"metrics": [], "fingerprints": {}, "attempts": attempts}
        environment = {**document["environment"], RECORDED_BY: "controller"}
        return {
            **document,
            **({"nonce": plan["nonce"]} if plan.get("nonce") else {}),
            "attempt": self.attempt,
            "state": state,
            "message": one_line(message, 4000),
            "environment": {**environment, **({"cause": cause.document()} if cause else {})},
            "started_at": started,
            "updated_at": self.moment,
            "finished_at": finished,
            "duration_seconds": _seconds(started, finished),
            "exit_code": exit_code,
            "signal": signal,
        }


def _seconds(started: str | None, finished: str) -> float | None:
    """Seconds from `started` to `finished`, RFC 3339 by the cluster's wall clock; None if the start is unknown."""
    if started is None:
        return None
    first, last = (datetime.fromisoformat(moment) for moment in (started, finished))
    return max(0.0, (last - first).total_seconds())
