"""The settings `gpuval_pods`, checked and with defaults; tolerations and GPU resources of pods. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..core import schemas
from ..runs import plans

#: Keys of the taint of a failed node, and of the taint that a NodeReadinessRule keeps on a node that is not accepted.
#: gpuval's own pods tolerate both: it validates such nodes.
FAILED_TAINT, READINESS_TAINT = "gpuval.io/failed", "readiness.k8s.io/gpuval-accepted"
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "gaudi": "habana.ai/gaudi"}
VENDORS = {resource: vendor for vendor, resource in RESOURCES.items()}
#: Effects of taints that keep a pod away.
KEEPING_AWAY = ("NoSchedule", "NoExecute")
CPU = "cpu"
REQUESTS = {"cpu": "1", "memory": "2Gi"}
NUMBERS = {"shm_bytes": int, "run_as_user": int, "deadline_slack_seconds": float}
FLAGS = ("host_network", "privileged", "own_stages")
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
#: Annotations of pods: autoscalers do not drain the node meanwhile, and meshes inject no proxy that outlives the work.
ANNOTATIONS = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
    "linkerd.io/inject": "disabled",
}
LABELS = {"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}
#: Capability that lets RDMA pin memory.
IPC_LOCK = "IPC_LOCK"
#: Capabilities for the SSH server as root, through which DeepSpeed's launcher starts the ranks.
SSHD_CAPABILITIES = ("SETGID", "SETUID", "SYS_CHROOT")


class PodSettingsError(plans.PlanError):
    """No pod can be made from the settings; the message says what to change."""


@dataclass(frozen=True)
class PodSettings:
    """The settings in `gpuval_pods`, with defaults. Sizes in bytes, times in seconds; empty and None: not set."""

    image: str = ""
    image_pull_policy: str = ""
    image_pull_secrets: Sequence[str] = ()
    resource: str | None = None
    devices: str = "auto"
    resources: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"requests": REQUESTS})
    tolerations: Sequence[Mapping[str, Any]] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    shm_bytes: int | None = None
    model_cache: Mapping[str, Any] = field(default_factory=lambda: {"empty_dir": {}})
    host_network: bool = False
    privileged: bool = False
    run_as_user: int = 0
    capabilities: Sequence[str] = ()
    runtime_class: str = ""
    priority_class: str = ""
    service_account: str = ""
    volumes: Sequence[Mapping[str, Any]] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = "python3"
    deadline_slack_seconds: float = 900.0
    gang: Mapping[str, Any] = field(default_factory=dict)
    kueue: Mapping[str, Any] = field(default_factory=dict)
    #: Kueue LocalQueue (gpuval_kueue_queue) for Jobs of gangs, and with kueue.own_stages for single-node Jobs, too.
    queue: str = ""

    @property
    def always_claims(self) -> bool:
        """Whether pods request GPUs by DRA claims only, whatever device plugins offer."""
        return self.devices == "dra" and self.resource is None

    @property
    def loses_models(self) -> bool:
        """Whether the model cache is deleted with the pod, so that a second attempt has to fill it again."""
        return "empty_dir" in self.model_cache


def parse(pods: Mapping[str, Any], queue: str = "", images: Mapping[str, Any] | None = None) -> PodSettings:
    """Check and parse `gpuval_pods` and `gpuval_kueue_queue`. Stages without an image of their own run in the first of
    `images` (`gpuval_images`). Raises PodSettingsError, which names the wrong key."""
    values = {
        key: schemas.plain(value)
        for key, value in pods.items()
        if value is not None and (value != "" or key == "resource")
    }
    for key, kind in NUMBERS.items():
        if isinstance(values.get(key), str):  # Ansible's templates turn numbers into strings
            try:
                values[key] = kind(values[key])
            except ValueError:
                raise PodSettingsError(f"gpuval_pods.{key}: {values[key]!r} is not a number") from None
    for part in (part for part in (values, values.get("gang"), values.get("kueue")) if isinstance(part, dict)):
        for key in FLAGS:
            if isinstance(part.get(key), str) and part[key].lower() in ("true", "false"):
                part[key] = part[key].lower() == "true"
    try:
        schemas.validate("pods", values, what="gpuval_pods")
    except schemas.Invalid as error:
        raise PodSettingsError(str(error)) from error
    if queue and not _DNS_NAME.fullmatch(str(queue)):
        raise PodSettingsError(
            f"gpuval_kueue_queue: {queue!r} is no name of a LocalQueue (lower case, digits, - and .)"
        )
    first = next((str(image["reference"]) for image in (images or {}).values()), "")
    return PodSettings(**{"image": first, **values}, queue=str(queue))


def for_gang(settings: PodSettings) -> PodSettings:
    """The settings for a pod in a gang: changed by `gpuval_pods.gang`, and without a model cache."""
    gang = settings.gang
    resources = {name: str(number) for name, number in gang.get("resources", {}).items()}
    capabilities = [*settings.capabilities, *gang.get("capabilities", [IPC_LOCK] if resources else [])]
    if not settings.run_as_user:
        capabilities += SSHD_CAPABILITIES
    limits = {**settings.resources.get("limits", {}), **resources}
    return replace(
        settings,
        resources={**settings.resources, **({"limits": limits} if limits else {})},
        capabilities=tuple(dict.fromkeys(capabilities)),
        host_network=bool(gang.get("host_network", settings.host_network)),
        model_cache={"empty_dir": {}},
    )


def resource_of(settings: PodSettings, sku: str, allocatable: Mapping[str, int] | None = None) -> str:
    """The extended resource of a node's accelerators; empty if it has none. `allocatable`: {resource: count}."""
    if settings.resource is not None:
        return settings.resource
    if sku == CPU:
        return ""
    if sku in RESOURCES:
        return RESOURCES[sku]
    return next((name for name in RESOURCES.values() if (allocatable or {}).get(name)), "")


def tolerations(settings: PodSettings, resource: str) -> list[dict[str, Any]]:
    """The tolerations of a pod: those of the settings, the taint of GPU nodes, and gpuval's own."""
    keys = [key for key in (resource, FAILED_TAINT, READINESS_TAINT) if key]
    return [*(dict(item) for item in settings.tolerations), *({"key": key, "operator": "Exists"} for key in keys)]


def covers(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether a toleration matches a taint, by the scheduler's rules."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    key, exists = toleration.get("key"), toleration.get("operator", "Equal") == "Exists"
    if not key:
        return exists
    return key == taint.get("key") and (exists or toleration.get("value", "") == (taint.get("value") or ""))
