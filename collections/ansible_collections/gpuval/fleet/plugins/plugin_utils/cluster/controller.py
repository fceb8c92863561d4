"""Manifests that run gpuval's controller in the cluster as a Job or CronJob: rights, files and pod. The image
`validate` runs the playbook, and its exit code tells the verdict. Pure."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core import yaml_file
from ..core.escape import one_line
from ..core.paths import ROLES
from ..core.step_options import StepOptions
from ..core.text import some_of
from ..ssh.findings import REACHABLE
from . import names, nodes, permissions, pod_settings
from .config_maps import MOST_PROGRAM_BYTES, encoded
from .kinds import Manifest
from .pod_settings import PodSettingsError

#: Labels of the objects of a controller in the cluster. Objects that it creates for a run have the run's labels.
LABELS = {names.NAME_LABEL: names.OWNER, names.COMPONENT_LABEL: names.CONTROLLER}
SELECTOR = ",".join(f"{key}={value}" for key, value in LABELS.items())
ACCOUNT = "gpuval-controller"
#: Annotation: name of the inventory that a controller validates.
INVENTORY_ANNOTATION = "gpuval.io/inventory"
#: Template of the controller's Job; folders in its pod: for work, and for inventory, settings and secrets.
JOB_FILE = ROLES / "kubernetes/files/controller.yml"
WORK, PROJECT = "/out", "/etc/gpuval"
#: Seconds that the controller's Job may last beyond its run: to open and prepare the run, then to judge and report it.
SLACK_SECONDS = 3600
#: Priority of the pods of recurring runs: below all other work.
PRIORITY = -1000
#: Valid names of Jobs, which become label values of their pods.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


class ControllerPodOptions(StepOptions):
    """The setting `kubernetes_controller`: image and pod settings of a controller that runs in the cluster."""

    image: str = ""
    image_pull_policy: str = ""
    image_pull_secrets: Sequence[str] = ()
    resources: Mapping[str, Any] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    #: Whether the controller may run on a node under test.
    share_nodes: bool = False
    run_as_user: int = 10001
    priority_class: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    #: The user's Secret with the store's keys as environment variables; empty: gpuval creates a Secret from settings.
    secret: str = ""
    #: PersistentVolumeClaim for the results; empty: the results are in the store alone.
    claim: str = ""


class NodeChoice(NamedTuple):
    """Where a controller can run in the cluster. `free`: names of nodes; `avoided`: hostname labels of nodes under
    test."""

    free: list[str]
    avoided: list[str]


@dataclass(frozen=True)
class ControllerOrder:
    """A controller to run in the cluster. `name`: of its Job (the run id) or CronJob. `files`: {"ConfigMap" or
    "Secret": {path below PROJECT: content}}. `arguments`: of ansible-playbook. `avoided`: hostname labels of the nodes
    under test. `inventory`: name of the inventory. `seconds`: time limit of a run."""

    name: str
    namespace: str
    pod: ControllerPodOptions
    files: Mapping[str, Mapping[str, bytes]] = field(repr=False)
    arguments: Sequence[str]
    avoided: Sequence[str]
    inventory: str
    seconds: float
    #: Cron schedule by which a CronJob starts runs; empty: a Job starts one run now.
    schedule: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the controller's objects. Clean removes those of a Job; those of a CronJob serve later runs."""
        return LABELS if self.schedule else {**LABELS, **names.owner_labels(), names.PARENT_LABEL: self.name}


def check_order(order: ControllerOrder) -> list[str]:
    """Warnings about a controller to run in the cluster. Raises PodSettingsError if it cannot run."""
    if not _NAME.fullmatch(order.name):
        raise PodSettingsError(
            f"run id {order.name}: in the cluster it names a Job: up to 63 small letters, digits and '-'"
        )
    if not order.pod.image:
        raise PodSettingsError(
            "the controller has no image: push that of docker/validate to a registry that the cluster reaches, and set "
            "kubernetes_controller.image to it, by digest"
        )
    if order.pod.run_as_user < 1:
        raise PodSettingsError(f"kubernetes_controller.run_as_user {order.pod.run_as_user}: must be 1 or more")
    for kind, files in order.files.items():
        size = sum(len(data) + len(path) for path, data in files.items())
        if size > MOST_PROGRAM_BYTES:
            largest = sorted(files, key=lambda path: -len(files[path]))
            listed = some_of((f"{path} {len(files[path])} bytes" for path in largest), 3)
            raise PodSettingsError(
                f"inventory and settings have {size} bytes, and a {kind} holds 1 MiB: remove files that no run needs; "
                f"largest: {listed}"
            )
    if _DIGEST.search(order.pod.image):
        return []
    return [f"{order.pod.image} names no digest: a further pod of the run may get another image; add @sha256:..."]


def hosts(all_nodes: Iterable[Mapping[str, Any]], under_test: Collection[str], pod: ControllerPodOptions) -> NodeChoice:
    """The nodes on which a controller can run in the cluster. `all_nodes`: Node objects; `under_test`: names of nodes.
    Raises PodSettingsError if no node is left."""
    free, avoided, reasons = [], [], []
    settings = pod_settings.PodSettings(tolerations=pod.tolerations, node_selector=pod.node_selector, resource="")
    for node_object in all_nodes:
        node = nodes.describe(node_object)
        finding = nodes.finding(node["name"], node, settings=settings)
        reason = "" if finding.state == REACHABLE else finding.message
        if node["name"] in under_test:
            avoided.append(node["hostname"] or node["name"])
            reason = reason or ("" if pod.share_nodes else "it is under test")
        elif reason:
            reasons.append(f"{node['name']}: {one_line(reason, 120)}")
        if not reason:
            free.append(node["name"])
    if not free:
        others = f"; others: {some_of(reasons, 3, '; ')}" if reasons else ""
        raise PodSettingsError(
            f"no node is left for the controller beside {len(avoided)} under test{others}. Add a node, tolerate a "
            "taint in kubernetes_controller.tolerations, or set kubernetes_controller.share_nodes: true"
        )
    return NodeChoice(free, sorted(avoided))


def rights(namespace: str, *, marks: bool, volumes: bool) -> list[Manifest]:
    """The ServiceAccount, Roles and bindings that a controller in the cluster needs, from role.yml. `marks`: it labels
    nodes with verdicts; `volumes`: it creates PersistentVolumes."""
    optional = {"gpuval-namespace": False, "gpuval-shell": False, "gpuval-marks": marks, "gpuval-volumes": volumes}
    made = [item for item in permissions.documents(namespace) if optional.get(item["metadata"]["name"], True)]
    for role in [item for item in made if optional.get(item["metadata"]["name"])]:
        kind, name = role["kind"], role["metadata"]["name"]
        scope = {key: value for key, value in role["metadata"].items() if key == "namespace"}
        binding = {"apiVersion": role["apiVersion"], "kind": f"{kind}Binding"}
        binding["metadata"] = {"name": name + ("" if scope else f"-{namespace}"), **scope}
        binding["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        binding["subjects"] = [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}]
        made.append(binding)
    return made


def priority_class(name: str) -> Manifest:
    """A PriorityClass below all other work, which preempts nothing."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": PRIORITY,
        "preemptionPolicy": "Never",
        "description": "Work of gpuval on idle nodes, which gives way to all other work.",
    }


def objects(order: ControllerOrder) -> list[Manifest]:
    """Manifests of a controller in the cluster: its files, then its Job or CronJob, in the order to apply them."""
    made = []
    for kind, files in order.files.items():
        data = {_key(path): encoded(content) for path, content in files.items()}
        field_name = "binaryData" if kind == "ConfigMap" else "data"
        made.append(names.core_object(kind, _metadata(order, _files_name(order)), **{field_name: data}))
    job = _job_spec(order)
    if not order.schedule:
        return [*made, {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(order, order.name), "spec": job}]
    spec = {
        "schedule": order.schedule,
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": 600,
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 3,
        "jobTemplate": {"metadata": {"labels": order.labels}, "spec": job},
    }
    cron = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": _metadata(order, order.name), "spec": spec}
    return [*made, cron]


def _key(path: str) -> str:
    """The ConfigMap or Secret key for a file path. Keys allow fewer characters than paths: a hash makes them unique."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", path)[-200:] + f".{names.digest(path, 8)}"


def _files_name(order: ControllerOrder) -> str:
    return names.run_name(order.name, names.CONTROLLER)


def _metadata(order: ControllerOrder, name: str) -> Manifest:
    annotations = {INVENTORY_ANNOTATION: order.inventory}
    return {"name": name, "namespace": order.namespace, "labels": order.labels, "annotations": annotations}


def _job_spec(order: ControllerOrder) -> Manifest:
    pod, job = order.pod, yaml_file.load(JOB_FILE.read_text(encoding="utf-8"))
    spec = job["template"]["spec"]
    (container,), (project, work, _tmp) = spec["containers"], spec["volumes"]
    job["activeDeadlineSeconds"] = math.ceil(order.seconds + SLACK_SECONDS)
    job["template"]["metadata"] = {
        "labels": {**pod_settings.LABELS, **pod.labels, **order.labels},
        "annotations": {**pod_settings.ANNOTATIONS, **pod.annotations},
    }
    spec["securityContext"] |= dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), pod.run_as_user)
    project["projected"]["sources"] = _sources(order)
    if pod.claim:
        del work["emptyDir"]
        work["persistentVolumeClaim"] = {"claimName": pod.claim}
    run: Manifest = {"value": order.name}
    if order.schedule:
        run = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['job-name']"}}}
    variables = [{"name": name, "value": value} for name, value in pod.environment.items()]
    container |= {
        "image": pod.image,
        "args": [names.CONTROLLER, *(["--clean"] if order.schedule else []), "--", *order.arguments],
        "env": [*variables, {"name": "GPUVAL_CONTROLLER_RUN", **run}],
    }
    chosen = {
        "imagePullPolicy": pod.image_pull_policy,
        "envFrom": [{"secretRef": {"name": name}} for name in [pod.secret] if name],
        "resources": dict(pod.resources),
    }
    container.update({key: value for key, value in chosen.items() if value})
    chosen = {
        "affinity": {"nodeAffinity": _affinity(order)},
        "nodeSelector": dict(pod.node_selector),
        "tolerations": list(pod.tolerations),
        "imagePullSecrets": [{"name": name} for name in pod.image_pull_secrets],
        "priorityClassName": pod.priority_class,
    }
    spec.update({key: value for key, value in chosen.items() if value})
    return dict(job)


def _sources(order: ControllerOrder) -> list[Manifest]:
    """Sources of the projected volume that puts each file of `order` at its path in the controller's pod."""
    name, source_of = _files_name(order), {"ConfigMap": "configMap", "Secret": "secret"}
    return [
        {source_of[kind]: {"name": name, "items": [{"key": _key(path), "path": f"project/{path}"} for path in files]}}
        for kind, files in order.files.items()
    ]


def _affinity(order: ControllerOrder) -> Manifest:
    """Node affinity that keeps the controller off nodes under test; if it may share them, it only prefers others."""
    if not order.avoided:
        return {}
    term = {"matchExpressions": [{"key": names.HOSTNAME_LABEL, "operator": "NotIn", "values": sorted(order.avoided)}]}
    if order.pod.share_nodes:
        return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
