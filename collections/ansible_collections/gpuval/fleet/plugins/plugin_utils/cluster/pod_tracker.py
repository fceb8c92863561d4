"""Follows the pods of a run's nodes: takes the objects that the watch brings, and gives each node's `PodStatus`. Times
are seconds of the caller's monotonic clock. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.escape import one_line
from ..records.failure_classes import row_of
from . import names, pod_diagnosis, pod_state
from .pod_diagnosis import CLAIM, NodeAttempt, PodCase, PodLimits, PodTrouble, diagnose
from .pod_state import ClusterNode, ContainerState, Pod, PodEvent

MAX_EVENT_OBJECTS = 20_000
#: Reasons of events that explain why a pod is missing or does not start, or show that it starts after all.
EVENT_REASONS = frozenset({"FailedCreate", "FailedScheduling", pod_diagnosis.NO_CLAIM, *pod_diagnosis.PREPARE_REASONS})
EVENT_REASONS |= pod_diagnosis.PULL_FAILED_REASONS | pod_state.PROGRESS_REASONS
#: Reasons of events about PersistentVolumeClaims: why they have no volume, or that they have one.
EVENTS_OF_CLAIMS = frozenset({*pod_diagnosis.CLAIM_REASONS, pod_diagnosis.CLAIM_PROVISIONED})
#: The kubelet's summary of volumes that it cannot mount, which follows the event with the cause.
MOUNT_SUMMARY = "Unable to attach or mount volumes"
#: Seconds within which the status and the event of a failed pull belong together: they arrive in any order.
PULL_NEWS_SECONDS = 5.0


@dataclass(frozen=True)
class PodStatus:
    """Status of one attempt on one node. `stage`: the stage whose image is pulled, or whose container runs or ended the
    pod. `started`: a container ran. `done`: no more results come, the Job may be deleted. `held`: a queue may still
    admit the Job."""

    node: str
    attempt: int
    phase: str
    stage: str | None = None
    stages: Mapping[str, ContainerState] = field(default_factory=dict)
    trouble: PodTrouble | None = None
    pod: str | None = None
    job: str | None = None
    job_set: str = ""
    started: bool = False
    done: bool = False
    held: bool = False


class PodTracker:
    """Follows the pods of a run's nodes by the objects that the watch brings."""

    def __init__(self, limits: PodLimits | None = None) -> None:
        self.limits = limits or PodLimits()
        self._attempts: dict[str, dict[int, NodeAttempt]] = {}
        self._stages: dict[str, frozenset[str]] = {}
        self._nodes: dict[str, ClusterNode] = {}
        self._owners: dict[tuple[str, str], tuple[str, int]] = {}
        self._events: dict[tuple[str, str], dict[str, PodEvent]] = {}
        self._arrived = 0
        self._now = 0.0
        #: By failure class or CLAIM, monotonic time since which pods share a trouble: their time limits count from it.
        self._refused_at: dict[str, float] = {}
        #: Attempts with pods that mount a claim, by name of the claim.
        self._claims: dict[str, set[tuple[str, int]]] = {}
        #: By name of the cluster's node, the run's nodes with pods there: inventory names may differ from node names.
        self._hosts: dict[str, set[str]] = {}

    def expect(self, node: str, stages: Iterable[str] = ()) -> None:
        """Follow a node with these stages. Other containers of its pod, such as a mesh's sidecar, are ignored."""
        self._attempts.setdefault(node, {})
        self._stages[node] = frozenset(stages)

    def take(self, kind: str, change: str, obj: Mapping[str, Any] | None, now: float) -> set[str]:
        """Handle a changed Job, Pod, Node or Event (`kind`); `change` is ADDED, MODIFIED or DELETED; `now`: monotonic
        seconds. Returns the names of nodes that it may concern."""
        taker = {"Job": self._job, "Pod": self._pod, "Node": self._node, "Event": self._event}.get(kind)
        if taker is None or not isinstance(obj, Mapping) or change not in ("ADDED", "MODIFIED", "DELETED"):
            return set()
        self._now = now
        touched = taker(obj, change == "DELETED")
        for attempt in touched:
            self._assess(attempt, now)
        return {attempt.node for attempt in touched}

    def status(self, node: str, now: float, attempt: int | None = None) -> PodStatus:
        """The status of a node's attempt, by default the newest. `now`: monotonic seconds."""
        attempts = self._attempts.get(node, {})
        number = attempt if attempt is not None else max(attempts, default=1)
        tried = attempts.get(number)
        return PodStatus(node, number, pod_state.WAITING) if tried is None else self._status(tried, now)

    def _attempt(self, meta: Mapping[str, Any]) -> NodeAttempt | None:
        node = (meta.get("annotations") or {}).get(names.NODE_ANNOTATION)
        number = (meta.get("labels") or {}).get(names.ATTEMPT_LABEL, "1")
        if not node or not str(number).isdecimal():
            return None
        attempts = self._attempts.setdefault(str(node), {})
        return attempts.setdefault(int(number), NodeAttempt(str(node), int(number)))

    def _job(self, job: Mapping[str, Any], deleted: bool) -> list[NodeAttempt]:
        meta = job.get("metadata") or {}
        tried = self._attempt(meta)
        if tried is None:
            return []
        status = job.get("status") or {}
        tried.job, tried.job_gone = str(meta.get("name")), deleted
        tried.job_deleted = tried.job_deleted or deleted or bool(meta.get("deletionTimestamp"))
        tried.suspended = bool((job.get("spec") or {}).get("suspend"))
        tried.queue = one_line(str((meta.get("annotations") or {}).get(names.QUEUE_ANNOTATION, "")))
        tried.job_set = str((meta.get("labels") or {}).get(names.JOB_SET_LABEL, ""))
        conditions = {item.get("type"): item for item in status.get("conditions") or () if item.get("status") == "True"}
        tried.complete = "Complete" in conditions
        end = conditions.get("Failed") or conditions.get("FailureTarget")
        tried.failed = pod_state.reason_of(end) if end else None
        self._owners["Job", tried.job] = (tried.node, tried.number)
        return [tried]

    def _pod(self, pod: Mapping[str, Any], deleted: bool) -> list[NodeAttempt]:
        meta = pod.get("metadata") or {}
        tried = self._attempt(meta)
        if tried is None:
            return []
        view = pod_state.read_pod(pod)
        view.gone = deleted
        if stages := self._stages.get(tried.node):
            view.stages = {stage: container for stage, container in view.stages.items() if stage in stages}
        before = tried.pods.get(view.uid)
        if before is None or view.gone or view.ended:  # the namespace admitted a pod, or a pod freed its quota
            self._refused_at = {key: at for key, at in self._refused_at.items() if key == CLAIM}
        for claim in (*view.claims, *view.own_claims):
            self._claims.setdefault(claim, set()).add((tried.node, tried.number))
        if deleted and before is not None and before.ended and not view.ended:
            view.phase, view.stages = before.phase, before.stages
        view.follow(before)
        tried.pods[view.uid] = view
        self._owners["Pod", view.name] = (tried.node, tried.number)
        if view.host:
            self._hosts.setdefault(view.host, set()).add(tried.node)
            if before is None or not before.host:
                self._refused_at.clear()  # the scheduler placed a pod: its claims have volumes
            self._bind(view)
        self._note_pull(tried, view)
        return [tried]

    def _bind(self, pod: Pod) -> None:
        """Remember the UID of a pod's Node: another Node may get the same name later."""
        host = self._nodes.get(pod.host)
        if host is not None and not host.gone and not pod.host_uid:
            pod.host_uid = host.uid if host.may_have(pod) else f"before {host.uid}"

    def _note_pull(self, tried: NodeAttempt, pod: Pod) -> None:
        """Note a failed image pull by the pod's status: the kubelet may drop the event of a pod that has had many."""
        failed = (each for each in pod.stages.values() if each.reason in pod_diagnosis.IMAGE_REASONS)
        words = next(((each.reason, each.message) for each in failed), ())
        before, tried.image_words = tried.image_words, words
        if not words or before is None or words == before:
            return
        events = self._events.get(("Pod", pod.name), {})
        progress = pod_state.newest(events, pod_state.PROGRESS_REASONS)
        if progress is not None and (not before or self._now - progress.arrived_at >= PULL_NEWS_SECONDS):
            message = events["Failed"].message if "Failed" in events else ""
            self._arrived += 1
            events["Failed"] = PodEvent(message, progress.second, self._arrived, self._now)

    def _node(self, node: Mapping[str, Any], deleted: bool) -> list[NodeAttempt]:
        host = pod_state.read_node(node)
        host.gone = deleted
        before = self._nodes.get(host.name)
        if deleted and before is not None and before.uid != host.uid:
            return []  # a newer Node has this name already
        self._nodes[host.name] = host
        if host == before:  # only a heartbeat: nothing else changed
            return []
        concerned = {host.name, *self._hosts.get(host.name, ())}
        attempts = [attempt for name in sorted(concerned) for attempt in self._attempts.get(name, {}).values()]
        for pod in (pod for attempt in attempts for pod in attempt.pods.values() if pod.host == host.name):
            self._bind(pod)
        return attempts

    def _event(self, event: Mapping[str, Any], deleted: bool) -> list[NodeAttempt]:
        about = event.get("involvedObject") or event.get("regarding") or {}
        reason, kind, name = str(event.get("reason", "")), str(about.get("kind", "")), str(about.get("name", ""))
        reasons = {"Job": EVENT_REASONS, "Pod": EVENT_REASONS, "PersistentVolumeClaim": EVENTS_OF_CLAIMS}
        if deleted or reason not in reasons.get(kind, ()):
            return []  # events are deleted for their age, which means nothing
        if len(self._events) >= MAX_EVENT_OBJECTS and (kind, name) not in self._events:
            self._events.pop(next(iter(self._events)))
        message = one_line(str(event.get("message") or event.get("note") or ""), pod_state.MESSAGE_CHARACTERS)
        self._arrived += 1
        message = "" if reason in pod_state.PROGRESS_REASONS else message
        latest = PodEvent(message, pod_state.second_of(event), self._arrived, self._now)
        events = self._events.setdefault((kind, name), {})
        if reason in events and message.startswith(MOUNT_SUMMARY):
            latest = replace(latest, message=events[reason].message)
        if reason not in events or latest.later_than(events[reason]):
            events[reason] = latest
        owners = {self._owners[kind, name]} if (kind, name) in self._owners else set()
        if kind == "PersistentVolumeClaim":
            owners = self._claims.get(name, set())
        return [self._attempts[node][number] for node, number in sorted(owners)]

    def _host(self, tried: NodeAttempt) -> ClusterNode | None:
        """The Node of an attempt's pod; marked as gone if another Node has its name."""
        pod = tried.pod
        host = self._nodes.get(pod.host or tried.node)
        if host is not None and pod.host and pod.host_uid not in ("", host.uid):
            return replace(host, gone=True, replaced=True)
        return host

    def _assess(self, tried: NodeAttempt, now: float) -> None:
        pod = tried.pod
        job_events = self._events.get(("Job", tried.job or ""), {})
        pod_events, named = self._events.get(("Pod", pod.name), {}), self._nodes.get(tried.node)
        claims = {
            name: self._events.get(("PersistentVolumeClaim", name), {}) for name in (*pod.claims, *pod.own_claims)
        }
        cause = diagnose(PodCase(tried, pod, self._host(tried), named, job_events, pod_events, self.limits, claims))
        before, family = (each.family if each else "" for each in (tried.trouble, cause))
        if not family or family != before:
            if family == "pull":  # a further pull has its own limit, and pauses that of the missing image
                tried.image_seconds = now - tried.since if before == "image" else 0.0
            tried.since = now - (tried.image_seconds if (before, family) == ("pull", "image") else 0.0)
            if cause is not None and cause.shared:
                tried.since = self._refused_at.setdefault(CLAIM if cause.shared == CLAIM else cause.name, now)
        tried.trouble = cause
        if pod.ran:
            tried.before_start = None
        elif cause is not None and cause.limit is not None:
            tried.before_start = cause

    def _status(self, tried: NodeAttempt, now: float) -> PodStatus:
        pod, cause, trouble = tried.pod, tried.trouble, None
        if cause is not None:
            late = cause.limit is None or (cause.limit > 0 and now - tried.since >= cause.limit)
            if late or not cause.quiet:
                remedy = row_of(cause.name).remedy.replace("{node}", tried.node)
                message = one_line(cause.message, pod_state.MESSAGE_CHARACTERS)
                trouble = replace(cause, message=message, remedy=remedy, final=late)
        ended = tried.complete or tried.job_gone or (tried.failed is not None and trouble is not None)
        if pod.name:  # the pod of a failed Job may still be ending
            ended = pod.ended or pod.gone
        host = self._host(tried)
        host_lost = host is not None and (host.gone or not host.ready)  # then no kubelet can end the pod
        pod_stays = cause is not None and (cause.limit is not None or cause.stuck)
        phase = pod_state.ENDED if ended else _phase(pod)
        stage = trouble.stage if trouble is not None else None
        if stage is None and pod.host and phase != pod_state.ENDED:
            stage = pod.stage
        return PodStatus(
            node=tried.node, attempt=tried.number, phase=phase, stage=stage, stages=dict(pod.stages),
            trouble=trouble, pod=pod.name or None, job=tried.job, job_set=tried.job_set, started=pod.ran,
            done=ended or (trouble is not None and trouble.final and (pod_stays or host_lost)),
            held=tried.suspended and not tried.job_gone,
        )  # fmt: skip


def _phase(pod: Pod) -> str:
    if not pod.host:
        return pod_state.PENDING
    states = {container.state for container in pod.stages.values()}
    if "running" in states:
        return pod_state.RUNNING
    return pod_state.PULLING if "waiting" in states or not states else pod_state.RUNNING
