"""What the pods of a round of gangs have beside those of a node alone: names by which they find each other, keys, and
their queue: Jobs that Kueue admits, and the JobSet of a gang, which it admits whole. Pure.

A round is a run of its own below its run, and so are its objects; their labels name both.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..gang.document import FOLDER, SEARCH
from ..runs.folder import RunFolder
from . import names
from .config_maps import encoded
from .kinds import Manifest
from .pod_settings import PodSettings, PodSettingsError, for_gang

#: Where in what a pod is given the keys of its round are, as the runner has it.
KEYS = "ssh"
#: By name in the Secret, with the mode in which ssh takes it.
KEY_FILES = {"token": 0o400, "id_ed25519": 0o400, "id_ed25519.pub": 0o444}
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


@dataclass(frozen=True)
class GangRound:
    """A round of gangs: the id of the run that it is part of, and its name in it."""

    parent: str
    name: str

    @property
    def is_of_a_search(self) -> bool:
        return re.fullmatch(rf"{SEARCH}-\d+", self.name) is not None


def round_of(folder: RunFolder) -> GangRound | None:
    """The round that a folder `<run>/gangs/<round>` is of; None for a run that is none."""
    parent = RunFolder(folder.path.parent.parent)
    if folder.path.parent.name != FOLDER or not parent.run_file.exists():
        return None
    return GangRound(parent.read_run()["run_id"], folder.path.name)


def service_name(run_id: str) -> str:
    """Of the headless Service of a round."""
    return names.run_name(run_id, "gangs")


def keys_name(run_id: str) -> str:
    """Of the Secret with the keys of a round."""
    return names.run_name(run_id, "keys")


def address(run_id: str, node: str, namespace: str) -> str:
    """The name by which the others of a round reach a node's pod; the pods' resolver adds the cluster's domain."""
    return f"{names.host_name(node)}.{service_name(run_id)}.{namespace}.svc"


def member_address(
    run_id: str, node: str, namespace: str, settings: PodSettings, addresses: Mapping[str, str] | None = None
) -> str:
    """As run.json of a round names a member: its pod, or the node itself where its pods have the node's network.

    `addresses` are those of the node by type, as `kubernetes_node.addresses` has them. Raises PodSettingsError.
    """
    if not for_gang(settings).host_network:
        return address(run_id, node, namespace)
    ip = (addresses or {}).get("InternalIP")
    if not ip:
        raise PodSettingsError(f"{node}: its Node object names no InternalIP, at which others reach its host network")
    return ip


def service(run_id: str, namespace: str, port: int) -> Manifest:
    """The headless Service of a round: it gives each of its pods a name, also before all of them are ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": names.run_labels(run_id),
        # Pods reach each other at any; a Service that names none is none for some name servers.
        "ports": [{"name": "rendezvous", "port": port}],
    }
    return names.core_object("Service", names.metadata(run_id, namespace, service_name(run_id)), spec=spec)


def keys_secret(run_id: str, namespace: str, keys: Mapping[str, str]) -> Manifest:
    """The keys of a round, which are those of each of its members. Raises PodSettingsError where one is missing."""
    missing = sorted(KEY_FILES.keys() - keys.keys())
    if missing:
        raise PodSettingsError(f"the round {run_id} has no {', '.join(missing)}: its keys were not made, or forgotten")
    data = {name: encoded(keys[name].encode()) for name in KEY_FILES}
    metadata = names.metadata(run_id, namespace, keys_name(run_id))
    return names.core_object("Secret", metadata, type="Opaque", immutable=True, data=data)


def labelled(manifest: Mapping[str, Any], gang_round: GangRound | None) -> Manifest:
    """An object, and the pods it makes, with the labels of the round that it is part of; of none it stays as it is."""
    if gang_round is None:
        return dict(manifest)
    result = copy.deepcopy(dict(manifest))
    values = {names.PARENT_LABEL: gang_round.parent, names.ROUND_LABEL: gang_round.name}
    for labelled_object in (result, result.get("spec", {}).get("template", {})):
        if metadata := labelled_object.get("metadata"):
            labels = {label: names.label_value(text) for label, text in values.items()}
            metadata["labels"] = {**metadata.get("labels", {}), **labels}
    return result


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
    # Short, since its name begins the names of its Jobs.
    metadata = names.metadata(run_id, namespace, f"{names.OWNER}-{names.digest(f'{run_id} {gang}', 10)}")
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
