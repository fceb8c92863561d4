"""Failure classes of messages from Kubernetes' API server, scheduler, kubelet and controllers, by patterns. The
patterns are tested with real texts (tests/unit/cluster/test_pods.py)."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from ..records import failure_classes
from ..records.failure_classes import FailureClass, row_of
from .api import ClusterError, Forbidden
from .pod_state import ClusterNode

_GROUPS = failure_classes.read(Path(__file__).with_name(failure_classes.OF_SCHEDULER))
#: Failure classes of texts about containers, pods and Jobs, in the order in which their patterns are tried.
OF_TEXTS = (*_GROUPS["containers"], row_of("disk_full"), *_GROUPS["pods"])
#: Failure classes of texts about image pulls, and about starts of containers; the last one is for an unknown text.
OF_IMAGES = ("disk_full", "image_name", "image_denied", "image_not_found", "registry_away", "image_pull")
OF_STARTS = ("accelerator_runtime", "image_without_python", "disk_full", "container_refused")
#: Failure classes for a Job that the API server refuses, or that may not create its pod.
OF_REFUSALS = ("quota", "pod_security", "image_refused", "pod_refused")
#: Failure classes of PersistentVolumeClaims, which concern all nodes whose pods use the claim.
OF_CLAIMS = ("claim_missing", "volume_claimed", "claim_mismatch", "claim_class", "claim_pending")
OF_VOLUMES = (*OF_CLAIMS, "volume_in_use", "volume_elsewhere", "volume_client", "storage")

#: The end of the scheduler's message, about preemption and, since Kubernetes 1.34, about resource claims.
_AFTERWARDS = re.compile(r"(?:no new claims to deallocate|\bpreemption:).*", re.DOTALL)
_AVAILABLE = re.compile(r"^\s*\d+/\d+ nodes are available:\s*")
_TAINT = re.compile(r"taint(?:\(s\))? \{([^:}]*)")
#: The scheduler's reason about a taint that it does not name, as since Kubernetes 1.34.
_SOME_TAINT = re.compile(r"untolerated taint\(s\)(?! \{)")
_REFUSED_NAME = re.compile(r'(?:Error creating: )?\b([a-z]+(?:\.[a-z]+)*) "[^"]*" is forbidden')
_COUNT = re.compile(r"^\d+ ")
#: A folder of the kubelet for one pod, by its UID.
_POD_FOLDER = re.compile(r"\s?/\S*/pods/[0-9a-f-]{36}/\S*")
#: The scheduler's reasons for nodes other than the one that the pod is pinned to.
_FOREIGN = re.compile(
    r"didn't match Pod's node affinity/selector|didn't satisfy plugin\(s\) \[[^\]]*NodeAffinity|didn't match PreFilter"
)
#: {failure class: pattern}: the first pattern found in the scheduler's reason decides the class.
_SCHEDULING = {
    "device_class_missing": re.compile(r"device class \S+ does not exist"),
    "claim_not_created": re.compile(
        r"ResourceClaim not created yet|resourceclaim\S* \S+ (?:not found|is being deleted)"
    ),
    "dra_driver": re.compile(r"resource pool \S+ is currently"),
    "gpus_in_use": re.compile(
        r"Insufficient (?:nvidia\.com|amd\.com|habana\.ai|gpu\.intel\.com)/|cannot allocate all claims"
    ),
    "node_not_ready": re.compile(r"node\.kubernetes\.io/(?:not-ready|unreachable|network-unavailable)"),
    "node_pressure": re.compile(r"node\.kubernetes\.io/(?:memory|disk|pid)-pressure"),
    "cordoned": re.compile(r"were unschedulable|node\.kubernetes\.io/unschedulable"),
    "tainted": re.compile("untolerated taint|didn't tolerate"),
    "storage": re.compile(r"persistentvolume|\bpvc\(s\)|volume|enough free storage", re.IGNORECASE),
    "unschedulable": re.compile(""),
}


def classify(text: str, among: Collection[str]) -> FailureClass | None:
    """The failure class of a text, out of the classes named in `among`; None when unknown."""
    return failure_classes.find(text, [row for row in OF_TEXTS if row.name in among])


def class_of(text: str, names: Sequence[str]) -> str:
    """Name of the text's failure class, out of `names`; the last of `names` if the text is unknown."""
    known = classify(text, names)
    return known.name if known else names[-1]


def of_error(error: ClusterError) -> FailureClass:
    """The failure class of a failed API request. The patterns for SSH (`Connection refused`) do not apply here."""
    if isinstance(error, Forbidden):
        return row_of("forbidden")
    if 400 <= error.code < 500 and error.code != 429:
        return classify(str(error), OF_REFUSALS) or row_of("api_refused")
    return row_of("api_away")


def without_pod_folder(message: str) -> str:
    """The kubelet's message about a volume without the folder of the pod, so that it is the same for all nodes."""
    return _POD_FOLDER.sub("", message)


def without_pod_name(message: str) -> str:
    """The message of a refusal without the random name of pod or object, so that it is the same for all nodes."""
    return _REFUSED_NAME.sub(r"\1 refused", message)


def unschedulable(name: str, message: str, node: ClusterNode | None) -> tuple[str, str]:
    """The failure class, and the scheduler's reason why a pod pinned to the node `name` is not placed. `message`: its
    reasons for all nodes; those that do not fit this node's state are left out. `node`: None if it does not exist."""
    cleaned = _AVAILABLE.sub("", _AFTERWARDS.sub("", message).strip()).rstrip(". ")
    reasons = re.split(r", (?=\d+ )", cleaned)
    foreign = [reason for reason in reasons if _FOREIGN.search(reason)]
    own_reasons = [reason for reason in reasons if reason not in foreign and _may_concern(reason, node)]
    # One reason applies to each node: a taint without a name is another node's if another reason fits this node.
    own_reasons = [reason for reason in own_reasons if not _SOME_TAINT.search(reason)] or own_reasons
    if own_reasons or not foreign:
        text = "; ".join(_with_taints(_COUNT.sub("", reason), node) for reason in own_reasons or reasons)
        if node is not None and not node.ready and _SOME_TAINT.search(text):
            return "node_not_ready", text
        name = next(known for known, pattern in _SCHEDULING.items() if pattern.search(text))
        return (class_of(text, OF_VOLUMES) if name == "storage" else name), text
    if node is None:
        return "node_missing", "the cluster has no node of this name"
    if node.hostname not in (None, name):
        return "wrong_hostname", f"its label kubernetes.io/hostname is {node.hostname!r}"
    return "not_selected", _COUNT.sub("", foreign[0])


def _may_concern(reason: str, node: ClusterNode | None) -> bool:
    """Whether the scheduler's reason can be about this node, by the node's state; True for an unknown node."""
    if node is None:
        return True
    if "were unschedulable" in reason:
        return bool(node.unschedulable)
    if _SOME_TAINT.search(reason):
        return bool(node.taints) or not node.ready
    taint = _TAINT.search(reason)
    return taint is None or taint[1].strip() in node.taints


def _with_taints(reason: str, node: ClusterNode | None) -> str:
    """The scheduler's reason why a pod was not placed, with the node's taints if the reason names no taint."""
    if node is None or not _SOME_TAINT.search(reason):
        return reason
    taints = ", ".join(sorted(node.taints)) or "none known"
    return f"{reason}, those of the node: {taints}" + ("" if node.ready else "; it is not ready")
