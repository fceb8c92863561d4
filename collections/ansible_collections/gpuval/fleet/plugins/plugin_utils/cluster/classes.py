"""Why a node of a cluster failed, as one word with a remedy, from the texts of the Kubernetes API.

The counterpart of `records.launch_errors` for SSH. A text without a match has no class: an unknown failure never counts
as a known one.
"""

from __future__ import annotations

from collections.abc import Collection

from ..records import failure_classes, launch_errors
from ..records.failure_classes import FailureClass
from .api import ClusterError, Forbidden

_GROUPS = failure_classes.read("kubernetes")
#: By the Node object alone; of pods and Jobs, those with patterns in the order in which they are tried; by the state of
#: containers, pods and Jobs; by answers of the API server to the controller.
OF_NODES, OF_CONTAINERS, OF_API = (_GROUPS[name] for name in ("nodes", "containers", "api"))
OF_PODS = (launch_errors.NAMED["disk_full"], *_GROUPS["pods"])

CLASSES = (*OF_NODES, *OF_PODS, *OF_CONTAINERS, *OF_API)
NAMED = {known.name: known for known in CLASSES}
#: Why the API server takes no Job, or a Job may not create its pod.
OF_REFUSALS = ("quota", "pod_security", "pod_refused")


def classify(text: str, among: Collection[str]) -> FailureClass | None:
    """The class of a text, of those with these names; None when unknown. The order is that of the file."""
    return failure_classes.find(text, [known for known in (*OF_CONTAINERS, *OF_PODS) if known.name in among])


def of_error(error: ClusterError) -> FailureClass:
    """The class of a failed request. The patterns for SSH (`Connection refused`) do not apply here."""
    if isinstance(error, Forbidden):
        return NAMED["forbidden"]
    if 400 <= error.code < 500 and error.code != 429:
        return classify(str(error), OF_REFUSALS) or NAMED["api_refused"]
    return NAMED["api_away"]
