"""Labels and names of the Kubernetes objects that a run creates. Two runs, or two nodes, never share a name."""

import hashlib
import re
from typing import Any

NAME_LABEL = "app.kubernetes.io/name"
MANAGED_LABEL = "app.kubernetes.io/managed-by"
#: Label of a controller that runs in the cluster, and of its objects.
COMPONENT_LABEL, CONTROLLER = "app.kubernetes.io/component", "controller"
RUN_LABEL = "gpuval.io/run"
NODE_LABEL = "gpuval.io/node"
ATTEMPT_LABEL = "gpuval.io/attempt"
#: Label of the objects of a multi-node round: id of the run that contains the round. A round has its own run id, too.
PARENT_LABEL = "gpuval.io/parent"
ROUND_LABEL = "gpuval.io/round"
GANG_LABEL = "gpuval.io/gang"
#: Annotations with the exact run id and node name, which may be too long for a label.
RUN_ANNOTATION = "gpuval.io/run-id"
NODE_ANNOTATION = "gpuval.io/node-name"
#: Annotation: the queue that a Job waits for.
QUEUE_ANNOTATION = "gpuval.io/queue"
#: Label of a Node object with its host name, by which pods are pinned to it.
HOSTNAME_LABEL = "kubernetes.io/hostname"
#: Label of the Jobs that a JobSet makes: the name of the JobSet.
JOB_SET_LABEL = "jobset.sigs.k8s.io/jobset-name"
OWNER = "gpuval"

#: Label selector of the objects of all runs.
ALL_RUNS = f"{MANAGED_LABEL}={OWNER}"

LONGEST = 63
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def digest(text: str, length: int) -> str:
    """The first `length` hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def is_label_value(text: str) -> bool:
    return _LABEL.fullmatch(text) is not None


def label_value(text: str) -> str:
    """The text as the value of a label: unchanged if valid, else shortened and with a hash of the whole text."""
    if is_label_value(text):
        return text
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", text)[: LONGEST - 11].strip("._-")
    return f"{readable or 'x'}-{digest(text, 10)}"


def owner_labels() -> dict[str, str]:
    """Labels of every object that gpuval creates."""
    return {NAME_LABEL: OWNER, MANAGED_LABEL: OWNER}


def run_labels(run_id: str) -> dict[str, str]:
    """Labels of every object of a run."""
    return {**owner_labels(), RUN_LABEL: label_value(run_id)}


def metadata(run_id: str, namespace: str, name: str) -> dict[str, Any]:
    """Metadata of an object that belongs to the whole run."""
    annotations = {RUN_ANNOTATION: run_id}
    return {"name": name, "namespace": namespace, "labels": run_labels(run_id), "annotations": annotations}


def node_metadata(run_id: str, namespace: str, node: str, attempt: int) -> dict[str, Any]:
    """Metadata of the Job, and of the Secret, of one attempt on one node."""
    labels = {**run_labels(run_id), NODE_LABEL: label_value(node), ATTEMPT_LABEL: str(attempt)}
    annotations = {RUN_ANNOTATION: run_id, NODE_ANNOTATION: node}
    name = object_name(run_id, node, attempt)
    return {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations}


def core_object(kind: str, meta: dict[str, Any], **content: Any) -> dict[str, Any]:
    """The manifest of an object of Kubernetes' core API, `v1`. `content`: fields beside the metadata (`meta`)."""
    return {"apiVersion": "v1", "kind": kind, "metadata": meta, **content}


def run_selector(run_id: str) -> str:
    """Label selector of exactly the objects of one run."""
    return f"{ALL_RUNS},{RUN_LABEL}={label_value(run_id)}"


def run_name(run_id: str, suffix: str) -> str:
    """Name of an object of a run. `suffix`: what tells the run's objects apart, up to 40 characters of a DNS label."""
    return f"gpuval-{digest(run_id, 10)}-{suffix}"


def object_name(run_id: str, node: str, attempt: int) -> str:
    """Name of the Job of an attempt on a node, and of its Secret: a DNS label."""
    return run_name(run_id, f"{host_name(node)}-{attempt}")


def host_name(node: str) -> str:
    """The host name of a node's pod: a DNS label of at most 37 characters, different for each node: of 1,000 long names
    that begin alike, hashes of 6 digits would often collide."""
    readable = re.sub(r"[^a-z0-9]+", "-", node.lower())[:26].strip("-") or "node"
    return f"{readable}-{digest(node, 10)}"


def container_name(stage: str) -> str:
    """Name of a stage's container; names of stages have no hyphen, so :func:`stage_of` can invert it."""
    return stage.replace("_", "-")


def stage_of(container: str) -> str:
    """The stage whose container has this name."""
    return container.replace("-", "_")
