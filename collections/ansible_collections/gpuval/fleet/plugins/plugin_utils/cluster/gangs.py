"""Kubernetes objects for multi-node rounds: DNS names and SSH keys by which the pods of a gang reach each other, Jobs
that Kueue admits one by one, and JobSets, by which it admits a gang whole."""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..gang.document import FOLDER, SEARCH
from ..runs.folder import RunFolder
from . import names
from .api import Cluster
from .config_maps import encoded
from .kinds import Manifest
from .pod_settings import PodSettings, PodSettingsError, for_gang

#: Suffixes of the names of a round's headless Service, and of its Secret with SSH keys.
SERVICE, KEYS_SECRET = "gangs", "keys"
#: Folder of the round's SSH keys within the pod's folder of input files; the runner has the same name.
KEYS = "ssh"
#: Key files by their names in the Secret, with the file modes that ssh requires.
KEY_FILES = {"token": 0o400, "id_ed25519": 0o400, "id_ed25519.pub": 0o444}
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
MAX_SECONDS_LABEL = "kueue.x-k8s.io/max-exec-time-seconds"
#: Seconds by which the queue's time limit exceeds the Job's deadline: a Job ended by its queue would look preempted.
MAX_SECONDS_SLACK = 60
#: Kueue's topology annotations of pods, by their keys in gpuval_pods.kueue.
TOPOLOGY = {
    "required_topology": "kueue.x-k8s.io/podset-required-topology",
    "preferred_topology": "kueue.x-k8s.io/podset-preferred-topology",
}
#: Kueue's API group, and the maximum pod sets of a workload before Kueue 0.19. Each member of a gang is a pod set,
#: since it is pinned to a node.
KUEUE, EARLIER_POD_SETS = "kueue.x-k8s.io", 8
#: Maximum bytes of a JobSet: etcd accepts objects of up to 1.5 MiB.
MAX_SET_BYTES = 1_000_000


@dataclass(frozen=True)
class GangRound:
    """A multi-node round: `parent`, the id of the run that contains the round, and the round's name."""

    parent: str
    name: str

    @property
    def is_of_a_search(self) -> bool:
        return re.fullmatch(rf"{SEARCH}-\d+", self.name) is not None


def round_of(folder: RunFolder) -> GangRound | None:
    """The multi-node round of a folder `<run>/gangs/<round>`; None for the folder of a usual run."""
    parent = RunFolder(folder.path.parent.parent)
    if folder.path.parent.name != FOLDER or not parent.run_file.exists():
        return None
    return GangRound(parent.read_run()["run_id"], folder.path.name)


def address(run_id: str, node: str, namespace: str) -> str:
    """The DNS name by which the other pods of a round reach a node's pod, without the cluster's domain."""
    return f"{names.host_name(node)}.{names.run_name(run_id, SERVICE)}.{namespace}.svc"


def member_address(
    run_id: str, node: str, namespace: str, settings: PodSettings, addresses: Mapping[str, str] | None = None
) -> str:
    """The address at which a gang reaches the member `node`: its pod's DNS name, or with host network the InternalIP of
    `addresses`, {type: address} of the Node object. Raises PodSettingsError."""
    if not for_gang(settings).host_network:
        return address(run_id, node, namespace)
    ip = (addresses or {}).get("InternalIP")
    if not ip:
        raise PodSettingsError(f"{node}: its Node object names no InternalIP, at which others reach its host network")
    return ip


def service(run_id: str, namespace: str, port: int) -> Manifest:
    """The headless Service of a round: gives each pod of the round a DNS name, also before all pods are ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": names.run_labels(run_id),
        # Pods reach each other at any port, but some DNS servers ignore a Service without ports.
        "ports": [{"name": "rendezvous", "port": port}],
    }
    return names.core_object("Service", names.metadata(run_id, namespace, names.run_name(run_id, SERVICE)), spec=spec)


def keys_secret(run_id: str, namespace: str, keys: Mapping[str, str]) -> Manifest:
    """The Secret with the SSH keys that all members of a round share. `keys`: {file name: text}. Raises
    PodSettingsError if a file is missing."""
    missing = sorted(KEY_FILES.keys() - keys.keys())
    if missing:
        raise PodSettingsError(f"the round {run_id} has no {', '.join(missing)}: its keys were not made, or forgotten")
    data = {name: encoded(keys[name].encode()) for name in KEY_FILES}
    metadata = names.metadata(run_id, namespace, names.run_name(run_id, KEYS_SECRET))
    return names.core_object("Secret", metadata, type="Opaque", immutable=True, data=data)


def labelled(manifest: Mapping[str, Any], gang_round: GangRound | None) -> Manifest:
    """A manifest with the labels of its multi-node round, also for pods made of it; unchanged without `gang_round`."""
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
    """A Job, changed so that it is suspended until its Kueue queue admits it. `hostname`: its node's label
    kubernetes.io/hostname, empty if unknown."""
    kueue, metadata, spec = settings.kueue, job["metadata"], job["spec"]
    most = spec["activeDeadlineSeconds"] + MAX_SECONDS_SLACK
    metadata["labels"] |= {QUEUE_LABEL: settings.queue, MAX_SECONDS_LABEL: str(most)}
    if kueue.get("priority_class"):
        metadata["labels"][PRIORITY_LABEL] = kueue["priority_class"]
    metadata["annotations"][names.QUEUE_ANNOTATION] = settings.queue
    spec["suspend"], template = True, spec["template"]
    template["metadata"]["annotations"] |= {name: kueue[key] for key, name in TOPOLOGY.items() if kueue.get(key)}
    if hostname:  # Kueue's topology ignores node affinity, and would choose another node
        template["spec"].setdefault("nodeSelector", {})[names.HOSTNAME_LABEL] = hostname
    return job


def max_pod_sets(cluster: Cluster) -> int:
    """How many pod sets the cluster's Kueue accepts in a workload, by its API's schema. Every user may read that."""
    version = cluster.discover(f"/apis/{KUEUE}").get("preferredVersion", {}).get("version", "v1beta1")
    schemas = cluster.discover(f"/openapi/v3/apis/{KUEUE}/{version}").get("components", {}).get("schemas", {})
    workload: dict[str, Any] = next((schema for name, schema in schemas.items() if name.endswith(".Workload")), {})
    for key in ("properties", "spec", "properties", "podSets"):
        workload = workload.get(key, {})
    most = workload.get("maxItems")
    return most if isinstance(most, int) else EARLIER_POD_SETS


def job_set(
    run_id: str, namespace: str, gang: str, jobs: Sequence[Manifest], max_queued: int = EARLIER_POD_SETS
) -> Manifest | None:
    """The JobSet of a gang's Jobs; None if they are too many for a JobSet, or more than `max_queued` for their
    queue."""
    queue = {key: value for job in jobs for key, value in job["metadata"]["labels"].items() if key.startswith("kueue.")}
    if queue and len(jobs) > max_queued:
        return None
    # A short name, since the names of the set's Jobs begin with it.
    metadata = names.metadata(run_id, namespace, f"{names.OWNER}-{names.digest(f'{run_id} {gang}', 10)}")
    metadata["labels"].update(queue, **{names.GANG_LABEL: names.label_value(gang)})
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            # The JobSet needs no Service: that of the round gives pods their DNS names.
            "network": {"enableDNSHostnames": False},
            "failurePolicy": {"maxRestarts": 0},
            **({"suspend": True} if queue else {}),
            "replicatedJobs": [_replicated(job) for job in jobs],
        },
    }
    return manifest if len(json.dumps(manifest)) <= MAX_SET_BYTES else None


def _replicated(job: Manifest) -> Manifest:
    """A Job as a JobSet contains it: without queue labels, which the JobSet has, and without an index in pod names."""
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
    """The Jobs that the JobSet's controller will make of a JobSet, with the fields that the watch needs."""
    name, spec = manifest["metadata"]["name"], {"suspend": manifest["spec"].get("suspend", False)}
    jobs = []
    for job in manifest["spec"]["replicatedJobs"]:
        metadata = job["template"]["metadata"]
        labels = {**metadata["labels"], names.JOB_SET_LABEL: name}
        jobs.append({"metadata": {**metadata, "labels": labels, "name": f"{name}-{job['name']}-0"}, "spec": spec})
    return jobs
