"""What the state of a node's pod means for the user: what keeps it from running or ended it, and what to do. `diagnose`
tries the rules of a table in order: a cause is found before its consequences. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..core.escape import one_line
from . import pod_classes, pod_state
from .pod_classes import OF_CLAIMS, OF_IMAGES, OF_REFUSALS, OF_STARTS, OF_VOLUMES, class_of
from .pod_state import ClusterNode, ContainerState, Pod, PodEvent

#: Seconds to wait for the pod of a Job that failed before its pod was seen: separate watches report Jobs and pods.
UNSEEN_SECONDS = 5.0
WITHOUT_LIMIT = 0.0
#: Fraction of `patience_seconds` that applies to states which a cluster resolves soon or never.
SOON = 0.4

#: Reasons of events which report that the last image pull has failed.
PULL_FAILED_REASONS = frozenset({"Failed", "BackOff"})
#: Reasons of events about steps before the image pull (volumes, devices, sandbox), with their failure classes: the
#: last one is for an unknown text.
PREPARE_REASONS = {
    "FailedMount": OF_VOLUMES,
    "FailedAttachVolume": OF_VOLUMES,
    "FailedCreatePodSandBox": ("container_refused",),
    "FailedPrepareDynamicResources": ("dra_driver", "gpu_allocation"),
}
#: Reason of the event about a pod whose claim cannot be made from its template.
NO_CLAIM = "FailedResourceClaimCreation"
#: Reasons of events which tell why a PersistentVolumeClaim has no volume, most precise first; and that it has one.
CLAIM_REASONS = ("VolumeMismatch", "ProvisioningFailed", "FailedBinding", "ExternalProvisioning")
CLAIM_PROVISIONED = "ProvisioningSucceeded"
#: The scheduler's words for a node on which a claim finds no volume: another node may be chosen for the claim.
NOT_BOUND = "available persistent volumes to bind"
#: Which pods share a trouble: all pods of the namespace, or all pods with the same PersistentVolumeClaim.
NAMESPACE, CLAIM = "namespace", "claim"
#: Waiting reasons of a container that has no image yet.
IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"}
)
IMAGE_FINAL = frozenset({"InvalidImageName", "ErrImageNeverPull"})
START_REASONS = frozenset(
    {"CreateContainerError", "CreateContainerConfigError", "RunContainerError", "PreCreateHookError", "StartError"}
)
#: Reasons of a terminated container whose end is unknown.
LOST_REASONS = frozenset({"ContainerStatusUnknown", "Unknown"})
OOM = "OOMKilled"

#: Exit codes of the runner for wrong input, or for another runner at work (cli.py of the runner).
RUNNER_REFUSED_CODES = (2, 3)
#: Exit code of the last stage's container when any stage did not succeed.
NOT_ALL_SUCCEEDED = 1

_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted",
    "EvictionByEvictionAPI": "drained",
    "DeletionByTaintManager": "node_lost",
    "DeletionByPodGC": "node_lost",
    "DeletionByDeviceTaintManager": "dra_driver",
}
_POD_REASONS = {
    "Evicted": "evicted",
    "Preempting": "preempted",
    "Preempted": "preempted",
    "NodeLost": "node_lost",
    "Shutdown": "node_lost",
    "NodeShutdown": "node_lost",
    "Terminated": "node_lost",  # set by the kubelet when its node shuts down
    "UnexpectedAdmissionError": "gpu_allocation",
    "DeadlineExceeded": "deadline_exceeded",
}
#: Further reasons by which the kubelet rejects a pod that the scheduler placed on its node.
_NOT_ADMITTED = re.compile(
    r"OutOf\S+|NodeAffinity|NodeName|TopologyAffinityError|\w*Admission\w*|PodOS\w*|\w*Forbidden"
)
_TAINTED_AWAY = re.compile(r"node\.kubernetes\.io/(?:not-ready|unreachable|out-of-service)")
_BACK_OFF = re.compile(r"^Back-off pulling image \"[^\"]*\"(?:: (?:ErrImagePull: )?)?")


@dataclass(frozen=True)
class PodLimits:
    """How long states may last that may resolve by themselves, in seconds; 0: without limit. `start_seconds`: from the
    scheduling of a pod until a container runs, while no cause is reported (a large image). `admission_seconds`: until a
    queue admits a Job."""

    patience_seconds: float = 300.0
    start_seconds: float = 1800.0
    admission_seconds: float = WITHOUT_LIMIT

    @property
    def soon_seconds(self) -> float:
        """Time limit of states that a cluster resolves soon or never."""
        return SOON * self.patience_seconds


@dataclass(frozen=True)
class PodTrouble:
    """What keeps a pod from running, or ended it. `name`: the failure class. `family`: troubles of one family share one
    time limit. `limit`: seconds the trouble may last, None: final. `evidence`: it tells about the node, so the stage
    counts as crashed. `retryable`: another attempt may succeed. `quiet`: not reported before the limit. `stuck`: final,
    and the pod waits forever. `shared`: NAMESPACE or CLAIM if other pods share it, else empty. The tracker sets
    `remedy`, and `final`: it does not resolve by itself, or did not in time."""

    name: str
    message: str
    family: str = ""
    limit: float | None = None
    stage: str | None = None
    evidence: bool = False
    retryable: bool = False
    quiet: bool = False
    stuck: bool = False
    shared: str = ""
    remedy: str = ""
    final: bool = False

    @property
    def reason(self) -> dict[str, str]:
        """Failure class, message and remedy of the trouble, as fields of the node's launch file."""
        return {"class": self.name, "message": self.message, "remedy": self.remedy}


@dataclass
class NodeAttempt:
    """One attempt on one node: the state of its Job and of the Job's pods."""

    node: str
    number: int
    job: str | None = None
    job_gone: bool = False
    #: Deletion of the Job was requested; the Job may still wait for its pods to end.
    job_deleted: bool = False
    complete: bool = False
    failed: tuple[str, str] | None = None
    suspended: bool = False
    #: The queue that the Job waits for, and the JobSet that made the Job; empty: none.
    queue: str = ""
    job_set: str = ""
    pods: dict[str, Pod] = field(default_factory=dict)
    #: What is wrong with the attempt now, None if nothing is, and since when (monotonic seconds).
    trouble: PodTrouble | None = None
    since: float = 0.0
    #: The last trouble before the pod ran: the reason to report if the pod does not start in time.
    before_start: PodTrouble | None = None
    #: The kubelet's error at the last image pull; between pulls the kubelet only reports the back-off.
    pull_message: str = ""
    #: Reason and message of the missing image; empty: no image is missing, None: no pod was seen.
    image_words: tuple[str, ...] | None = None
    #: How long the image was missing before the pull that is under way.
    image_seconds: float = 0.0

    @property
    def pod(self) -> Pod:
        """The attempt's newest pod, or a Pod without name. A Job creates another pod if the first is gone."""
        return max(self.pods.values(), key=lambda pod: (pod.created, pod.uid), default=Pod())


@dataclass(frozen=True)
class PodCase:
    """All that a diagnosis of an attempt uses. `host`: the Node that the pod is on; `named`: the Node with the name of
    the run's node. Events are {reason: latest event}, for claims {claim: {reason: latest event}}."""

    attempt: NodeAttempt
    pod: Pod
    host: ClusterNode | None
    named: ClusterNode | None
    job_events: Mapping[str, PodEvent]
    pod_events: Mapping[str, PodEvent]
    limits: PodLimits
    claim_events: Mapping[str, Mapping[str, PodEvent]] = field(default_factory=dict)


def diagnose(case: PodCase) -> PodTrouble | None:
    """What is wrong with an attempt's pod; None if nothing is."""
    pod, rules = case.pod, WITH_POD
    if case.attempt.complete or pod.phase == "Succeeded":
        return None
    if not pod.name:
        rules = WITHOUT_POD
    elif pod.ended:
        rules = (_disrupted, _deadline, _deleted if pod.ended_by_deletion else _ended_badly)
    return next(filter(None, (rule(case) for rule in rules)), None)


def _job_failed(case: PodCase) -> PodTrouble | None:
    if case.attempt.failed is None:
        return None
    reason, message = case.attempt.failed
    text = f"its Job failed ({reason}), and its pod is gone: {message}"
    return PodTrouble("pod_failed", text, "failed", UNSEEN_SECONDS, retryable=True, quiet=True)


def _disrupted(case: PodCase) -> PodTrouble | None:
    pod, host = case.pod, case.host
    if pod.disruption is not None:
        reason, message = pod.disruption
        name = _DISRUPTIONS.get(reason)
        if reason == "DeletionByTaintManager":
            lost = host is None or host.gone or not host.ready or bool(_TAINTED_AWAY.search(message))
            name = "node_lost" if lost else "drained"
        if name is None:  # TerminationByKubelet and future reasons: the pod's own reason is more precise
            name = _POD_REASONS.get(pod.reason, "evicted")
        return PodTrouble(name, f"{reason}: {pod.message or message}", name, stage=pod.stage, retryable=True)
    name = _POD_REASONS.get(pod.reason)
    if name is None and _NOT_ADMITTED.fullmatch(pod.reason):
        name = class_of(pod.reason, ("gpu_allocation", "node_refused"))
    if name is None or name == "deadline_exceeded":
        return None
    return PodTrouble(name, f"{pod.reason}: {pod.message}", name, stage=pod.stage, retryable=True)


def _deadline(case: PodCase) -> PodTrouble | None:
    attempt, pod = case.attempt, case.pod
    by_job = attempt.failed is not None and attempt.failed[0] == "DeadlineExceeded"
    if not by_job and pod.reason != "DeadlineExceeded":
        return None
    cause = attempt.before_start
    if cause is not None and not pod.ran:
        return PodTrouble(cause.name, f"{cause.message} (until the deadline)", "deadline", stage=cause.stage)
    message = attempt.failed[1] if by_job and attempt.failed else pod.message
    text = f"ended by its deadline{f' in {pod.stage}' if pod.stage else ''}: {message}"
    return PodTrouble("deadline_exceeded", text, "deadline", stage=pod.stage)


def _deleted(case: PodCase) -> PodTrouble | None:
    attempt, pod = case.attempt, case.pod
    if case.host is not None and case.host.gone and pod.host:
        return None  # the pod is gone because its node is
    if attempt.job_deleted and attempt.job_set:
        name = "job_set_ended"
        text = f"its JobSet {attempt.job_set} ended it: the Job of another member failed, or the JobSet was deleted"
    elif attempt.job_deleted:
        name, text = "job_deleted", f"its Job {attempt.job} was deleted"
    elif not (pod.gone or pod.deleted_at):
        return None
    elif attempt.suspended:
        name, text = "suspended", "preempted by its queue: the Job is suspended again"
    else:
        # A Job at its deadline deletes its pod before it reports failure: until then the deadline may be the reason.
        event = ("was deleted" if pod.gone else "is being deleted") + (
            " from outside the run" if attempt.failed else ""
        )
        name, text = "pod_deleted", f"its pod {pod.name} {event}"
    return PodTrouble(name, text, "deleted", stage=pod.stage, retryable=True)


def _node_trouble(case: PodCase) -> PodTrouble | None:
    """What is wrong with the pod's node. Only for a scheduled pod: before, the scheduler reports such troubles."""
    host, stage = case.host, case.pod.stage
    if not case.pod.host or host is None:
        return None
    if host.gone:
        replacement = ", and another has its name" if host.replaced else ""
        text = f"the node was removed from the cluster{replacement}"
        return PodTrouble("node_lost", text, "node_gone", stage=stage, retryable=True)
    if not host.ready:
        text = f"the node is not ready: {host.message}"
        return PodTrouble("node_lost", text, "node_lost", case.limits.patience_seconds, stage, retryable=True)
    return None


def _no_pod(case: PodCase) -> PodTrouble:
    limits, event = case.limits, case.job_events.get("FailedCreate")
    if case.attempt.suspended:
        queue = case.attempt.queue
        text = f"waits for queue {queue}" if queue else "its Job is suspended: a queue holds it back"
        return PodTrouble("suspended", text, "suspended", limits.admission_seconds)
    if event and event.message:
        text = pod_classes.without_pod_name(event.message)
        return PodTrouble(class_of(text, OF_REFUSALS), text, "refused", limits.soon_seconds, shared=NAMESPACE)
    return PodTrouble("no_pod", "its Job has made no pod", "no_pod", limits.soon_seconds, quiet=True)


def _ended_badly(case: PodCase) -> PodTrouble | None:
    """The trouble that a pod's failed container shows; None if no container failed, or a stage's record tells why."""
    stages = case.pod.stages
    last_stage = next(reversed(stages), None)
    ends = (
        _container_end(stage, container, is_last=stage == last_stage)
        for stage, container in stages.items()
        if container.state == "ended" and container.exit_code
    )
    return next(filter(None, ends), None)


def _container_end(stage: str, container: ContainerState, *, is_last: bool) -> PodTrouble | None:
    """The trouble shown by a stage's container that ended with an exit code other than 0; None if the stage's record
    tells it. `is_last`: the pod's last container."""
    reason, code = container.reason, container.exit_code
    if reason in LOST_REASONS:
        text = one_line(container.message) or "how its container ended is unknown"
        return PodTrouble("container_lost", f"{reason}: {text}", "ended", stage=stage, retryable=True)
    if reason in pod_state.NOT_RUN_REASONS:
        text = f"{reason}: {one_line(container.message, pod_state.MESSAGE_CHARACTERS)}"
        name = class_of(text, OF_STARTS)
        return PodTrouble(name, text, "ended", stage=stage, evidence=name == "accelerator_runtime")
    if reason == OOM:
        text = (
            f"{OOM}: the kernel killed the container of {stage}: out of memory (its limit is in gpuval_pods.resources)"
        )
        return PodTrouble("oom_killed", text, "ended", stage=stage, evidence=True)
    if code in RUNNER_REFUSED_CODES and container.signal is None:
        detail = one_line(container.message, 300)
        text = f"the runner of {stage} refused (exit code {code})" + (f": {detail}" if detail else "")
        return PodTrouble("runner_refused", text, "ended", stage=stage)
    if code == NOT_ALL_SUCCEEDED and is_last and pod_state.termination_report(stage, container):
        return None  # a stage of the pod failed: its record tells why
    ending = f"was killed by {container.signal}" if container.signal else f"ended with exit code {code}"
    return PodTrouble("container_failed", f"the container of {stage} {ending}", "ended", stage=stage, evidence=True)


def _not_running(case: PodCase) -> PodTrouble | None:
    pod = case.pod
    if any(container.state == "running" for container in pod.stages.values()):
        return None
    if not pod.host:
        return _unscheduled(case)
    for stage, container in pod.stages.items():
        if container.state == "waiting":
            return next(filter(None, (rule(case, stage, container) for rule in CONTAINER_WAITS)))
    return None


def _unscheduled(case: PodCase) -> PodTrouble:
    limit, claim_text = case.limits.patience_seconds, _claim_text(case)
    name, text = "unschedulable", ""
    if NO_CLAIM in case.pod_events:
        text = f"{NO_CLAIM}: {case.pod_events[NO_CLAIM].message}"
        return PodTrouble("claim_not_created", text, "unschedulable", limit)
    if case.pod.unscheduled is not None:
        reason, message = case.pod.unscheduled
        node = case.named if case.named is not None and not case.named.gone else None
        name, text = pod_classes.unschedulable(case.attempt.node, message, node)
        text = f"{reason}: {text}"
    elif not claim_text:
        return PodTrouble(name, "no scheduler has handled its pod", "unschedulable", limit, quiet=True)
    if claim_text and (not text or name == "claim_pending" or NOT_BOUND in text):
        name, text = class_of(claim_text, OF_CLAIMS), claim_text
    elif name in OF_VOLUMES:
        text = _with_claims(text, case.pod)
    if name in OF_CLAIMS and not case.pod.own_claims:
        return PodTrouble(name, text, CLAIM, limit, shared=CLAIM)
    return PodTrouble(name, text, "unschedulable", limit)


def _claim_text(case: PodCase) -> str:
    """Why a PersistentVolumeClaim of the pod has no volume, by the newest events about its claims; empty if unknown."""
    reasons = []
    for claim, events in case.claim_events.items():
        event = next((events[reason] for reason in CLAIM_REASONS if reason in events), None)
        provisioned = events.get(CLAIM_PROVISIONED)
        if event is not None and not (provisioned and provisioned.later_than(event)):
            latest = pod_state.newest(events, CLAIM_REASONS) or event
            reasons.append((latest.second, f"claim {_claim_name(claim, case.pod)}: {event.message}"))
    return max(reasons, default=("", ""))[1]


def _claim_name(claim: str, pod: Pod) -> str:
    """The name of a claim. If the cluster created it for one pod, without the pod's name, so that all nodes agree."""
    return claim.removeprefix(f"{pod.name}-") if claim in pod.own_claims else claim


def _with_claims(text: str, pod: Pod) -> str:
    """A message about volumes, with the pod's claims added if it names none of them, and without the pod's name."""
    claims = [_claim_name(claim, pod) for claim in (*pod.claims, *pod.own_claims)]
    text = text.replace(f"{pod.name}-", "")
    is_named = not claims or any(f'"{claim}"' in text for claim in claims)
    return text if is_named else f"{text} (claim {', '.join(claims)})"


def _image(case: PodCase, stage: str, container: ContainerState) -> PodTrouble | None:
    reason, message, attempt, limits = container.reason, container.message, case.attempt, case.limits
    if reason in IMAGE_FINAL:
        text = f"{reason}: {message}"
        return PodTrouble(class_of(f"pull: {text}", OF_IMAGES), text, "image", stage=stage, stuck=True)
    if reason not in IMAGE_REASONS:
        return None
    failed = case.pod_events.get("Failed")
    attempt.pull_message = _BACK_OFF.sub("", message) or attempt.pull_message or (failed.message if failed else "")
    text = f"{reason}: {attempt.pull_message or message}"
    name = class_of(f"pull: {text}", OF_IMAGES)
    if pod_state.progressed(case.pod_events, PULL_FAILED_REASONS):  # the message is about the previous pull
        return PodTrouble(name, f"{text} (pulling again)", "pull", limits.start_seconds, stage)
    return PodTrouble(name, text, "image", limits.patience_seconds, stage)


def _start(case: PodCase, stage: str, container: ContainerState) -> PodTrouble | None:
    if container.reason not in START_REASONS:
        return None
    text = f"{container.reason}: {container.message}"
    name = class_of(text, OF_STARTS)
    evidence = name == "accelerator_runtime"
    return PodTrouble(name, text, "start", case.limits.soon_seconds, stage, evidence=evidence)


def _prepare(case: PodCase, stage: str, _container: ContainerState) -> PodTrouble | None:
    for reason, classes in PREPARE_REASONS.items():
        if reason in case.pod_events and not (
            case.pod.prepared or case.pod.ran or pod_state.progressed(case.pod_events, {reason})
        ):
            # A condition or a later event shows progress: older kubelets set the condition late, events may be lost.
            text = f"{reason}: {case.pod_events[reason].message}"
            if classes == OF_VOLUMES:
                text = _with_claims(pod_classes.without_pod_folder(text), case.pod)
            return PodTrouble(class_of(text, classes), text, "prepare", case.limits.patience_seconds, stage)
    return None


def _no_progress(case: PodCase, stage: str, container: ContainerState) -> PodTrouble:
    text = "no container runs, and no cause is reported" + (f" ({container.reason})" if container.reason else "")
    return PodTrouble("not_starting", text, f"starting {stage}", case.limits.start_seconds, stage, quiet=True)


Rule = Callable[[PodCase], "PodTrouble | None"]
WITHOUT_POD: Sequence[Rule] = (_deadline, _deleted, _job_failed, _no_pod)
WITH_POD: Sequence[Rule] = (_disrupted, _node_trouble, _deadline, _deleted, _ended_badly, _not_running)
#: Rules that diagnose a container that waits to start, tried in order.
CONTAINER_WAITS: Sequence[Callable[[PodCase, str, ContainerState], PodTrouble | None]] = (
    _image,
    _start,
    _prepare,
    _no_progress,
)
