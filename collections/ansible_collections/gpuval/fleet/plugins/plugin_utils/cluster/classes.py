"""Why a node of a cluster failed, as one word with a remedy, from the texts of the Kubernetes API.

The counterpart of `records.launch_errors` for SSH. A text without a match has no class: an unknown failure never counts
as a known one.
"""

from __future__ import annotations

from collections.abc import Collection

from ..records import failure_classes
from ..records.failure_classes import FailureClass, row_of
from .api import ClusterError, Forbidden

_GROUPS = failure_classes.read("kubernetes")
#: By texts about containers, pods and Jobs, in the order in which their patterns are tried.
OF_TEXTS = (*_GROUPS["containers"], row_of("disk_full"), *_GROUPS["pods"])
#: Why the API server takes no Job, or a Job may not create its pod.
OF_REFUSALS = ("quota", "pod_security", "pod_refused")


def classify(text: str, among: Collection[str]) -> FailureClass | None:
    """The class of a text, of those with these names; None when unknown. The order is that of the file."""
    return failure_classes.find(text, [row for row in OF_TEXTS if row.name in among])


def of_error(error: ClusterError) -> FailureClass:
    """The class of a failed request. The patterns for SSH (`Connection refused`) do not apply here."""
    if isinstance(error, Forbidden):
        return row_of("forbidden")
    if 400 <= error.code < 500 and error.code != 429:
        return classify(str(error), OF_REFUSALS) or row_of("api_refused")
    return row_of("api_away")
