"""Kubernetes manifests of a run, to apply or to render: built from settings, plans and signed URLs. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..records.failure_classes import row_of
from ..runs import plans
from . import config_maps, dra, gangs, names, nodes, pod_settings, pod_volumes
from .config_maps import MOST_BYTES, PlanPlace, compact_json, encoded
from .dra import NodeDevices
from .kinds import Manifest
from .pod_settings import CPU, PodSettings, PodSettingsError, for_gang
from .pod_volumes import GIVEN, MODELS, SHM, STATE

MACHINE_ID = "machine-id"
#: File beside the plan that lists the members of the node's gang; the runner has the same name.
GANG_FILE = "gang.json"
#: Seconds that the runner needs beyond a stage's grace period, to end leftover processes and to finish its uploads.
END_SECONDS = 75
SYS_ADMIN = "SYS_ADMIN"
#: Options of a container engine that pods do not have, and what to do instead.
NOT_IN_PODS = {
    "ulimits": "limits of processes come from the nodes' container runtime",
    "user": "set gpuval_pods.run_as_user, one for all stages, which share their state",
    "devices": "devices come from device plugins: name their resource in gpuval_pods.resources",
    "ipc": "a pod's stages have /dev/shm of their own: set shm_bytes",
    "arguments": "there is no engine to give them to",
    "ssh_keys": "keys of the run are for SSH hosts only",
}


@dataclass(frozen=True)
class PodTarget:
    """The cluster's node that a pod is pinned to. `hostname`: the node's label kubernetes.io/hostname. `allocatable`:
    {extended resource: count}, None if unknown. `devices`: GPUs that the node publishes by DRA."""

    name: str
    hostname: str = ""
    machine_id: str = ""
    allocatable: Mapping[str, int] | None = None
    devices: NodeDevices = field(default_factory=NodeDevices)


@dataclass(frozen=True)
class ClusterRun:
    """The shared objects to which a run's Jobs refer. `code`: the ConfigMap with runner and workloads. `gangs`: by gang
    name, where its list of members is. `channels`: by node name, the ResourceClaimTemplate of its ComputeDomain."""

    run_id: str
    namespace: str
    code: str
    gangs: Mapping[str, PlanPlace] = field(default_factory=dict)
    channels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PodAttempt:
    """One attempt of a node's plan, run as a pod. `store`: document store.json (signed URLs), empty if pods cannot
    reach the store. `earlier`: records of earlier attempts. `secrets`: of user jobs, {stage: {variable: value}}."""

    target: PodTarget
    settings: PodSettings
    plan: Mapping[str, Any]
    sku: str = "auto"
    store: Mapping[str, Any] = field(default_factory=dict, repr=False)
    rclone_config: str = field(default="", repr=False)
    ca: str = ""
    earlier: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)


def target_of(name: str, description: Mapping[str, Any]) -> PodTarget:
    """The pod target for the node `name`. `description`: from `nodes.describe`, empty if the cluster lacks the node."""
    allocatable = description.get("allocatable")
    if allocatable is not None:  # extended resources are whole numbers
        allocatable = {key: int(value) for key, value in allocatable.items() if "/" in key and str(value).isdigit()}
    hostname, machine_id = (description.get(key, "") for key in ("hostname", "machine_id"))
    devices = nodes.devices_of(description)
    return PodTarget(description.get("name") or name, hostname, machine_id, allocatable, devices)


def pod_plan(plan: Mapping[str, Any], settings: PodSettings) -> dict[str, Any]:
    """A node's plan, adapted for a pod: every stage has an image and a Python interpreter, and no stage brings images
    to the node. Raises PodSettingsError for options that pods do not have."""
    gang = plan.get("gang")
    if gang:
        settings = for_gang(settings)
    stages = [
        _pod_stage(stage, settings, has_keys=bool(gang)) for stage in plan["stages"] if stage["name"] != plans.IMAGE
    ]
    if not stages:
        raise PodSettingsError("the plan has no stage but image, and the cluster pulls images by itself")
    models = MODELS
    if {"claim", "nfs"} & set(settings.model_cache):  # pods of other nodes write into this volume, too
        models = f"{MODELS}/{names.label_value(plan['node'])}"
    return {**plan, "runtime": "pod", "python": settings.python, "models_dir": models, "images": {}, "stages": stages}


def namespace(name: str, jobs: Iterable[Manifest] = ()) -> Manifest:
    """The Namespace, with the Pod Security Standard that `jobs` need. It has no run label, so that no clean deletes
    it."""
    levels = [security_level(job["spec"]["template"]["spec"]) for job in jobs]
    labels = names.owner_labels()
    if levels:
        labels["pod-security.kubernetes.io/enforce"] = max(levels, key=LEVELS.index)
    return names.core_object("Namespace", {"name": name, "labels": labels})


def security_level(spec: Mapping[str, Any]) -> str:
    """The strictest Pod Security Standard that allows a pod of this spec: restricted, baseline or privileged."""
    volumes = {kind for volume in spec["volumes"] for kind in volume}
    contexts = [container["securityContext"] for container in (*spec.get("initContainers", ()), *spec["containers"])]
    added = {name for context in contexts for name in context["capabilities"].get("add", ())}
    privileged = any("privileged" in context for context in contexts)
    if privileged or spec.get("hostNetwork") or "hostPath" in volumes or added - _BASELINE:
        return "privileged"
    plain = "nfs" not in volumes and not added - {"NET_BIND_SERVICE"}
    return "restricted" if plain and spec["securityContext"].get("runAsNonRoot") else "baseline"


LEVELS = ("restricted", "baseline", "privileged")
_BASELINE = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}


def secret_of(run: ClusterRun, item: PodAttempt) -> Manifest:
    """The Secret for one attempt on one node: signed URLs, read key for models, machine id, secrets of user jobs."""
    node, content = item.plan["node"], _content(item)
    content |= {
        _secret_key(stage, name): value for stage, values in item.secrets.items() for name, value in values.items()
    }
    size = sum(len(text.encode()) for text in content.values())
    if size > MOST_BYTES:
        raise PodSettingsError(
            f"the Secret of {node} has {size} bytes, and a Secret holds 1 MiB: validate the node in a new run"
        )
    data = {key: encoded(text.encode()) for key, text in content.items()}
    metadata = names.node_metadata(run.run_id, run.namespace, node, item.plan["attempt"])
    return names.core_object("Secret", metadata, type="Opaque", immutable=True, data=data)


def _secret_key(stage: str, name: str) -> str:
    return f"secret.{stage}.{name}"


def _content(item: PodAttempt) -> dict[str, str]:
    """The files that all stages of a pod get: {file name: text}."""
    machine_id = item.target.machine_id
    documents = {f"record-{names.container_name(record['stage'])}.json": record for record in item.earlier}
    texts = {
        "store.json": compact_json(item.store) if item.store else "",
        "rclone.conf": item.rclone_config,
        "ca.pem": item.ca,
        **{name: compact_json(record) for name, record in documents.items()},
    }
    # An empty machine-id file hides that of the image.
    return {MACHINE_ID: f"{machine_id}\n" if machine_id else "", **{name: text for name, text in texts.items() if text}}


def job_of(run: ClusterRun, item: PodAttempt, plan_place: PlanPlace) -> Manifest:
    """The Kubernetes Job for one attempt on one node. The attempt's plan comes from :func:`pod_plan`; `plan_place`: the
    ConfigMap and key that hold the plan."""
    settings, plan, gang = item.settings, item.plan, item.plan.get("gang")
    metadata = names.node_metadata(run.run_id, run.namespace, plan["node"], plan["attempt"])
    if gang:
        settings = for_gang(settings)
        metadata["labels"][names.GANG_LABEL] = names.label_value(gang["name"])
    metadata["labels"] = {**settings.labels, **metadata["labels"]}
    metadata["annotations"] = {**settings.annotations, **metadata["annotations"]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            "activeDeadlineSeconds": math.ceil(plan["deadline_seconds"] + settings.deadline_slack_seconds),
            "template": {
                "metadata": {
                    "labels": {**pod_settings.LABELS, **metadata["labels"]},
                    "annotations": {**pod_settings.ANNOTATIONS, **metadata["annotations"]},
                },
                "spec": _pod_spec(run, settings, item, plan_place),
            },
        },
    }
    return gangs.queued(job, settings, item.target.hostname) if _is_queued(item) else job


def _is_queued(item: PodAttempt) -> bool:
    """Whether a Kueue queue admits the Job of an attempt."""
    return bool(item.settings.queue and (item.plan.get("gang") or item.settings.kueue.get("own_stages")))


def claim_template_of(run_id: str, namespace_name: str, item: PodAttempt) -> Manifest | None:
    """The ResourceClaimTemplate by which an attempt's pod gets its GPUs; None if the pod requests them as an extended
    resource, or requests none."""
    devices = _requested_devices(item)
    if devices is None or not dra.is_claimed(devices, item.settings):
        return None
    if not devices.device_class:
        raise PodSettingsError(f"{item.target.name}: {row_of('device_class_missing').steps}")
    return dra.claim_template(run_id, namespace_name, devices, is_queued=_is_queued(item))


def _requested_devices(item: PodAttempt) -> NodeDevices | None:
    target = item.target
    devices = dra.requested(target.devices, item.settings, item.sku, target.allocatable)
    is_demanded = devices is None and item.settings.always_claims and item.sku != CPU
    if is_demanded and (item.sku != "auto" or item.plan["accelerator"]["count"]):
        raise PodSettingsError(
            f"{target.name}: gpuval_pods.devices is dra, and the node publishes no GPUs by DRA: check its DRA driver"
        )
    return devices


def trial_pod(namespace_name: str, settings: PodSettings, images: Sequence[str]) -> Manifest:
    """A pod as a run with these settings would create it, for a dry run against the namespace's policies."""
    name = "gpuval-prepare"
    stages = [
        {"name": f"trial-{number}", "image": image, "container": {"python": settings.python}, "grace_seconds": 1}
        for number, image in enumerate(images, 1)
    ]
    plan = {"node": name, "attempt": 1, "models_dir": MODELS, "stages": stages}
    item = PodAttempt(PodTarget(name), replace(settings, resource=""), plan)
    metadata = {
        "name": name,
        "namespace": namespace_name,
        "labels": {**pod_settings.LABELS, **settings.labels, **names.owner_labels()},
        "annotations": {**pod_settings.ANNOTATIONS, **settings.annotations},
    }
    spec = _pod_spec(ClusterRun(name, namespace_name, name), item.settings, item, PlanPlace(name, "plan"))
    return names.core_object("Pod", metadata, spec=spec)


def shared_by_round(
    run_id: str, namespace_name: str, round_keys: Mapping[str, str], shared: Mapping[str, Mapping[str, Any]]
) -> tuple[list[Manifest], dict[str, PlanPlace]]:
    """Objects that all pods of a multi-node round share: each gang's list of members, SSH keys (`round_keys`, {file
    name: text}), a Service. Also returns by gang name where the list is. `shared`: {gang name: gang document}."""
    maps, places = config_maps.gang_config_maps(run_id, namespace_name, shared)
    ports = [gang["port"] for gang in shared.values()]
    if not ports:
        return [], {}
    keys = gangs.keys_secret(run_id, namespace_name, round_keys)
    return [*maps, keys, gangs.service(run_id, namespace_name, ports[0])], places


def everything(
    run_id: str,
    namespace_name: str,
    archives: Mapping[str, bytes],
    attempts: Sequence[PodAttempt],
    make_namespace: bool = False,
) -> list[Manifest]:
    """All Kubernetes objects of a run, in the order to apply them. `archives`: zips of `runner` and `workloads`."""
    programs = config_maps.code_config_map(run_id, namespace_name, archives)
    run = ClusterRun(run_id, namespace_name, programs["metadata"]["name"])
    maps, places = config_maps.plan_config_maps(run_id, namespace_name, [item.plan for item in attempts])
    volumes = {
        (manifest["kind"], manifest["metadata"]["name"]): manifest
        for item in attempts
        for manifest in pod_volumes.model_volumes(run_id, namespace_name, item.settings)
    }
    made = [claim_template_of(run_id, namespace_name, item) for item in attempts]
    templates = {template["metadata"]["name"]: template for template in made if template}
    jobs = [job_of(run, item, places[item.plan["node"], item.plan["attempt"]]) for item in attempts]
    shared = [programs, *maps, *volumes.values(), *templates.values()]
    objects = [*shared, *(secret_of(run, item) for item in attempts), *jobs]
    return [namespace(namespace_name, jobs), *objects] if make_namespace else objects


def _pod_stage(stage: Mapping[str, Any], settings: PodSettings, *, has_keys: bool) -> dict[str, Any]:
    name, wants = stage["name"], dict(stage.get("container") or {})
    image = stage["image"] or settings.image
    if not image:
        raise PodSettingsError(
            f"stage {name} has no image, and in a cluster every stage runs in one: build and push them (`make "
            "build REGISTRY=HOST/PATH`), or set gpuval_images, or gpuval_pods.image (any with Python 3.9 or newer)"
        )
    if name.endswith("_"):
        raise PodSettingsError(f"stage {name}: in a cluster the name of a stage may not end with _")
    for key, instead in NOT_IN_PODS.items():
        if wants.get(key) and not (has_keys and key == "ssh_keys"):
            raise PodSettingsError(f"stage {name} asks for container.{key}, which a pod does not have: {instead}")
    if wants.get("network") and not (wants["network"] == "host" and settings.host_network):
        raise PodSettingsError(
            f"stage {name} asks for container.network, which a pod does not have: set gpuval_pods.host_network"
        )
    container = {**wants, "python": wants.get("python") or settings.python}
    needs = [needed for needed in stage["needs"] if needed != plans.IMAGE]
    return {**stage, "image": image, "container": container, "needs": needs}


def _pod_spec(run: ClusterRun, settings: PodSettings, item: PodAttempt, plan_place: PlanPlace) -> dict[str, Any]:
    """The pod spec of an attempt. `settings`: the attempt's settings, adjusted for a gang if the plan has one."""
    plan, target = item.plan, item.target
    devices, template = _requested_devices(item), claim_template_of(run.run_id, run.namespace, item)
    if devices:
        resource = devices.resource or pod_settings.RESOURCES[devices.vendor]
        gpus = {} if template else {resource: str(devices.count)}
    else:
        offered = {} if settings.always_claims else target.allocatable
        resource = pod_settings.resource_of(settings, item.sku, offered)
        gpus = _gpus(resource, target, plan)
    templates = {dra.GPUS: template["metadata"]["name"]} if template else {}
    if channel := run.channels.get(plan["node"]):
        templates[dra.CHANNEL] = channel
    (model_cache,) = settings.model_cache.items()
    volumes, mounts = pod_volumes.host_volumes(plan["stages"], settings)
    containers = [_container(run, settings, plan, stage, gpus, mounts[stage["name"]]) for stage in plan["stages"]]
    for container in containers if templates else ():  # stages use the pod's claims one after another
        container["resources"]["claims"] = [{"name": name} for name in templates]
    identity: dict[str, Any] = {"runAsUser": settings.run_as_user, "runAsGroup": settings.run_as_user}
    if settings.run_as_user:
        identity |= {"runAsNonRoot": True, "fsGroup": settings.run_as_user, "fsGroupChangePolicy": "OnRootMismatch"}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [target.name]}]}
    if target.hostname:
        term["matchExpressions"] = [{"key": names.HOSTNAME_LABEL, "operator": "In", "values": [target.hostname]}]
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(max(s["grace_seconds"] for s in plan["stages"])) + END_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**identity, "seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": {"nodeAffinity": affinity},
        "tolerations": pod_settings.tolerations(settings, resource),
        "containers": containers[-1:],
        "volumes": [
            {"name": "given", "projected": _given_volume(run, item, plan_place)},
            {"name": "state", "emptyDir": {}},
            {"name": "models", **pod_volumes.volume_of(run.run_id, *model_cache, "DirectoryOrCreate")},
            {"name": "shm", "emptyDir": pod_volumes.shm_of(settings, plan["stages"])},
            *volumes,
            *pod_volumes.asked_volumes(run.run_id, settings),
        ],
    }
    if settings.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    elif plan.get("gang"):  # the gang's other pods reach this pod by its DNS name
        spec |= {"hostname": names.host_name(plan["node"]), "subdomain": names.run_name(run.run_id, gangs.SERVICE)}
    optional = {
        "initContainers": containers[:-1],
        "nodeSelector": dict(settings.node_selector),
        "runtimeClassName": settings.runtime_class,
        "priorityClassName": settings.priority_class,
        "serviceAccountName": settings.service_account,
        "imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets],
        "resourceClaims": [
            {"name": name, "resourceClaimTemplateName": template_name} for name, template_name in templates.items()
        ],
    }
    return {**spec, **{key: value for key, value in optional.items() if value}}


def _container(
    run: ClusterRun,
    settings: PodSettings,
    plan: Mapping[str, Any],
    stage: Mapping[str, Any],
    gpus: Mapping[str, str],
    mounts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The container of a stage. `gpus`: accelerators to request, {extended resource: count}. `mounts`: volume mounts of
    folders of the node."""
    wants, secret = stage["container"], names.object_name(run.run_id, plan["node"], plan["attempt"])
    command = [wants["python"], f"{GIVEN}/runner.pyz", "pod", "--dir", STATE, "--source", GIVEN, "--clear", SHM]
    command += ["--stage", stage["name"]]
    # A failed Job would end the other members' Jobs in the JobSet, so the runner exits with 0: records tell failures.
    command += ["--last"] if stage is plan["stages"][-1] and not plan.get("gang") else []
    variables = {"HOME": STATE, **settings.environment}
    if volumes := pod_volumes.names_by_folder(settings):
        variables["GPUVAL_VOLUMES"] = compact_json(volumes)
    environment: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in variables.items()]
    environment += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": _secret_key(stage["name"], name)}}}
        for name in stage.get("secrets", ())
    ]
    container = {
        "name": names.container_name(stage["name"]),
        "image": stage["image"],
        "command": command,
        "workingDir": STATE,
        "env": environment,
        "resources": _resources(settings, wants, gpus),
        "securityContext": _security(settings, wants),
        # The log tells why, if the runner failed before it wrote a termination message.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "given", "mountPath": GIVEN, "readOnly": True},
            # The image's own machine-id is the same on all nodes, which would count as one machine.
            {"name": "given", "mountPath": "/etc/machine-id", "subPath": MACHINE_ID, "readOnly": True},
            {"name": "state", "mountPath": STATE},
            {"name": "models", "mountPath": MODELS},
            *pod_volumes.dataset_mounts(stage, plan["models_dir"]),
            {"name": "shm", "mountPath": SHM},
            *mounts,
            *(
                {"name": f"asked-{index}", "mountPath": volume["path"], "readOnly": bool(volume.get("read_only"))}
                for index, volume in enumerate(settings.volumes)
            ),
        ],
    }
    return {**container, "imagePullPolicy": settings.image_pull_policy} if settings.image_pull_policy else container


def _resources(settings: PodSettings, container: Mapping[str, Any], gpus: Mapping[str, str]) -> dict[str, Any]:
    limits = {name: str(value) for name, value in settings.resources.get("limits", {}).items()}
    requests = {name: value for name, value in pod_settings.REQUESTS.items() if name not in limits}
    requests.update({name: str(value) for name, value in settings.resources.get("requests", {}).items()})
    for key, name in (("memory_bytes", "memory"), ("cpus", "cpu")):
        if container.get(key):
            limits[name] = requests[name] = f"{container[key]:g}" if name == "cpu" else str(container[key])
    limits |= gpus
    # Extended resources need the same number in requests and limits.
    for name in [name for name in {**limits, **requests} if "/" in name]:
        limits[name] = requests[name] = limits[name] if name in limits else requests[name]
    return {"requests": requests, **({"limits": limits} if limits else {})}


def _security(settings: PodSettings, container: Mapping[str, Any]) -> dict[str, Any]:
    added = sorted({*settings.capabilities, *(container.get("capabilities") or ())})
    context: dict[str, Any] = {"capabilities": {"drop": ["ALL"], **({"add": added} if added else {})}}
    if settings.privileged or container.get("privileged"):
        context["privileged"] = True
    elif SYS_ADMIN not in added:  # beside SYS_ADMIN, the API server refuses this setting
        context["allowPrivilegeEscalation"] = False
    return context


def _gpus(resource: str, target: PodTarget, plan: Mapping[str, Any]) -> dict[str, str]:
    """The accelerators that a pod requests, {`resource`: count}: all that the node offers; if their number is unknown,
    the plan's."""
    if not resource:
        return {}
    count = (target.allocatable or {}).get(resource) or plan["accelerator"]["count"]
    if not count and target.allocatable is None:
        raise PodSettingsError(
            f"{target.name}: the number of {resource} is unknown: set gpuval_gpu_count, or use the cluster's own "
            "inventory"
        )
    return {resource: str(count or 1)}  # requested even if the node has none: the scheduler reports why no pod fits


def _given_volume(run: ClusterRun, item: PodAttempt, plan_place: PlanPlace) -> dict[str, Any]:
    plan, of_gang = item.plan, []
    shared = [{"key": key, "path": key} for key in _content(item)] if item.secrets else []
    secret = names.object_name(run.run_id, plan["node"], plan["attempt"])
    if gang := plan.get("gang"):
        members = run.gangs.get(gang["name"])
        if members is None:
            raise PodSettingsError(f"{plan['node']}: the members of gang {gang['name']} in its plan are unknown")
        items = [{"key": members.key, "path": GANG_FILE}]
        keys = [{"key": name, "path": f"{gangs.KEYS}/{name}", "mode": mode} for name, mode in gangs.KEY_FILES.items()]
        of_gang = [
            {"configMap": {"name": members.config_map, "items": items}},
            {"secret": {"name": names.run_name(run.run_id, gangs.KEYS_SECRET), "items": keys}},
        ]
    return {
        "defaultMode": 0o444,  # only this pod mounts the volume, and stages may run as any user
        "sources": [
            {"configMap": {"name": run.code}},
            {"configMap": {"name": plan_place.config_map, "items": [{"key": plan_place.key, "path": "plan.json"}]}},
            {"secret": {"name": secret, **({"items": shared} if shared else {})}},  # without secrets of user jobs
            *of_gang,
        ],
    }
