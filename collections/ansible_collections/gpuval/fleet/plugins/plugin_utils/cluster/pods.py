"""What Jobs, Pods, Nodes and Events of a cluster say about each node of a run. Pure: objects and time are handed in.

`Fold` takes the objects as the watch brings them and answers with one `Placed` for each node: how far its pod is, and
what keeps it from running. Times are seconds of the caller's monotonic clock; those inside the objects are the
cluster's and are only shown. Texts of the cluster are cleaned here, once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import names
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import pod_classes as known
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import one_line
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.launch_errors import LaunchClass
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.decisions import FINAL_STATES

WAITING, PENDING, PULLING, RUNNING, ENDED = "waiting", "pending", "pulling", "running", "ended"
MESSAGE_CHARACTERS = 600
MAX_TERMINATION_CHARACTERS = 4096
MAX_EVENT_OBJECTS = 20_000
#: How long a Job that failed is borne whose pod was never seen.
UNSEEN_SECONDS = 5.0
#: The part of the patience that is given to what the cluster mends soon or never.
SOON = 0.4

#: Events of type Normal that say that a pod's volumes and sandbox are there, and that its image comes.
PROGRESS_REASONS = frozenset({"Pulling", "Pulled", "Created", "Started"})
#: Events that say that the last pull has failed.
PULL_FAILED_REASONS = frozenset({"Failed", "BackOff"})
#: What comes before the image, and its class.
PREPARE_REASONS = {
    "FailedMount": "storage",
    "FailedAttachVolume": "storage",
    "FailedCreatePodSandBox": "container_refused",
}
#: Events that explain a pod that is not there or does not start, or that it does after all.
EVENT_REASONS = frozenset(
    {"FailedCreate", "FailedScheduling", *PREPARE_REASONS, *PULL_FAILED_REASONS, *PROGRESS_REASONS}
)
#: The kubelet tells how the last pull ended just before it begins another: status and event come in any order. Seconds.
PULL_NEWS_SECONDS = 5.0
#: Waiting reasons of a container, by what was not there.
IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"}
)
IMAGE_FINAL = frozenset({"InvalidImageName", "ErrImageNeverPull"})
START_REASONS = frozenset(
    {"CreateContainerError", "CreateContainerConfigError", "RunContainerError", "PreCreateHookError", "StartError"}
)
#: Reasons of a terminated container that never ran.
NOT_RUN_REASONS = frozenset({"StartError", "ContainerCannotRun"})
#: Reasons of a terminated container of which nobody knows how it ended.
LOST_REASONS = frozenset({"ContainerStatusUnknown", "Unknown"})
OOM = "OOMKilled"

#: Exit codes of the runner that was given something wrong, or found another one at work (cli.py of the runner).
RUNNER_REFUSED_CODES = (2, 3)
#: Exit code of the last stage's container when any stage did not succeed.
NOT_ALL_SUCCEEDED = 1
SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
    11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM",
}  # fmt: skip

_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted",
    "EvictionByEvictionAPI": "drained",
    "DeletionByTaintManager": "node_lost",
    "DeletionByPodGC": "node_lost",
}
_POD_REASONS = {
    "Evicted": "evicted",
    "Preempting": "preempted",
    "Preempted": "preempted",
    "NodeLost": "node_lost",
    "Shutdown": "node_lost",
    "NodeShutdown": "node_lost",
    "Terminated": "node_lost",  # the kubelet at a shutdown of its node
    "UnexpectedAdmissionError": "gpu_allocation",
    "DeadlineExceeded": "deadline_exceeded",
}
#: The kubelet's other ways of not taking a pod that the scheduler gave it.
_NOT_TAKEN = re.compile(r"OutOf\S+|NodeAffinity|NodeName|TopologyAffinityError|\w*Admission\w*|PodOS\w*|\w*Forbidden")
_TAINTED_AWAY = re.compile(r"node\.kubernetes\.io/(?:not-ready|unreachable|out-of-service)")
_BACK_OFF = re.compile(r"^Back-off pulling image \"[^\"]*\"(?:: (?:ErrImagePull: )?)?")


@dataclass(frozen=True)
class Limits:
    """How long, in seconds, a state is borne that may mend itself; 0 is for ever."""

    image_seconds: float = 300.0
    unschedulable_seconds: float = 300.0
    refused_seconds: float = 120.0
    create_seconds: float = 120.0
    mount_seconds: float = 300.0
    #: From the scheduling of a pod until a container runs, when nobody says what is amiss: a large image.
    start_seconds: float = 1800.0
    node_seconds: float = 300.0
    #: From a Job to its pod.
    pod_seconds: float = 120.0
    suspended_seconds: float = 0.0

    @classmethod
    def of(cls, patience_seconds: float, start_seconds: float) -> Limits:
        """All of them from the two that people choose; what the cluster mends soon or never has less time."""
        return cls(
            image_seconds=patience_seconds,
            unschedulable_seconds=patience_seconds,
            refused_seconds=SOON * patience_seconds,
            create_seconds=SOON * patience_seconds,
            mount_seconds=patience_seconds,
            start_seconds=start_seconds,
            node_seconds=patience_seconds,
            pod_seconds=SOON * patience_seconds,
        )


@dataclass(frozen=True)
class Trouble:
    """What keeps a node's pod from running, or ended it.

    final: it does not mend by itself, or not in the time it was given. evidence: it speaks about the node, so that the
    stage counts as crashed. again: another attempt may well succeed.
    """

    name: str
    message: str
    remedy: str
    stage: str | None = None
    since: float = 0.0
    final: bool = False
    evidence: bool = False
    again: bool = False


@dataclass(frozen=True)
class Container:
    """A stage's container: `state` is waiting, running or ended. Times are the cluster's, RFC 3339."""

    state: str
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    signal: str | None = None
    started_at: str | None = None
    finished_at: str | None = None

    @property
    def ran(self) -> bool:
        """Its process was started, whatever became of it."""
        return self.state == "running" or (
            self.state == "ended" and self.reason not in NOT_RUN_REASONS and self.started_at is not None
        )


@dataclass(frozen=True)
class Placed:
    """One attempt on one node. `stage`: whose container is brought or runs, or ended the pod. `started`: a container
    ran. `over`: nothing more comes of this attempt; its Job may be deleted. `held`: a queue may yet let its Job begin.
    """

    node: str
    attempt: int
    phase: str
    stage: str | None = None
    stages: Mapping[str, Container] = field(default_factory=dict)
    trouble: Trouble | None = None
    pod: str | None = None
    job: str | None = None
    started: bool = False
    over: bool = False
    held: bool = False

    @property
    def transferring(self) -> bool:
        """It takes one of the places of `gpuval_max_transfers`."""
        return self.phase in (PENDING, PULLING) and not self.over

    @property
    def at_work(self) -> bool:
        """It takes one of the places of `gpuval_max_nodes_at_once`."""
        return self.phase in (PENDING, PULLING, RUNNING) and not self.over


class _Said(NamedTuple):
    """The last event of a reason. `second`: when, by the clock of its source, "" is unknown; `order` of arrival;
    `heard`: when it arrived."""

    message: str
    second: str
    order: int
    heard: float

    def later_than(self, other: _Said) -> bool:
        """By their own times, which are whole seconds; else by their arrival."""
        if self.second and other.second and self.second != other.second:
            return self.second > other.second
        return self.order > other.order


@dataclass
class _Pod:
    """What is kept of a pod."""

    name: str
    uid: str
    created: str
    phase: str
    reason: str
    message: str
    host: str
    #: When it got its host.
    scheduled_at: str | None
    #: Its volumes are mounted and its sandbox is there.
    prepared: bool
    #: When somebody asked for its deletion.
    deleted_at: str | None
    unscheduled: tuple[str, str] | None
    disruption: tuple[str, str] | None
    stages: dict[str, Container]
    gone: bool = False
    #: Which of the Nodes that had the name of its host is its own; "" is not known yet.
    host_uid: str = ""

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass
class _Node:
    name: str
    uid: str
    created: str | None
    ready: bool
    message: str
    unschedulable: bool
    #: Keys of those that keep pods away.
    taints: frozenset[str]
    hostname: str | None
    gone: bool = False
    #: Another has its name by now.
    replaced: bool = False

    def as_seen_by_scheduler(self) -> dict[str, Any]:
        return {
            "unschedulable": self.unschedulable, "taints": self.taints, "hostname": self.hostname, "ready": self.ready
        }  # fmt: skip

    def has(self, pod: _Pod) -> bool:
        """Whether a pod on a node of this name may be on this one: it was not there before the node was."""
        return self.created is None or pod.scheduled_at is None or pod.scheduled_at[:19] >= self.created[:19]


@dataclass(frozen=True)
class _Found:
    """A trouble before its time is told. `family`: its time goes on when only the words change; `limit`: seconds it is
    borne, None is not at all. `stuck`: its pod waits for ever. `quiet`: no trouble before the limit."""

    known: LaunchClass
    message: str
    family: str
    limit: float | None = None
    stage: str | None = None
    evidence: bool = False
    again: bool = False
    quiet: bool = False
    stuck: bool = False


@dataclass
class _Attempt:
    node: str
    number: int
    job: str | None = None
    job_seen: bool = False
    job_gone: bool = False
    complete: bool = False
    failed: tuple[str, str] | None = None
    suspended: bool = False
    pods: dict[str, _Pod] = field(default_factory=dict)
    found: _Found | None = None
    since: float = 0.0
    #: The last trouble before the pod ran: the cause, when time is up before it starts.
    cause: _Found | None = None
    #: What the kubelet said when it last tried to pull; in between it only says that it waits.
    pull_message: str = ""
    #: Reason and message of the image that does not come; empty: of none, None: no pod was seen.
    image_words: tuple[str, ...] | None = None
    #: How long it was without its image before the pull that is under way.
    image_seconds: float = 0.0

    @property
    def pod(self) -> _Pod | None:
        """The newest one: a Job of one pod may have made another after the first was gone."""
        return max(self.pods.values(), key=lambda pod: (pod.created, pod.uid), default=None)


class Fold:
    """All nodes of a run, as the objects of the cluster show them."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._attempts: dict[str, dict[int, _Attempt]] = {}
        self._stages: dict[str, frozenset[str]] = {}
        self._nodes: dict[str, _Node] = {}
        self._owners: dict[tuple[str, str], tuple[str, int]] = {}
        self._events: dict[tuple[str, str], dict[str, _Said]] = {}
        self._heard = 0
        self._now = 0.0
        #: Which of the run's nodes have pods on a node of the cluster: names differ where the inventory's do.
        self._hosts: dict[str, set[str]] = {}

    def expect(self, node: str, stages: Iterable[str] = ()) -> None:
        """Answer for this node although nothing was seen of it.

        `stages` of its plan: other containers of its pod, which a mesh may have put there, are none. Without, each is.
        """
        self._attempts.setdefault(node, {})
        self._stages[node] = frozenset(stages)

    def take(self, kind: str, change: str, obj: Mapping[str, Any] | None, now: float) -> set[str]:
        """Take an object in; `change` is ADDED, MODIFIED or DELETED. Returns the nodes that it may concern."""
        taker = {"Job": self._job, "Pod": self._pod, "Node": self._node, "Event": self._event}.get(kind)
        if taker is None or not isinstance(obj, Mapping) or change not in ("ADDED", "MODIFIED", "DELETED"):
            return set()
        self._now = now
        touched = taker(obj, change == "DELETED")
        for attempt in touched:
            self._assess(attempt, now)
        return {attempt.node for attempt in touched}

    def placed(self, node: str, now: float, attempt: int | None = None) -> Placed:
        """How far a node is, in its newest attempt or the one asked for."""
        known_attempts = self._attempts.get(node, {})
        number = attempt if attempt is not None else max(known_attempts, default=1)
        found = known_attempts.get(number)
        return Placed(node, number, WAITING) if found is None else self._placed(found, now)

    def all(self, now: float) -> dict[str, Placed]:
        """Every node that is expected or was seen."""
        return {node: self.placed(node, now) for node in self._attempts}

    def due(self, now: float) -> float | None:
        """Seconds until the time of some trouble runs out; None when nothing is borne."""
        left = [
            one.since + one.found.limit - now
            for attempts in self._attempts.values()
            for one in attempts.values()
            if one.found is not None and one.found.limit and one.since + one.found.limit > now
        ]
        return min(left, default=None)

    # --- taking in ---------------------------------------------------------------------------------------------------

    def _attempt(self, meta: Mapping[str, Any]) -> _Attempt | None:
        node = (meta.get("annotations") or {}).get(names.NODE_ANNOTATION)
        number = (meta.get("labels") or {}).get(names.ATTEMPT_LABEL, "1")
        if not node or not str(number).isdecimal():
            return None
        attempts = self._attempts.setdefault(str(node), {})
        return attempts.setdefault(int(number), _Attempt(str(node), int(number)))

    def _job(self, job: Mapping[str, Any], gone: bool) -> list[_Attempt]:
        meta = job.get("metadata") or {}
        one = self._attempt(meta)
        if one is None:
            return []
        status = job.get("status") or {}
        one.job, one.job_seen, one.job_gone = str(meta.get("name")), True, gone
        one.suspended = bool((job.get("spec") or {}).get("suspend"))
        held = {item.get("type"): item for item in status.get("conditions") or () if item.get("status") == "True"}
        one.complete = "Complete" in held
        end = held.get("Failed") or held.get("FailureTarget")
        one.failed = (str(end.get("reason", "")), one_line(str(end.get("message", "")))) if end else None
        self._owners["Job", one.job] = (one.node, one.number)
        return [one]

    def _pod(self, pod: Mapping[str, Any], gone: bool) -> list[_Attempt]:
        meta = pod.get("metadata") or {}
        one = self._attempt(meta)
        if one is None:
            return []
        seen = _read_pod(pod)
        seen.gone = gone
        if own := self._stages.get(one.node):
            seen.stages = {stage: container for stage, container in seen.stages.items() if stage in own}
        before = one.pods.get(seen.uid)
        if gone and before is not None and before.ended and not seen.ended:
            seen.phase, seen.stages = before.phase, before.stages
        if before is not None and before.host == seen.host:
            seen.host_uid = before.host_uid
        one.pods[seen.uid] = seen
        self._owners["Pod", seen.name] = (one.node, one.number)
        if seen.host:
            self._hosts.setdefault(seen.host, set()).add(one.node)
            self._bind(seen)
        self._note_pull(one, seen)
        return [one]

    def _bind(self, pod: _Pod) -> None:
        """Remember which Node a pod is on: another may get its name."""
        host = self._nodes.get(pod.host)
        if host is not None and not host.gone and not pod.host_uid:
            pod.host_uid = host.uid if host.has(pod) else f"before {host.uid}"

    def _note_pull(self, one: _Attempt, pod: _Pod) -> None:
        """A pull may fail without an event: the kubelet drops events of a pod that has had many."""
        words = next(((each.reason, each.message) for each in pod.stages.values() if each.reason in IMAGE_REASONS), ())
        before, one.image_words = one.image_words, words
        if not words or before is None or words == before:
            return
        events = self._events.get(("Pod", pod.name), {})
        went_on = _newest(events, PROGRESS_REASONS)
        if went_on is not None and (not before or self._now - went_on.heard >= PULL_NEWS_SECONDS):
            message = events["Failed"].message if "Failed" in events else ""
            self._heard += 1
            events["Failed"] = _Said(message, went_on.second, self._heard, self._now)

    def _node(self, node: Mapping[str, Any], gone: bool) -> list[_Attempt]:
        seen = _read_node(node)
        seen.gone = gone
        before = self._nodes.get(seen.name)
        if gone and before is not None and before.uid != seen.uid:
            return []  # another has its name already
        self._nodes[seen.name] = seen
        if seen == before:  # a heartbeat
            return []
        concerned = {seen.name, *self._hosts.get(seen.name, ())}
        attempts = [one for node in sorted(concerned) for one in self._attempts.get(node, {}).values()]
        for pod in (pod for one in attempts for pod in one.pods.values() if pod.host == seen.name):
            self._bind(pod)
        return attempts

    def _event(self, event: Mapping[str, Any], gone: bool) -> list[_Attempt]:
        about = event.get("involvedObject") or event.get("regarding") or {}
        reason, kind, name = str(event.get("reason", "")), str(about.get("kind", "")), str(about.get("name", ""))
        if gone or reason not in EVENT_REASONS or kind not in ("Job", "Pod"):
            return []  # an event that is deleted has only grown old
        if len(self._events) >= MAX_EVENT_OBJECTS and (kind, name) not in self._events:
            self._events.pop(next(iter(self._events)))
        message = one_line(str(event.get("message") or event.get("note") or ""), MESSAGE_CHARACTERS)
        self._heard += 1
        said = _Said("" if reason in PROGRESS_REASONS else message, _second(event), self._heard, self._now)
        known_of = self._events.setdefault((kind, name), {})
        if reason not in known_of or said.later_than(known_of[reason]):
            known_of[reason] = said
        owner = self._owners.get((kind, name))
        return [self._attempts[owner[0]][owner[1]]] if owner else []

    # --- judging -----------------------------------------------------------------------------------------------------

    def _assess(self, one: _Attempt, now: float) -> None:
        found = self._find(one)
        before, family = (each.family if each else "" for each in (one.found, found))
        if not family or family != before:
            if family == "pull":  # the time of the image stands still meanwhile
                one.image_seconds = now - one.since if before == "image" else 0.0
            one.since = now - (one.image_seconds if (before, family) == ("pull", "image") else 0.0)
        one.found = found
        pod = one.pod
        if found is not None and found.limit is not None and (pod is None or not _ran(pod)):
            one.cause = found
        elif pod is not None and _ran(pod):
            one.cause = None

    def _placed(self, one: _Attempt, now: float) -> Placed:
        pod, found = one.pod, one.found
        trouble = None
        if found is not None:
            late = found.limit is None or (found.limit > 0 and now - one.since >= found.limit)
            if late or not found.quiet:
                trouble = Trouble(
                    name=found.known.name, message=one_line(found.message, MESSAGE_CHARACTERS),
                    remedy=found.known.remedy.replace("{node}", one.node), stage=found.stage, since=one.since,
                    final=late, evidence=found.evidence, again=found.again,
                )  # fmt: skip
        ended = one.complete or one.job_gone or (one.failed is not None and trouble is not None)
        if pod is not None:  # a Job that failed leaves its pod the time to end
            ended = pod.ended or pod.gone
        host = self._host(one, pod)
        lost = host is not None and (host.gone or not host.ready)  # nobody there can end a pod
        stays = found is not None and (found.limit is not None or found.stuck)
        over = ended or (trouble is not None and trouble.final and (stays or lost))
        phase = ENDED if ended else _phase(pod)
        return Placed(
            node=one.node, attempt=one.number, phase=phase, stage=_current(pod, trouble, phase),
            stages=dict(pod.stages) if pod else {}, trouble=trouble, pod=pod.name if pod else None, job=one.job,
            started=pod is not None and _ran(pod), over=over, held=one.suspended and not one.job_gone,
        )  # fmt: skip

    def _find(self, one: _Attempt) -> _Found | None:
        """What is wrong with an attempt, the cause before its consequences."""
        pod = one.pod
        if one.complete or (pod is not None and pod.phase == "Succeeded"):
            return None
        if pod is None:
            return self._deadline(one, pod) or self._deleted(one, pod) or self._failed(one) or self._no_pod(one)
        if pod.ended:
            cut_off = self._disrupted(one, pod) or self._deadline(one, pod)
            return cut_off or (self._deleted(one, pod) if _ended_by_deletion(pod) else _ended_badly(pod))
        return (
            self._disrupted(one, pod)
            or self._node_trouble(one, pod)
            or self._deadline(one, pod)
            or self._deleted(one, pod)
            or _ended_badly(pod)
            or self._not_running(one, pod)
        )

    @staticmethod
    def _failed(one: _Attempt) -> _Found | None:
        if one.failed is None:
            return None
        reason, message = one.failed
        told = f"its Job failed ({reason}), and its pod is gone: {message}"
        # Job and pod come by watches of their own: the news of the pod may still be on its way.
        return _Found(known.named("pod_failed"), told, "failed", limit=UNSEEN_SECONDS, again=True, quiet=True)

    def _host(self, one: _Attempt, pod: _Pod | None) -> _Node | None:
        host = self._nodes.get((pod.host if pod else "") or one.node)
        if host is not None and pod is not None and pod.host and pod.host_uid not in ("", host.uid):
            return replace(host, gone=True, replaced=True)
        return host

    def _disrupted(self, one: _Attempt, pod: _Pod | None) -> _Found | None:
        if pod is None:
            return None
        if pod.disruption is not None:
            reason, message = pod.disruption
            name = _DISRUPTIONS.get(reason)
            if reason == "DeletionByTaintManager":
                host = self._host(one, pod)
                lost = host is None or host.gone or not host.ready or bool(_TAINTED_AWAY.search(message))
                name = "node_lost" if lost else "drained"
            if name is None:  # TerminationByKubelet, and what may come: the pod's own reason says more
                name = _POD_REASONS.get(pod.reason, "evicted")
            return _Found(
                known.named(name), f"{reason}: {_first(pod.message, message)}", name, stage=_at(pod), again=True
            )
        name = _POD_REASONS.get(pod.reason)
        if name is None and _NOT_TAKEN.fullmatch(pod.reason):
            name = "gpu_allocation" if known.named("gpu_allocation").pattern.search(pod.reason) else "node_refused"
        if name is None or name == "deadline_exceeded":
            return None
        return _Found(known.named(name), f"{pod.reason}: {pod.message}", name, stage=_at(pod), again=True)

    @staticmethod
    def _deadline(one: _Attempt, pod: _Pod | None) -> _Found | None:
        by_job = one.failed is not None and one.failed[0] == "DeadlineExceeded"
        if not by_job and not (pod is not None and pod.reason == "DeadlineExceeded"):
            return None
        if one.cause is not None and (pod is None or not _ran(pod)):
            cause = one.cause
            return _Found(cause.known, f"{cause.message} (until the deadline)", "deadline", stage=cause.stage)
        message = one.failed[1] if by_job and one.failed else pod.message if pod else ""
        stage = _at(pod) if pod else None
        where = f" in {stage}" if stage else ""
        return _Found(
            known.named("deadline_exceeded"), f"ended by its deadline{where}: {message}", "deadline", stage=stage
        )

    def _deleted(self, one: _Attempt, pod: _Pod | None) -> _Found | None:
        host = self._host(one, pod)
        if host is not None and host.gone and pod is not None and pod.host:
            return None  # who took the node away took its pod away
        stage = _at(pod) if pod else None
        if one.job_gone:
            return _Found(known.JOB_DELETED, f"somebody deleted its Job {one.job}", "deleted", stage=stage, again=True)
        if pod is not None and (pod.gone or pod.deleted_at) and one.suspended:
            told = "its queue took its place back: the Job is suspended again"
            return _Found(known.SUSPENDED, told, "deleted", stage=stage, again=True)
        if pod is not None and (pod.gone or pod.deleted_at):
            # At its deadline the Job deletes its pod before it says so: until it has failed, it may be the one.
            how = ("was deleted" if pod.gone else "is being deleted") + (" by somebody" if one.failed else "")
            return _Found(known.named("pod_deleted"), f"its pod {pod.name} {how}", "deleted", stage=stage, again=True)
        return None

    def _node_trouble(self, one: _Attempt, pod: _Pod | None) -> _Found | None:
        """Only for a pod that has its place: before, the scheduler says what is wrong with the node."""
        if pod is None or not pod.host:
            return None
        host, stage = self._host(one, pod), _at(pod)
        if host is None:
            return None
        if host.gone:
            how = ", and another has its name" if host.replaced else ""
            return _Found(
                known.named("node_lost"), f"the node was taken out of the cluster{how}", "node_gone", stage=stage,
                again=True,
            )  # fmt: skip
        if not host.ready:
            return _Found(
                known.named("node_lost"), f"the node is not ready: {host.message}", "node_lost",
                self.limits.node_seconds, stage, again=True,
            )  # fmt: skip
        return None

    def _no_pod(self, one: _Attempt) -> _Found:
        event = self._events.get(("Job", one.job or ""), {}).get("FailedCreate")
        said = event.message if event else ""
        if one.suspended:
            return _Found(
                known.SUSPENDED, "its Job is suspended: a queue holds it back", "suspended",
                self.limits.suspended_seconds,
            )  # fmt: skip
        if said:
            return _Found(known.refused(said), said, "refused", self.limits.refused_seconds)
        return _Found(known.NO_POD, "its Job has made no pod", "no_pod", self.limits.pod_seconds, quiet=True)

    def _not_running(self, one: _Attempt, pod: _Pod) -> _Found | None:
        if any(container.state == "running" for container in pod.stages.values()):
            return None
        if not pod.host:
            if pod.unscheduled is None:
                return _Found(
                    known.named("unschedulable"), "no scheduler has looked at its pod", "unschedulable",
                    self.limits.unschedulable_seconds, quiet=True,
                )  # fmt: skip
            reason, message = pod.unscheduled
            host = self._nodes.get(one.node)
            shown = None if host is None or host.gone else host.as_seen_by_scheduler()
            told_class, told = known.unschedulable(one.node, message, shown)
            return _Found(told_class, f"{reason}: {told}", "unschedulable", self.limits.unschedulable_seconds)
        for stage, container in pod.stages.items():
            if container.state == "waiting":
                return self._not_started(one, pod, stage, container)
        return None

    def _not_started(self, one: _Attempt, pod: _Pod, stage: str, container: Container) -> _Found:
        """Why the next container does not run yet."""
        limits, reason = self.limits, container.reason
        events = self._events.get(("Pod", pod.name), {})
        if reason in IMAGE_FINAL:
            told = f"{reason}: {container.message}"
            return _Found(known.image(reason, container.message), told, "image", stage=stage, stuck=True)
        if reason in IMAGE_REASONS:
            said = _BACK_OFF.sub("", container.message)
            event = events.get("Failed")
            one.pull_message = said or one.pull_message or (event.message if event else "")
            told = one.pull_message or container.message
            told_class = known.image(reason, told)
            if _went_on(events, PULL_FAILED_REASONS):  # the words are those of the pull before
                again = f"{reason}: {told} (it is pulled again)"
                return _Found(told_class, again, "pull", limits.start_seconds, stage)
            return _Found(told_class, f"{reason}: {told}", "image", limits.image_seconds, stage)
        if reason in START_REASONS:
            told_class = known.start(f"{reason}: {container.message}")
            evidence = told_class is known.ACCELERATOR_RUNTIME
            return _Found(
                told_class, f"{reason}: {container.message}", "start", limits.create_seconds, stage, evidence=evidence
            )
        for event_reason, name in PREPARE_REASONS.items():
            if event_reason not in events or pod.prepared or _ran(pod) or _went_on(events, {event_reason}):
                continue  # older kubelets are late with the condition, and events may be lost: either will do
            told = f"{event_reason}: {events[event_reason].message}"
            return _Found(known.named(name), told, "prepare", limits.mount_seconds, stage)
        told = "no container runs, and nothing says why" + (f" ({reason})" if reason else "")
        return _Found(known.NOT_STARTING, told, f"starting {stage}", limits.start_seconds, stage, quiet=True)


def _read_pod(pod: Mapping[str, Any]) -> _Pod:
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
    unscheduled = None
    if scheduled.get("status") == "False":
        unscheduled = (str(scheduled.get("reason", "")), one_line(str(scheduled.get("message", "")), 2000))
    disruption = None
    if disrupted.get("status") == "True":
        disruption = (str(disrupted.get("reason", "")), one_line(str(disrupted.get("message", ""))))
    return _Pod(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid") or meta.get("name", "")),
        created=str(meta.get("creationTimestamp") or ""),
        phase=str(status.get("phase", "Pending")),
        reason=str(status.get("reason") or ""),
        message=one_line(str(status.get("message") or ""), MESSAGE_CHARACTERS),
        host=str(spec.get("nodeName") or ""),
        scheduled_at=_moment(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        prepared=(conditions.get("PodReadyToStartContainers") or {}).get("status") == "True",
        deleted_at=_asked_at(meta),
        unscheduled=unscheduled,
        disruption=disruption,
        stages={names.stage_of(name): _container(reported.get(name) or {}) for name in named},
    )


def _container(status: Mapping[str, Any]) -> Container:
    state = status.get("state") or {}
    if "terminated" in state:
        end = state["terminated"] or {}
        code, number = end.get("exitCode"), end.get("signal")
        if not number and isinstance(code, int) and code - 128 in SIGNALS and end.get("reason") not in NOT_RUN_REASONS:
            number = code - 128
        return Container(
            state="ended",
            reason=str(end.get("reason") or ""),
            message=str(end.get("message") or "")[
                : MAX_TERMINATION_CHARACTERS + 1
            ],  # perhaps a record's short form: cleaned where it is shown
            exit_code=code if isinstance(code, int) else None,
            signal=SIGNALS.get(number, f"signal {number}") if isinstance(number, int) and number else None,
            started_at=_moment(end.get("startedAt")),
            finished_at=_moment(end.get("finishedAt")),
        )
    if "running" in state:
        return Container("running", started_at=_moment((state["running"] or {}).get("startedAt")))
    waits = state.get("waiting") or {}
    return Container(
        "waiting", str(waits.get("reason") or ""), one_line(str(waits.get("message") or ""), MESSAGE_CHARACTERS)
    )


_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?Z")


def _moment(value: Any) -> str | None:
    """A time of the cluster; None for the one that stands for none (year 1, or 1970 in old kubelets)."""
    if not isinstance(value, str) or not _MOMENT.fullmatch(value) or value[:4] in ("0001", "1970"):
        return None
    return value


def _read_node(node: Mapping[str, Any]) -> _Node:
    meta, spec, status = node.get("metadata") or {}, node.get("spec") or {}, node.get("status") or {}
    ready = next((item for item in status.get("conditions") or () if item.get("type") == "Ready"), {})
    return _Node(
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


def _second(event: Mapping[str, Any]) -> str:
    """When an event last happened, without its fraction; "" when it does not say."""
    series = event.get("series") or {}
    said = (event.get("lastTimestamp"), event.get("eventTime"), series.get("lastObservedTime"))
    return max(((_moment(each) or "")[:19] for each in said), default="")


def _newest(events: Mapping[str, _Said], reasons: Iterable[str]) -> _Said | None:
    newest: _Said | None = None
    for said in (events[reason] for reason in reasons if reason in events):
        if newest is None or said.later_than(newest):
            newest = said
    return newest


def _went_on(events: Mapping[str, _Said], reasons: Iterable[str]) -> bool:
    """Whether the kubelet was further with a pod after it had last told of one of these."""
    progress, trouble = _newest(events, PROGRESS_REASONS), _newest(events, reasons)
    return progress is not None and (trouble is None or progress.later_than(trouble))


def _ran(pod: _Pod) -> bool:
    return any(container.ran for container in pod.stages.values())


def _phase(pod: _Pod | None) -> str:
    if pod is None or not pod.host:
        return PENDING
    if any(container.state == "running" for container in pod.stages.values()):
        return RUNNING
    waits = any(container.state == "waiting" for container in pod.stages.values())
    return PULLING if waits or not pod.stages else RUNNING


def _at(pod: _Pod) -> str | None:
    """The stage that a pod is at, or was when it ended."""
    for wanted in ("running", "waiting"):
        for stage, container in pod.stages.items():
            if container.state == wanted:
                return stage
            if container.state == "ended" and container.exit_code:
                return stage
    return None


def _current(pod: _Pod | None, trouble: Trouble | None, phase: str) -> str | None:
    if trouble is not None and trouble.stage is not None:
        return trouble.stage
    return _at(pod) if pod is not None and pod.host and phase != ENDED else None


def _asked_at(meta: Mapping[str, Any]) -> str | None:
    """When a deletion was asked for: the object tells when its grace is over."""
    until, grace = _moment(meta.get("deletionTimestamp")), meta.get("deletionGracePeriodSeconds")
    if until is None:
        return None
    asked = datetime.fromisoformat(until.replace("Z", "+00:00")) - timedelta(
        seconds=grace if isinstance(grace, int) else 0
    )
    return asked.strftime("%Y-%m-%dT%H:%M:%SZ")


def _ended_by_deletion(pod: _Pod) -> bool:
    """Whether a container ended after somebody asked for the deletion of its pod, so that this says nothing of it."""
    ends = [one.finished_at for one in pod.stages.values() if one.exit_code and one.finished_at]
    return pod.deleted_at is not None and (not ends or max(ends) >= pod.deleted_at)


def spoken(stage: str, container: Container) -> dict[str, Any] | None:
    """What the stage's runner left as its container's last word, if it is whole: state, message, exit_code, signal.

    Untrusted: the text is the node's.
    """
    if container.state != "ended" or len(container.message) > MAX_TERMINATION_CHARACTERS:
        return None
    try:
        said = json.loads(container.message)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or said.get("stage") != stage or str(said.get("state")) not in FINAL_STATES:
        return None
    code, signal = said.get("exit_code"), said.get("signal")
    return {
        "state": said["state"],
        "message": one_line(str(said.get("message") or ""), 2000),
        "exit_code": code if type(code) is int and abs(code) < 1 << 31 else None,
        "signal": one_line(signal, 16) if isinstance(signal, str) and len(signal) <= 16 else None,
    }


def _ended_badly(pod: _Pod) -> _Found | None:
    """The container that ended its pod, and what that says. None: none ended so, or its runner had its say."""
    stages = list(pod.stages)
    for stage, container in pod.stages.items():
        if container.state != "ended" or not container.exit_code:
            continue
        if container.reason in LOST_REASONS:
            told = one_line(container.message) or "nobody knows how its container ended"
            return _Found(known.CONTAINER_LOST, f"{container.reason}: {told}", "ended", stage=stage, again=True)
        if container.reason in NOT_RUN_REASONS:
            said = f"{container.reason}: {one_line(container.message, MESSAGE_CHARACTERS)}"
            told_class = known.start(said)
            evidence = told_class is known.ACCELERATOR_RUNTIME
            return _Found(told_class, said, "ended", stage=stage, evidence=evidence)
        if container.reason == OOM:
            told = (
                f"{OOM}: the kernel killed the container of {stage} for want of memory "
                "(its limit is in gpuval_pods.resources)"
            )
            return _Found(known.named("oom_killed"), told, "ended", stage=stage, evidence=True)
        if container.exit_code in RUNNER_REFUSED_CODES and container.signal is None:
            said = one_line(container.message, 300)
            told = f"the runner of {stage} refused (exit code {container.exit_code})" + (f": {said}" if said else "")
            return _Found(known.RUNNER_REFUSED, told, "ended", stage=stage)
        if container.exit_code == NOT_ALL_SUCCEEDED and stage == stages[-1] and spoken(stage, container):
            continue  # its runner says that some stage did not succeed: the records say which
        how = f"was killed by {container.signal}" if container.signal else f"ended with exit code {container.exit_code}"
        return _Found(known.CONTAINER_FAILED, f"the container of {stage} {how}", "ended", stage=stage, evidence=True)
    return None


def _first(*texts: str) -> str:
    return next(filter(None, texts), "")


def transitions(before: Mapping[str, Placed], after: Mapping[str, Placed]) -> Iterable[str]:
    """A line for each node whose phase, stage or trouble is another one."""
    for node, now in after.items():
        old = before.get(node)
        if old is not None and _told(old) == _told(now):
            continue
        stage = f" {now.stage}" if now.stage else ""
        line = f"{node} pod: {now.phase}{stage}"
        if now.attempt > 1:
            line += f" (attempt {now.attempt})"
        if now.trouble is not None:
            line += f": {now.trouble.name}: {now.trouble.message}"
        yield line


def _told(placed: Placed) -> tuple[Any, ...]:
    trouble = placed.trouble
    return placed.attempt, placed.phase, placed.stage, trouble.name if trouble else None
