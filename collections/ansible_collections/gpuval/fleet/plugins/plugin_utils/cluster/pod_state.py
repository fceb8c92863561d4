"""Parses Pod, Node and Event objects of Kubernetes, as far as a run needs them. Texts are cleaned here, once. Times are
the cluster's, RFC 3339, only shown or compared with each other. Pure."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ...module_utils.root_cause import RootCause, read_cause
from ..core.escape import one_line
from ..records.digests import stated_in
from ..records.documents import FINAL_STATES
from . import names

WAITING, PENDING, PULLING, RUNNING, ENDED = "waiting", "pending", "pulling", "running", "ended"
MESSAGE_CHARACTERS = 600
MAX_TERMINATION_CHARACTERS = 4096
#: Reasons of a terminated container that never ran.
NOT_RUN_REASONS = frozenset({"StartError", "ContainerCannotRun"})
#: Seconds by which the clocks of a node and of the API server may differ.
CLOCK_SECONDS = 10
SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
    11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM",
}  # fmt: skip
#: Reasons of events which show that a pod's volumes and sandbox are ready, and that its image pull has begun.
PROGRESS_REASONS = frozenset({"Pulling", "Pulled", "Created", "Started"})

_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?Z")


@dataclass(frozen=True)
class ContainerState:
    """State of a stage's container; `state` is waiting, running or ended."""

    state: str
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    signal: str | None = None
    started_at: str | None = None
    finished_at: str | None = None

    @property
    def ran(self) -> bool:
        """Whether the container's process was started."""
        return self.state == "running" or (
            self.state == "ended" and self.reason not in NOT_RUN_REASONS and self.started_at is not None
        )


@dataclass(frozen=True)
class PodEvent:
    """The latest Kubernetes event of one reason about one object. `second`: time by the clock of the event's source, ""
    if unknown. `order`: number in the order of arrival. `arrived_at`: monotonic seconds."""

    message: str
    second: str
    order: int
    arrived_at: float

    def later_than(self, event: "PodEvent") -> bool:
        """Whether this event is later than another: by the events' times in whole seconds, else by their arrival."""
        if self.second and event.second and self.second != event.second:
            return self.second > event.second
        return self.order > event.order


@dataclass
class Pod:
    """What gpuval uses of a Pod object. A Pod without name stands for no pod."""

    name: str = ""
    uid: str = ""
    created: str = ""
    phase: str = ""
    reason: str = ""
    message: str = ""
    host: str = ""
    #: When the scheduler assigned the pod to its host.
    scheduled_at: str | None = None
    #: Whether the pod's volumes are mounted and its sandbox exists.
    prepared: bool = False
    #: When the request to delete the pod was first seen.
    deleted_at: str | None = None
    #: Reason and message of the condition PodScheduled while False, and of DisruptionTarget while True; else None.
    unscheduled: tuple[str, str] | None = None
    disruption: tuple[str, str] | None = None
    stages: dict[str, ContainerState] = field(default_factory=dict)
    #: Names of the PersistentVolumeClaims that the pod mounts: existing ones, and those created for this pod alone.
    claims: tuple[str, ...] = ()
    own_claims: tuple[str, ...] = ()
    gone: bool = False
    #: UID of the pod's Node, since a later Node may have the same name; "" is not known yet.
    host_uid: str = ""
    #: Whether a container failed before any request to delete the pod.
    failed_first: bool = False
    #: Seconds by which the deletion request may precede `deleted_at`, a time that the API server sets anew at removal.
    deleted_before: int = 0

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def ran(self) -> bool:
        return any(container.ran for container in self.stages.values())

    @property
    def stage(self) -> str | None:
        """The stage that the pod is at, or was at when it ended."""
        for state in ("running", "waiting"):
            for stage, container in self.stages.items():
                if container.state == state:
                    return stage
                if container.state == "ended" and container.exit_code:
                    return stage
        return None

    @property
    def ended_by_deletion(self) -> bool:
        """Whether the pod's containers ended because its deletion was requested, so that their end proves nothing."""
        return self.deleted_at is not None and not self.failed_first

    def follow(self, before: "Pod | None") -> None:
        """Copy what the earlier state `before` showed: the API server changes the deletion time at the pod's removal.
        If one update shows a failure and the deletion, their times decide which was first; the clocks may differ."""
        failed = {
            stage: container
            for stage, container in self.stages.items()
            if container.exit_code and container.finished_at
        }
        deleted = self.deleted_at
        if deleted and all(_was_stopped(stage, container) for stage, container in failed.items()):
            deleted = _earlier(deleted, self.deleted_before)
        ends = [str(container.finished_at) for container in failed.values()]
        self.failed_first = bool(ends) and (deleted is None or max(ends) < deleted)
        if before is None:
            return
        if before.deleted_at or before.failed_first:
            self.failed_first = before.failed_first
        self.deleted_at = before.deleted_at or self.deleted_at
        if before.host == self.host:
            self.host_uid = before.host_uid


@dataclass
class ClusterNode:
    name: str
    uid: str
    created: str | None
    ready: bool
    message: str
    unschedulable: bool
    #: Keys of the taints that keep pods away.
    taints: frozenset[str]
    hostname: str | None
    gone: bool = False
    #: Whether another node has this name now.
    replaced: bool = False

    def may_have(self, pod: Pod) -> bool:
        """Whether a pod on a node of this name may be on this node: not if scheduled before the node existed."""
        return self.created is None or pod.scheduled_at is None or pod.scheduled_at[:19] >= self.created[:19]


def read_pod(pod: Mapping[str, Any]) -> Pod:
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    conditions = {item.get("type"): item for item in status.get("conditions") or ()}
    scheduled, disrupted = conditions.get("PodScheduled") or {}, conditions.get("DisruptionTarget") or {}
    reported = {
        item.get("name"): item
        for key in ("initContainerStatuses", "containerStatuses")
        for item in status.get(key) or ()
    }
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    named = [str(item.get("name")) for item in containers] or [str(name) for name in reported]
    volumes = spec.get("volumes") or ()
    claims = [str((volume.get("persistentVolumeClaim") or {}).get("claimName") or "") for volume in volumes]
    own_claims = [f"{meta.get('name')}-{volume.get('name')}" for volume in volumes if volume.get("ephemeral")]
    # deletionTimestamp is the end of the grace period: subtract the period for the time of the request.
    deleted, grace_left = _moment(meta.get("deletionTimestamp")), _seconds(meta.get("deletionGracePeriodSeconds"))
    is_removed, grace = meta.get("deletionGracePeriodSeconds") == 0, _seconds(spec.get("terminationGracePeriodSeconds"))
    return Pod(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid") or meta.get("name", "")),
        created=str(meta.get("creationTimestamp") or ""),
        phase=str(status.get("phase", "Pending")),
        reason=str(status.get("reason") or ""),
        message=one_line(str(status.get("message") or ""), MESSAGE_CHARACTERS),
        host=str(spec.get("nodeName") or ""),
        scheduled_at=_moment(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        prepared=(conditions.get("PodReadyToStartContainers") or {}).get("status") == "True",
        deleted_at=_earlier(deleted, grace_left) if deleted else None,
        deleted_before=grace + CLOCK_SECONDS if is_removed else 0,
        unscheduled=reason_of(scheduled, 2000) if scheduled.get("status") == "False" else None,
        disruption=reason_of(disrupted) if disrupted.get("status") == "True" else None,
        stages={names.stage_of(name): _container(reported.get(name) or {}) for name in named},
        claims=tuple(filter(None, claims)),
        own_claims=tuple(own_claims),
    )


def reason_of(condition: Mapping[str, Any], characters: int = 400) -> tuple[str, str]:
    """Reason and message of a condition, the message in one line of at most `characters`."""
    return str(condition.get("reason", "")), one_line(str(condition.get("message", "")), characters)


def _container(status: Mapping[str, Any]) -> ContainerState:
    state = status.get("state") or {}
    if "terminated" in state:
        end = state["terminated"] or {}
        code, number = end.get("exitCode"), end.get("signal")
        if not number and isinstance(code, int) and code - 128 in SIGNALS and end.get("reason") not in NOT_RUN_REASONS:
            number = code - 128
        return ContainerState(
            state="ended",
            reason=str(end.get("reason") or ""),
            # Not cleaned here: JSON of a runner, which `termination_report` parses. Other texts are cleaned when shown.
            message=str(end.get("message") or "")[: MAX_TERMINATION_CHARACTERS + 1],
            exit_code=code if isinstance(code, int) else None,
            signal=SIGNALS.get(number, f"signal {number}") if isinstance(number, int) and number else None,
            started_at=_moment(end.get("startedAt")),
            finished_at=_moment(end.get("finishedAt")),
        )
    if "running" in state:
        return ContainerState("running", started_at=_moment((state["running"] or {}).get("startedAt")))
    waits = state.get("waiting") or {}
    return ContainerState(
        "waiting", str(waits.get("reason") or ""), one_line(str(waits.get("message") or ""), MESSAGE_CHARACTERS)
    )


def _moment(value: Any) -> str | None:
    """A timestamp of the cluster; None if invalid, or the zero time (year 1, or 1970 in old kubelets)."""
    if not isinstance(value, str) or not _MOMENT.fullmatch(value) or value[:4] in ("0001", "1970"):
        return None
    return value


def read_node(node: Mapping[str, Any]) -> ClusterNode:
    meta, spec, status = node.get("metadata") or {}, node.get("spec") or {}, node.get("status") or {}
    ready: Mapping[str, Any] = next(
        (item for item in status.get("conditions") or () if item.get("type") == "Ready"), {}
    )
    return ClusterNode(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid") or meta.get("name", "")),
        created=_moment(meta.get("creationTimestamp")),
        ready=ready.get("status") == "True",
        message=one_line(f"{ready.get('reason') or 'no Ready condition'}: {ready.get('message') or ''}".rstrip(": ")),
        unschedulable=bool(spec.get("unschedulable")),
        taints=frozenset(
            str(item.get("key")) for item in spec.get("taints") or () if item.get("effect") != "PreferNoSchedule"
        ),
        hostname=(meta.get("labels") or {}).get("kubernetes.io/hostname"),
    )


def second_of(event: Mapping[str, Any]) -> str:
    """When an event last happened, without fractions of a second; "" if the event has no time."""
    series = event.get("series") or {}
    times = (event.get("lastTimestamp"), event.get("eventTime"), series.get("lastObservedTime"))
    return max(((_moment(each) or "")[:19] for each in times), default="")


def newest(events: Mapping[str, PodEvent], reasons: Iterable[str]) -> PodEvent | None:
    """The latest event with one of these reasons, None without one. `events`: {reason: event}."""
    latest: PodEvent | None = None
    for event in (events[reason] for reason in reasons if reason in events):
        if latest is None or event.later_than(latest):
            latest = event
    return latest


def progressed(events: Mapping[str, PodEvent], reasons: Iterable[str]) -> bool:
    """Whether the kubelet reported progress of a pod after the last event of these reasons."""
    progress, trouble = newest(events, PROGRESS_REASONS), newest(events, reasons)
    return progress is not None and (trouble is None or progress.later_than(trouble))


def _seconds(value: object) -> int:
    return value if isinstance(value, int) else 0


def _earlier(moment: str, seconds: int) -> str:
    return (datetime.fromisoformat(moment) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _was_stopped(stage: str, container: ContainerState) -> bool:
    """Whether a container ended as pods end after a deletion: by the kubelet's signals (not `OOMKilled`), or with its
    stage cancelled."""
    report = termination_report(stage, container)
    killed = container.signal in ("SIGTERM", "SIGKILL") and container.reason == "Error"
    return killed or (report is not None and report.state == "cancelled")


@dataclass(frozen=True)
class TerminationReport:
    state: str
    message: str
    exit_code: int | None
    signal: str | None
    cause: RootCause | None = None
    #: SHA-256 digests of the stage's objects, by key such as `records/facts` (see records/digests.py).
    digests: Mapping[str, list[str]] = field(default_factory=dict)


def termination_report(stage: str, container: ContainerState) -> TerminationReport | None:
    """The stage's state as its runner, on the node and so untrusted, wrote it to the container's termination message;
    None without a valid one."""
    if container.state != "ended" or len(container.message) > MAX_TERMINATION_CHARACTERS:
        return None
    try:
        report = json.loads(container.message)
    except (ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or report.get("stage") != stage or str(report.get("state")) not in FINAL_STATES:
        return None
    code, signal = report.get("exit_code"), report.get("signal")
    return TerminationReport(
        state=report["state"],
        message=one_line(str(report.get("message") or ""), 2000),
        exit_code=code if type(code) is int and abs(code) < 1 << 31 else None,
        signal=one_line(signal, 16) if isinstance(signal, str) and len(signal) <= 16 else None,
        cause=read_cause(report.get("cause")),
        digests={key: values for key, values in stated_in(report).items() if key.endswith(f"/{stage}")},
    )
