"""Stages of a simulated cluster that do no work: their records and logs go to the store by the pod's signed URLs."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from gpuval_runner.plan import HOST_STAGES
from gpuval_runner.record import StageRecord
from gpuval_runner.upload import CONTENT_TYPES, Send, http_sender

from tests.kit.api_server import Manifest
from tests.kit.cluster import StageEnd, StageRun, config_data, secret_data

PUT_SECONDS = 60.0
TRIES, PAUSE_SECONDS = 3, 0.5


@dataclass
class Records:
    """`on_stage` of a ClusterKit. Every stage succeeds, unless `states` says otherwise for a node and stage."""

    states: dict[tuple[str, str], str] = field(default_factory=dict)
    #: How often a stage was begun, by run, node, stage and attempt.
    begun: Counter[tuple[str, str, str, int]] = field(default_factory=Counter)
    _began: dict[tuple[str, str], datetime] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)
    _senders: dict[str, Send] = field(default_factory=dict)

    def __call__(self, run: StageRun, moment: str) -> StageEnd | None:
        now = datetime.now(timezone.utc)
        pod = run.pod["metadata"]["uid"]
        if moment == "start":
            with self._lock:
                self.begun[run.run, run.node, run.stage, run.attempt] += 1
                self._began[pod, run.stage] = now
            self._put(run, self._record(run, "running", now))
            return None
        with self._lock:
            began = self._began.pop((pod, run.stage))
        state = self.states.get((run.node, run.stage), "success")
        record = self._record(run, state, began, now)
        log = f"{run.stage} attempt {run.attempt} starts\n{run.stage} attempt {run.attempt} ended: {state}\n"
        self._put(run, record, log)
        report = {key: getattr(record, key) for key in ("stage", "state", "exit_code", "signal", "message")}
        return StageEnd(record.exit_code or 0, log, json.dumps(report))

    def _record(self, run: StageRun, state: str, began: datetime, ended: datetime | None = None) -> StageRecord:
        plan = _plan(run)
        (stage,) = [stage for stage in plan["stages"] if stage["name"] == run.stage]
        identity = {key: plan[key] for key in ("run_id", "node", "nonce")}
        record = StageRecord(**identity, stage=run.stage, workload=stage["workload"], attempt=run.attempt, state=state)
        record.command, record.started_at = stage["command"], _rfc3339(began)
        record.image = None if run.stage in HOST_STAGES else stage["image"]
        if ended:
            record.finished_at, record.duration_seconds = _rfc3339(ended), (ended - began).total_seconds()
            record.exit_code = 0 if state == "success" else 1
            record.message = "" if state == "success" else "a simulated failure"
        return record

    def _put(self, run: StageRun, record: StageRecord, log: str = "") -> None:
        (secret,) = (one for one in run.secrets.values() if "store.json" in one["data"])  # a gang's keys are in another
        urls = json.loads(secret_data(secret, "store.json"))["put"]
        send = self._sender(secret)
        parts = {"logs": log.encode(), "records": record.encode()}
        for kind, data in parts.items():
            if data and (url := urls.get(f"{kind}/{run.stage}")):
                self._send(send, url, data, {"Content-Type": CONTENT_TYPES[kind]}, f"{kind} of {run.node}")

    @staticmethod
    def _send(send: Send, url: str, data: bytes, headers: dict[str, str], what: str) -> None:
        """A runner tries again, too: rclone refuses one of two PUTs at times that make a folder at one moment."""
        for left in range(TRIES - 1, -1, -1):
            try:
                status: object = send(url, data, headers, PUT_SECONDS)
            except OSError as error:
                status = error
            if status == 200:
                return
            if not left:
                raise OSError(f"the store answers {status} to {what}")
            time.sleep(PAUSE_SECONDS)

    def _sender(self, secret: Manifest) -> Send:
        """One for all pods of a store."""
        authority = secret_data(secret, "ca.pem").decode() if "ca.pem" in secret["data"] else ""
        with self._lock:
            if authority not in self._senders:
                with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                    file.write(authority)
                    file.flush()
                    self._senders[authority] = http_sender(file.name if authority else None)
            return self._senders[authority]


def _plan(run: StageRun) -> dict[str, Any]:
    """The plan that the pod mounts."""
    for volume in run.pod["spec"]["volumes"]:
        for source in volume.get("projected", {}).get("sources", []):
            for item in source.get("configMap", {}).get("items", []):
                if item["path"] == "plan.json":
                    return json.loads(config_data(run.config_maps[source["configMap"]["name"]], item["key"]))
    raise KeyError("plan.json")


def _rfc3339(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
