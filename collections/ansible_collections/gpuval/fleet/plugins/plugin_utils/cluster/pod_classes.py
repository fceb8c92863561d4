"""The class of a text of scheduler, kubelet or controllers, by where it was reported. Pure.

Classes and remedies are those of `classes.py`, and a few that depend on a pod's own state. Patterns are tested with
real texts of Kubernetes, containerd and the device plugins (tests/unit/cluster/test_pods.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..records.launch_errors import LaunchClass, known_class
from . import classes
from .pod_state import Node

#: The runtime could not provide accelerators: the one start failure that speaks about the node.
ACCELERATOR_RUNTIME = known_class(
    "accelerator_runtime",
    "repair driver and container toolkit of the node (nvidia-smi, rocm-smi or hl-smi on it; the pods of the device "
    "plugin or GPU operator)",
    r"nvidia-container-(?:cli|runtime|toolkit)",
    r"\bNVML\b|driver (?:error|not loaded|rpc error)|driver/library version mismatch",
    r"no-gpu-has-|unresolvable CDI devices|failed to inject (?:CDI )?devices|/dev/(?:nvidia|kfd|dri/|accel|hl)",
)
IMAGE_WITHOUT_PYTHON = known_class(
    "image_without_python",
    "use an image that has Python 3.9 or newer, or name its interpreter in gpuval_pods.python",
    r"python[0-9.]*\W.{0,60}(?:executable file not found|no such file or directory)",
)
#: Classes without a text of their own, by the state of pod and Job.
CONTAINER_LOST = known_class(
    "container_lost", "check in the node's journal why its containers vanished (a reboot, a restarted runtime)"
)
CONTAINER_FAILED = known_class("container_failed", "read the log of the stage and the kernel log of the node")
RUNNER_REFUSED = known_class("runner_refused", "read the log of the stage: the runner names the missing input")
NODE_REFUSED = known_class("node_refused", "the kubelet rejected the pod: fix the cause named above")
JOB_DELETED = known_class("job_deleted", "find the cause of the deletion (audit log, a clean of another controller)")
NO_POD = known_class("no_pod", "check that the cluster's Job controller works (kubectl describe job)")
NOT_STARTING = known_class(
    "not_starting", "check what the kubelet waits for (kubectl describe pod, the kubelet's journal)"
)
SUSPENDED = known_class("suspended", "let the queue admit the Job, or exclude the namespace from the queue")

OWN = {
    known.name: known
    for known in (
        *(ACCELERATOR_RUNTIME, IMAGE_WITHOUT_PYTHON, CONTAINER_LOST, CONTAINER_FAILED, RUNNER_REFUSED, NODE_REFUSED),
        *(JOB_DELETED, NO_POD, NOT_STARTING, SUSPENDED),
    )
}

IMAGE_NAMES = ("disk_full", "image_name", "image_denied", "image_not_found", "registry_away", "image_pull")
START_NAMES = ("disk_full", "container_refused")
REFUSED_NAMES = ("quota", "pod_refused")

#: What the scheduler adds about preemption and, since 1.34, about resource claims.
_AFTERWARDS = re.compile(r"(?:no new claims to deallocate|\bpreemption:).*", re.DOTALL)
_AVAILABLE = re.compile(r"^\s*\d+/\d+ nodes are available:\s*")
_TAINT = re.compile(r"taint(?:\(s\))? \{([^:}]*)")
#: Since 1.34 the scheduler does not name the taint.
_SOME_TAINT = re.compile(r"untolerated taint\(s\)(?! \{)")
_COUNT = re.compile(r"^\d+ ")
#: Reasons for all nodes but the one that the pod is pinned to.
_FOREIGN = re.compile(
    r"didn't match Pod's node affinity/selector|didn't satisfy plugin\(s\) \[[^\]]*NodeAffinity|didn't match PreFilter"
)
_LACKING = re.compile(r"Insufficient (?:nvidia\.com|amd\.com|habana\.ai|gpu\.intel\.com)/")
_HEALTH_TAINT = re.compile(r"node\.kubernetes\.io/(?:not-ready|unreachable|network-unavailable)")
_PRESSURE_TAINT = re.compile(r"node\.kubernetes\.io/(?:memory|disk|pid)-pressure")
_CORDON = re.compile(r"were unschedulable|node\.kubernetes\.io/unschedulable")
_VOLUME = re.compile(r"persistentvolume|volume node affinity|volume\(s\)|max volume count", re.IGNORECASE)


def named(name: str) -> LaunchClass:
    """The class of that name, of the pods' own or of `classes.py`."""
    known = OWN.get(name) or classes.named(name)
    if known is None:
        raise KeyError(name)
    return known


def is_gpu_allocation(reason: str) -> bool:
    """Whether the kubelet's reason for rejecting a pod names its GPUs."""
    pattern = named("gpu_allocation").pattern
    return pattern is not None and bool(pattern.search(reason))


def image(reason: str, message: str) -> LaunchClass:
    """Why a container's image is missing."""
    return _first(IMAGE_NAMES, f"pull: {reason}: {message}") or named("image_pull")


def start(message: str) -> LaunchClass:
    """Why the container runtime did not start a container."""
    for known in (ACCELERATOR_RUNTIME, IMAGE_WITHOUT_PYTHON):
        if known.pattern is not None and known.pattern.search(message):
            return known
    return _first(START_NAMES, message) or named("container_refused")


def refused(message: str) -> LaunchClass:
    """Why a Job may not create its pod."""
    return _first(REFUSED_NAMES, message) or named("pod_refused")


def _first(names: Sequence[str], text: str) -> LaunchClass | None:
    for known in classes.OF_PODS:
        if known.name in names and known.pattern is not None and known.pattern.search(text):
            return known
    return None


def unschedulable(name: str, message: str, node: Node | None) -> tuple[LaunchClass, str]:
    """Class and the scheduler's own reason for the one node that a pod is pinned to.

    The scheduler reports the reasons of all nodes together, and checks taints before the node that the pod wants:
    those of other nodes are excluded by what is known of this one. `node`: None where the cluster does not know it.
    """
    cleaned = _AVAILABLE.sub("", _AFTERWARDS.sub("", message).strip()).rstrip(". ")
    reasons = re.split(r", (?=\d+ )", cleaned)
    foreign = [reason for reason in reasons if _FOREIGN.search(reason)]
    own = [reason for reason in reasons if reason not in foreign and _concerns(reason, node)]
    # A node has one of the reasons: a taint without a name is another's when something else is this one's.
    own = [reason for reason in own if not _SOME_TAINT.search(reason)] or own
    if own or not foreign:
        text = "; ".join(_with_taints(_COUNT.sub("", reason), node) for reason in own or reasons)
        if node is not None and not node.ready and _SOME_TAINT.search(text):
            return named("node_not_ready"), text
        return named(_scheduling(text)), text
    if node is None:
        return named("node_missing"), "the cluster has no node of this name"
    if node.hostname not in (None, name):
        return named("wrong_hostname"), f"its label kubernetes.io/hostname is {node.hostname!r}"
    return named("not_selected"), _COUNT.sub("", foreign[0])


def _scheduling(text: str) -> str:
    for pattern, name in (
        (_LACKING, "gpus_in_use"),
        (_HEALTH_TAINT, "node_not_ready"),
        (_PRESSURE_TAINT, "node_pressure"),
        (_CORDON, "cordoned"),
        (re.compile("untolerated taint|didn't tolerate"), "tainted"),
        (_VOLUME, "storage"),
    ):
        if pattern.search(text):
            return name
    return "unschedulable"


def _concerns(reason: str, node: Node | None) -> bool:
    if node is None:
        return True
    if "were unschedulable" in reason:
        return bool(node.unschedulable)
    if _SOME_TAINT.search(reason):
        return bool(node.taints) or not node.ready
    taint = _TAINT.search(reason)
    return taint is None or taint[1].strip() in node.taints


def _with_taints(reason: str, node: Node | None) -> str:
    """The scheduler's reason, and the taints of the node where it does not name the one."""
    if node is None or not _SOME_TAINT.search(reason):
        return reason
    known = ", ".join(sorted(node.taints)) or "none known"
    return f"{reason}, those of the node: {known}" + ("" if node.ready else "; it is not ready")
