"""The controller as a Job or CronJob of the cluster: its rights, files and pod, whose image, `validate`, runs the
playbook and ends as the verdict does. Pure."""

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

#: Of each object of a controller; what it makes for its run has the labels of a run.
LABELS = {names.NAME_LABEL: names.OWNER, names.COMPONENT_LABEL: names.CONTROLLER}
SELECTOR = ",".join(f"{key}={value}" for key, value in LABELS.items())
ACCOUNT = "gpuval-controller"
#: The name of the inventory that a controller validates.
INVENTORY_ANNOTATION = "gpuval.io/inventory"
#: The Job, with the folders in which the controller works, and in which its inventory, settings and secrets are.
JOB_FILE = ROLES / "kubernetes/files/controller.yml"
WORK, PROJECT = "/out", "/etc/gpuval"
#: Beside what the run may take: opening and preparing it before, judging and reporting it after.
SLACK_SECONDS = 3600
#: Of the pods of recurring runs: below all other work.
PRIORITY = -1000
#: Names of Jobs, which are labels of their pods, too.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


class ControllerPodOptions(StepOptions):
    """`kubernetes_controller`: the controller's image, and what else its pod needs."""

    image: str = ""
    image_pull_policy: str = ""
    image_pull_secrets: Sequence[str] = ()
    resources: Mapping[str, Any] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    #: Whether it may run on a node under test.
    share_nodes: bool = False
    run_as_user: int = 10001
    priority_class: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Secret of the user with the keys of the store as environment variables; empty: one is made.
    secret: str = ""
    #: PersistentVolumeClaim for the results; empty: they are in the store alone.
    claim: str = ""


class NodeChoice(NamedTuple):
    """`free`: names of the nodes on which the controller can run; `avoided`: hostname labels of those under test."""

    free: list[str]
    avoided: list[str]


@dataclass(frozen=True)
class ControllerOrder:
    """What the controller validates. `name`: of its Job, which is the run's id, or of its CronJob. `files`: by kind of
    the object that has them, ConfigMap or Secret, and by path below PROJECT. `arguments`: those of ansible-playbook;
    `avoided`: hostname labels of the nodes under test; `inventory`: its name; `seconds`: what a run may take."""

    name: str
    namespace: str
    pod: ControllerPodOptions
    files: Mapping[str, Mapping[str, bytes]] = field(repr=False)
    arguments: Sequence[str]
    avoided: Sequence[str]
    inventory: str
    seconds: float
    #: When a CronJob starts the run; empty: a Job does, now.
    schedule: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """Of all its objects. A clean of the run removes those of a Job; those of a CronJob serve the next run."""
        return LABELS if self.schedule else {**LABELS, **names.owner_labels(), names.PARENT_LABEL: self.name}


def check_order(order: ControllerOrder) -> list[str]:
    """Remarks on an order that works. Raises PodSettingsError for one that cannot."""
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


def hosts(items: Iterable[Mapping[str, Any]], under_test: Collection[str], pod: ControllerPodOptions) -> NodeChoice:
    """Where the controller can run. `items`: all Nodes; `under_test`: names. Raises PodSettingsError if there is no
    node."""
    free, avoided, reasons = [], [], []
    settings = pod_settings.PodSettings(tolerations=pod.tolerations, node_selector=pod.node_selector, resource="")
    for item in items:
        node = nodes.describe(item)
        found = nodes.finding(node["name"], node, settings=settings)
        reason = "" if found.state == REACHABLE else found.message
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
    """The ServiceAccount, Roles and bindings that the controller's runs need, from the Role's file."""
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
    """The controller's files and its Job or CronJob, in the order in which they are to be applied."""
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
    """The key of a file in a ConfigMap or Secret; names of files have more characters than keys."""
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
    """What the project's folder has: each file at its path."""
    name, source_of = _files_name(order), {"ConfigMap": "configMap", "Secret": "secret"}
    return [
        {source_of[kind]: {"name": name, "items": [{"key": _key(path), "path": f"project/{path}"} for path in files]}}
        for kind, files in order.files.items()
    ]


def _affinity(order: ControllerOrder) -> Manifest:
    """Keep off the nodes under test; where these may be shared, prefer others."""
    if not order.avoided:
        return {}
    term = {"matchExpressions": [{"key": names.HOSTNAME_LABEL, "operator": "NotIn", "values": sorted(order.avoided)}]}
    if order.pod.share_nodes:
        return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
