"""Jobs that Kueue admits, and the JobSet of a gang, which it admits whole. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from . import names
from .pod_settings import PodSettings

Manifest = dict[str, Any]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
MAX_SECONDS_LABEL = "kueue.x-k8s.io/max-exec-time-seconds"
#: The Job's own deadline comes first: at that of the queue it would look preempted.
MAX_SECONDS_SLACK = 60
#: Annotations of pods, by key of gpuval_pods.kueue.
TOPOLOGY = {
    "required_topology": "kueue.x-k8s.io/podset-required-topology",
    "preferred_topology": "kueue.x-k8s.io/podset-preferred-topology",
}
#: Kueue takes 8 sets of pods in one workload, and each member of a gang is one, because it has its own node.
MAX_QUEUED_MEMBERS = 8
#: What etcd takes in one object is 1.5 MiB.
MAX_SET_BYTES = 1_000_000


def queued(job: Manifest, settings: PodSettings, hostname: str) -> Manifest:
    """The Job, held back until its queue admits it; without a queue the Job itself."""
    if not settings.queue:
        return job
    kueue, metadata, spec = settings.kueue, job["metadata"], job["spec"]
    pod, pod_metadata = spec["template"]["spec"], spec["template"]["metadata"]
    most = spec["activeDeadlineSeconds"] + MAX_SECONDS_SLACK
    labels = {QUEUE_LABEL: settings.queue, MAX_SECONDS_LABEL: str(most)}
    if kueue.get("priority_class"):
        labels[PRIORITY_LABEL] = kueue["priority_class"]
    topology = {name: kueue[key] for key, name in TOPOLOGY.items() if kueue.get(key)}
    if hostname:  # Kueue's topology reads no affinity: it would choose another node
        pod = {**pod, "nodeSelector": {**pod.get("nodeSelector", {}), names.HOSTNAME_LABEL: hostname}}
    return {
        **job,
        "metadata": {
            **metadata,
            "labels": {**metadata["labels"], **labels},
            "annotations": {**metadata["annotations"], names.QUEUE_ANNOTATION: settings.queue},
        },
        "spec": {
            **spec,
            "suspend": True,
            "template": {
                "metadata": {**pod_metadata, "annotations": {**pod_metadata["annotations"], **topology}},
                "spec": pod,
            },
        },
    }


def job_set(run_id: str, namespace: str, gang: str, jobs: Sequence[Manifest]) -> Manifest | None:
    """The JobSet of a gang's Jobs, or None where it cannot hold them: too many for their queue, or too large."""
    queue = {key: value for job in jobs for key, value in job["metadata"]["labels"].items() if key.startswith("kueue.")}
    if queue and len(jobs) > MAX_QUEUED_MEMBERS:
        return None
    metadata = names.metadata(run_id, namespace, names.job_set_name(run_id, gang))
    metadata["labels"].update(queue, **{names.GANG_LABEL: names.label_value(gang)})
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            # Pods have names by the Service of the round.
            "network": {"enableDNSHostnames": False},
            "failurePolicy": {"maxRestarts": 0},
            **({"suspend": True} if queue else {}),
            "replicatedJobs": [_replicated(job) for job in jobs],
        },
    }
    return manifest if len(json.dumps(manifest)) <= MAX_SET_BYTES else None


def _replicated(job: Manifest) -> Manifest:
    """A Job as a JobSet has it: queued with its set alone, and an index does not name its pod."""
    labels = {key: value for key, value in job["metadata"]["labels"].items() if not key.startswith("kueue.")}
    spec = {key: value for key, value in job["spec"].items() if key != "suspend"}
    return {
        "name": names.host_name(job["metadata"]["annotations"][names.NODE_ANNOTATION]),
        "replicas": 1,
        "template": {
            "metadata": {"labels": labels, "annotations": job["metadata"]["annotations"]},
            "spec": {**spec, "completionMode": "NonIndexed"},
        },
    }


def jobs_of_set(manifest: Mapping[str, Any]) -> list[Manifest]:
    """The Jobs that the JobSet's controller is to make, as far as the watch needs them."""
    name, spec = manifest["metadata"]["name"], {"suspend": manifest["spec"].get("suspend", False)}
    jobs = []
    for job in manifest["spec"]["replicatedJobs"]:
        metadata = job["template"]["metadata"]
        labels = {**metadata["labels"], names.JOB_SET_LABEL: name}
        jobs.append({"metadata": {**metadata, "labels": labels, "name": f"{name}-{job['name']}-0"}, "spec": spec})
    return jobs
