"""The class of a text of scheduler, kubelet or controllers, by where it was reported. Pure.

Patterns are tested with real texts of Kubernetes, containerd and the device plugins (tests/unit/cluster/test_pods.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..records.failure_classes import FailureClass, row_of
from .classes import OF_REFUSALS, classify
from .pod_state import ClusterNode

#: Classes of a text by what it is about, in the order of their tables.
OF_IMAGES = ("disk_full", "image_name", "image_denied", "image_not_found", "registry_away", "image_pull")
OF_STARTS = ("accelerator_runtime", "image_without_python", "disk_full", "container_refused")

#: What the scheduler adds about preemption and, since 1.34, about resource claims.
_AFTERWARDS = re.compile(r"(?:no new claims to deallocate|\bpreemption:).*", re.DOTALL)
_AVAILABLE = re.compile(r"^\s*\d+/\d+ nodes are available:\s*")
_TAINT = re.compile(r"taint(?:\(s\))? \{([^:}]*)")
#: Since 1.34 the scheduler does not name the taint.
_SOME_TAINT = re.compile(r"untolerated taint\(s\)(?! \{)")
_REFUSED_NAME = re.compile(r'(?:Error creating: )?\b([a-z]+(?:\.[a-z]+)*) "[^"]*" is forbidden')
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


def image(reason: str, message: str) -> FailureClass:
    """Why a container's image is missing."""
    return _among(OF_IMAGES, f"pull: {reason}: {message}")


def start(message: str) -> FailureClass:
    """Why the container runtime did not start a container."""
    return _among(OF_STARTS, message)


def refused(message: str) -> FailureClass:
    """Why a Job may not create its pod."""
    return _among(OF_REFUSALS, message)


def without_pod_name(message: str) -> str:
    """A refusal without the random name of the pod, or that of the object, so that it is the same for all nodes."""
    return _REFUSED_NAME.sub(r"\1 refused", message)


def _among(names: Sequence[str], text: str) -> FailureClass:
    """The class of the text, else the last one."""
    return classify(text, names) or row_of(names[-1])


def unschedulable(name: str, message: str, node: ClusterNode | None) -> tuple[FailureClass, str]:
    """Class and the scheduler's own reason for the one node that a pod is pinned to.

    The scheduler reports the reasons of all nodes together, and checks taints before the node that the pod wants:
    those of other nodes are excluded by what is known of this one. `node`: None where the cluster does not know it.
    """
    cleaned = _AVAILABLE.sub("", _AFTERWARDS.sub("", message).strip()).rstrip(". ")
    reasons = re.split(r", (?=\d+ )", cleaned)
    foreign = [reason for reason in reasons if _FOREIGN.search(reason)]
    own_reasons = [reason for reason in reasons if reason not in foreign and _concerns(reason, node)]
    # A node has one of the reasons: a taint without a name is another's when something else is this one's.
    own_reasons = [reason for reason in own_reasons if not _SOME_TAINT.search(reason)] or own_reasons
    if own_reasons or not foreign:
        text = "; ".join(_with_taints(_COUNT.sub("", reason), node) for reason in own_reasons or reasons)
        if node is not None and not node.ready and _SOME_TAINT.search(text):
            return row_of("node_not_ready"), text
        return row_of(_scheduling(text)), text
    if node is None:
        return row_of("node_missing"), "the cluster has no node of this name"
    if node.hostname not in (None, name):
        return row_of("wrong_hostname"), f"its label kubernetes.io/hostname is {node.hostname!r}"
    return row_of("not_selected"), _COUNT.sub("", foreign[0])


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


def _concerns(reason: str, node: ClusterNode | None) -> bool:
    if node is None:
        return True
    if "were unschedulable" in reason:
        return bool(node.unschedulable)
    if _SOME_TAINT.search(reason):
        return bool(node.taints) or not node.ready
    taint = _TAINT.search(reason)
    return taint is None or taint[1].strip() in node.taints


def _with_taints(reason: str, node: ClusterNode | None) -> str:
    """The scheduler's reason, and the taints of the node where it does not name the one."""
    if node is None or not _SOME_TAINT.search(reason):
        return reason
    taints = ", ".join(sorted(node.taints)) or "none known"
    return f"{reason}, those of the node: {taints}" + ("" if node.ready else "; it is not ready")
