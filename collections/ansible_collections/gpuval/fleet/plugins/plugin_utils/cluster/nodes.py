"""Kubernetes Node objects: their descriptions, whether pods can be placed on them, inventory hosts from them. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...module_utils.hardware.pci import VENDORS as PCI_VENDORS
from ..core.errors import SettingError
from ..core.escape import one_line
from ..core.text import some_of
from ..inventory.node_list import ClusterHosts, group_name, sku_by_rules
from ..records.failure_classes import AGAIN
from ..runs import labels as run_labels
from ..ssh.findings import REACHABLE, ProbeFinding, class_finding
from . import dra, names, pod_settings
from .dra import ClusterDevices, NodeDevices
from .pod_settings import CPU, KEEPING_AWAY, RESOURCES, VENDORS, PodSettings, PodSettingsError

#: The host variable that holds the node's description from the cluster (see `describe`).
VARIABLE = "kubernetes_node"
#: Node labels whose values become inventory groups, with the groups' prefixes: pools of managed services, and zones.
LABEL_GROUPS = {
    "cloud.google.com/gke-nodepool": "pool",
    "doks.digitalocean.com/node-pool": "pool",
    "eks.amazonaws.com/nodegroup": "pool",
    "karpenter.sh/nodepool": "pool",
    "kubernetes.azure.com/agentpool": "pool",
    "topology.kubernetes.io/zone": "zone",
}
#: Host variables that hold the expectations of a node.
EXPECTED_VARIABLES = ("gpuval_sku", "gpuval_gpu_count", "gpuval_pods")
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
CORDONED = "node.kubernetes.io/unschedulable"
#: Labels that name the GPU model: NVIDIA's feature discovery, AMD's node labeller, GKE, DOKS.
PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "beta.amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "doks.digitalocean.com/gpu-model",
)
#: A term of a label selector: `!key`, `key=value` or `key in (value, ...)`.
_SELECTOR_TERM = re.compile(r"(!)?([\w./-]+)(?:\s*(==|=|!=)\s*([\w.-]*)|\s+(in|notin)\s*\(([^)]*)\))?", re.ASCII)
#: Node conditions whose taints keep pods away while True. MemoryPressure keeps away only pods without requests.
PRESSURES = ("DiskPressure", "PIDPressure", "NetworkUnavailable")
#: Taints that only repeat a node condition or `spec.unschedulable`; messages name the condition, which has a reason.
_REPEATED = re.compile(
    r"node\.kubernetes\.io/(unschedulable|not-ready|unreachable|(disk|memory|pid)-pressure|network-unavailable)[=:]"
)
_MESSAGE_CHARACTERS = 300
_PCI_VENDORS = {f"{number:04x}": vendor for number, vendor in PCI_VENDORS.items()}
#: Labels of node feature discovery, by PCI class and vendor (default) or by vendor alone (as vendors' operators do).
_PCI = re.compile(r"feature\.node\.kubernetes\.io/pci-(?:(?:03|0b40|12)[0-9a-f]{0,2}_)?(10de|1002|1da3)\.present")
_PODS_OF_NODE = "kubectl get pods -A -o wide --field-selector spec.nodeName={node}"
#: By vendor, the tool that shows whether the driver works, and what the device plugin's pods are called.
_PLUGINS = {"nvidia": ("nvidia-smi", "nvidia"), "amd": ("amd-smi", "amdgpu"), "gaudi": ("hl-smi", "habanalabs")}


def label_selector(text: str) -> dict[str, list[dict[str, Any]]]:
    """Parse a label selector (`a=b,!c,d in (e,f)`) into the form of API objects, matchExpressions. Raises
    SettingError."""
    expressions = []
    for term in re.findall(r"(?:[^,(]|\([^)]*\))+", text):
        parsed = _SELECTOR_TERM.fullmatch(term.strip())
        if parsed is None:
            raise SettingError(f"selector: {term.strip()!r} is none of key, !key, key=value, key in (value, value)")
        negation, key, sign, value, word, values = parsed.groups()
        listed = [value] if sign else [part.strip() for part in (values or "").split(",")]
        is_negative, has_values = negation or sign == "!=" or word == "notin", bool(sign or word)
        operator = ("NotIn" if is_negative else "In") if has_values else ("DoesNotExist" if is_negative else "Exists")
        expressions.append({"key": key, "operator": operator, **({"values": listed} if has_values else {})})
    return {"matchExpressions": expressions}


def describe(node: Mapping[str, Any], devices: ClusterDevices | None = None) -> dict[str, Any]:
    """A short description of a Node object, as flat fields: labels, taints, conditions, resources, addresses, and the
    GPUs that the node publishes by DRA, out of those of the cluster (`devices`)."""
    meta, spec, status = node.get("metadata") or {}, node.get("spec") or {}, node.get("status") or {}
    labels, info = dict(meta.get("labels") or {}), status.get("nodeInfo") or {}
    conditions = {
        str(condition.get("type")): {
            "status": str(condition.get("status")),
            "reason": one_line(condition.get("reason") or "", 80),
            "message": one_line(condition.get("message") or "", _MESSAGE_CHARACTERS),
            "since": str(condition.get("lastTransitionTime") or ""),
        }
        for condition in status.get("conditions") or []
    }
    return {
        "name": str(meta.get("name")),
        "hostname": labels.get(names.HOSTNAME_LABEL, ""),
        "instance_type": labels.get(INSTANCE_TYPE, ""),
        "created": str(meta.get("creationTimestamp") or ""),
        "deleting_since": str(meta.get("deletionTimestamp") or ""),
        "ready": conditions.get("Ready", {}).get("status") == "True",
        "unschedulable": bool(spec.get("unschedulable")),
        "taints": [
            {key: str(taint.get(key) or "") for key in ("key", "value", "effect")} for taint in spec.get("taints") or []
        ],
        "conditions": conditions,
        "labels": labels,
        # A node may have several addresses of a type (IPv4 and IPv6, several NICs): the cluster uses the first.
        "addresses": {
            str(condition.get("type")): str(condition.get("address"))
            for condition in reversed(status.get("addresses") or [])
        },
        "capacity": dict(status.get("capacity") or {}),
        "allocatable": dict(status.get("allocatable") or {}),
        "kubelet_version": str(info.get("kubeletVersion") or ""),
        "container_runtime": str(info.get("containerRuntimeVersion") or ""),
        "operating_system": str(info.get("operatingSystem") or labels.get("kubernetes.io/os") or ""),
        "architecture": str(info.get("architecture") or labels.get("kubernetes.io/arch") or ""),
        "kernel_version": str(info.get("kernelVersion") or ""),
        "os_image": str(info.get("osImage") or ""),
        "machine_id": str(info.get("machineID") or ""),
        "provider_id": str(spec.get("providerID") or ""),
        "dra": devices.of_node(str(meta.get("name")), labels) if devices else {},
    }


def devices_of(description: Mapping[str, Any]) -> NodeDevices:
    """The GPUs that a node publishes by DRA. `description`: from `describe`, or empty."""
    return NodeDevices(**description.get("dra") or {})


def has_plugin(node: Mapping[str, Any]) -> bool:
    """Whether a Node object offers GPUs of a device plugin."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return any(count(allocatable.get(name)) for name in VENDORS)


@dataclass(frozen=True)
class Gpus:
    """Numbers of whole GPUs that a node offers to pods. `resource` and `vendor` are empty when unknown."""

    resource: str = ""
    vendor: str = ""
    #: Whether the kubelet knows the resource, even with a count of 0.
    offered: bool = False
    capacity: int = 0
    allocatable: int = 0
    #: How many pods share one GPU; more than 1 if the device plugin uses time-slicing or MPS.
    replicas: int = 1
    #: Names of the extended resources of GPU partitions (MIG).
    partitions: tuple[str, ...] = ()
    #: The software that offers the GPUs, or would, for messages.
    source: str = "device plugin"
    #: Set if pods request the GPUs that the node publishes by DRA; `resource` is then what a device plugin would offer.
    devices: NodeDevices | None = None


def gpus(description: Mapping[str, Any], settings: PodSettings, sku: str = "auto") -> Gpus:
    """The GPUs that a node offers, counted by the resource that its pods request. Without GPUs, counts of 0, with the
    resource that settings or labels let expect."""
    capacity, labels = description["capacity"], description["labels"]
    allocatable = {name: count(value) for name, value in description["allocatable"].items()}
    devices = dra.requested(devices_of(description), settings, sku, allocatable)
    if devices:
        resource, total = devices.resource or RESOURCES[devices.vendor], devices.count + devices.tainted
        return Gpus(resource, devices.vendor, True, total, devices.count, devices=devices)
    if settings.always_claims:  # GPUs of a device plugin do not count
        capacity, allocatable = {}, {}
    chosen = pod_settings.resource_of(settings, sku, allocatable)
    if not chosen and settings.resource is None and sku != CPU:
        resources = sorted((name for name in VENDORS if name in capacity), key=lambda name: -count(capacity[name]))
        chosen = (resources or [RESOURCES.get(vendor_by_labels(labels), "")])[0]
    vendor = VENDORS.get(chosen, "")
    replicas = count(labels.get("nvidia.com/gpu.replicas")) if vendor == "nvidia" else 1
    partitions = sorted(name for name in capacity if name.startswith("nvidia.com/mig-") and count(capacity[name]))
    return Gpus(
        resource=chosen,
        vendor=vendor,
        offered=chosen in capacity,
        capacity=count(capacity.get(chosen)),
        allocatable=allocatable.get(chosen, 0),
        replicas=max(1, replicas),
        source="DRA driver" if settings.always_claims else "device plugin",
        partitions=tuple(partitions),
    )


def count(quantity: Any) -> int:
    """A Kubernetes quantity (`"8"`) as a whole number; 0 for None and for anything that is no whole number."""
    text = str(quantity if quantity is not None else "")
    return int(text) if re.fullmatch(r"\d{1,9}", text) else 0


def vendor_by_labels(labels: Mapping[str, str]) -> str:
    """The GPU vendor that the node's labels name, whether the driver works or not; empty if they name none."""
    for key, value in labels.items():
        match = _PCI.fullmatch(key)
        if match and value == "true":
            return _PCI_VENDORS[match[1]]
    for vendor, resource in RESOURCES.items():
        if labels.get(f"{resource}.present") == "true" or f"{resource}.product" in labels:
            return vendor
    if labels.get("feature.node.kubernetes.io/amd-gpu") == "true" or "amd.com/gpu.product-name" in labels:
        return "amd"
    if "cloud.google.com/gke-accelerator" in labels:
        return "nvidia"
    brand = labels.get("doks.digitalocean.com/gpu-brand", "")
    return brand if brand in RESOURCES else ""


def product(labels: Mapping[str, str]) -> str:
    """The GPU model in the node's labels, such as `NVIDIA-H100-80GB-HBM3`; empty without such a label."""
    return next((labels[key] for key in PRODUCT_LABELS if labels.get(key)), "")


def sku_of(description: Mapping[str, Any], rules: Mapping[str, Mapping[str, str]]) -> str:
    """The SKU of a node by rules (see `sku_by_rules`), whose keys are labels, `product`, `resource`,
    `instance_type`."""
    devices, labels = devices_of(description), description["labels"]
    model = product(labels) or devices.product.replace(" ", "-")
    resources = [name for name, quantity in description["capacity"].items() if count(quantity)]
    resources += [devices.resource, RESOURCES[devices.vendor]] if devices.vendor else []
    values = {key: [value] for key, value in labels.items()}
    values |= {"product": [model], "instance_type": [description["instance_type"]], "resource": resources}
    return sku_by_rules(rules, values, model)


def untolerated(
    taints: Iterable[Mapping[str, str]], tolerations: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, str]]:
    """The taints that keep a pod with these tolerations off the node."""
    away = (taint for taint in taints if taint["effect"] in KEEPING_AWAY)
    return [taint for taint in away if not any(pod_settings.covers(toleration, taint) for toleration in tolerations)]


def taint_texts(taints: Iterable[Mapping[str, str]]) -> str:
    """Taints as kubectl writes them, `nvidia.com/gpu=present:NoSchedule`, without those that repeat a condition."""
    texts = (f"{taint['key']}{'=' * bool(taint['value'])}{taint['value']}:{taint['effect']}" for taint in taints)
    return ", ".join(text for text in texts if not _REPEATED.match(text))


def expected_of(name: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """SKU, number of GPUs and pod settings expected of the node `name`, by its host variables: keyword arguments of
    `finding`. Raises PodSettingsError."""
    number = str(variables.get("gpuval_gpu_count") or "")
    try:
        settings = pod_settings.parse(variables.get("gpuval_pods") or {})
    except PodSettingsError as error:
        raise PodSettingsError(f"{name}: {error}") from None
    expected_gpus = int(number) if number.isdecimal() else None
    return {"sku": str(variables.get("gpuval_sku") or "auto"), "expected_gpus": expected_gpus, "settings": settings}


def finding(
    name: str,
    description: Mapping[str, Any] | None,
    *,
    sku: str = "auto",
    expected_gpus: int | None = None,
    settings: PodSettings | None = None,
) -> ProbeFinding:
    """Whether a pod of gpuval can be placed on the node: `reachable`, or the failure class of the reason.
    `description`: None for a node that the cluster does not have; `settings`: the node's `gpuval_pods`. A node with
    fewer GPUs than expected is reachable, with a message: the verdict decides by the node's facts later."""
    if description is None:
        return class_finding(name, "node_missing", f"the cluster has no node {name}")
    settings = settings or PodSettings()
    about = _node_problem(name, description, settings)
    if about is not None:
        return about
    have = gpus(description, settings, sku)
    tolerations = pod_settings.tolerations(settings, have.resource)
    if away := taint_texts(untolerated(description["taints"], tolerations)):
        return class_finding(name, "tainted", f"no toleration covers its taint {away}")
    if sku == CPU or settings.resource == "":
        return ProbeFinding(REACHABLE, "")
    return _gpu_problem(name, description, have, sku, expected_gpus) or ProbeFinding(REACHABLE, "")


def _node_problem(name: str, description: Mapping[str, Any], settings: PodSettings) -> ProbeFinding | None:
    """Why no pod can be placed on a node, apart from its GPUs: deleted, not ready, cordoned, ...; None if one can."""
    if description["deleting_since"]:
        return class_finding(name, "node_missing", f"it is being deleted since {description['deleting_since']}")
    if description["operating_system"] not in ("", "linux"):
        return ProbeFinding("not_linux", f"it runs {description['operating_system']}", "remove it from the inventory")
    if not description["ready"]:
        return class_finding(name, "node_not_ready", _condition("Ready", description["conditions"].get("Ready")))
    for kind in PRESSURES:
        condition = description["conditions"].get(kind)
        if condition and condition["status"] == "True":
            return class_finding(name, "node_pressure", _condition(kind, condition))
    cordon = {"key": CORDONED, "value": "", "effect": "NoSchedule"}
    if description["unschedulable"] and untolerated([cordon], settings.tolerations):
        addition = f", and has the taint {other_taints}" if (other_taints := taint_texts(description["taints"])) else ""
        return class_finding(name, "cordoned", f"it is cordoned: no pod is scheduled on it{addition}")
    if not description["hostname"]:
        return class_finding(name, "wrong_hostname", f"it has no label {names.HOSTNAME_LABEL}, which pins its Job")
    labels = description["labels"]
    if lacking := ", ".join(f"{key}={text}" for key, text in settings.node_selector.items() if labels.get(key) != text):
        return class_finding(name, "not_selected", f"it lacks the label {lacking} of gpuval_pods.node_selector")
    return None


def _gpu_problem(
    name: str, description: Mapping[str, Any], have: Gpus, sku: str, expected: int | None
) -> ProbeFinding | None:
    """Why a node's GPUs let no pod be placed; None if they do. `expected`: number of GPUs, None if unknown. A node
    without any sign of GPUs counts as a CPU node."""
    if expected == 0:
        return None
    if have.devices:
        return _device_problem(name, have.devices, expected)
    note = devices_of(description).note
    vendor = have.vendor or vendor_by_labels(description["labels"])
    help_text = f"check that driver and device plugin run on the node ({_PODS_OF_NODE})"
    if vendor in _PLUGINS:
        tool, pods = _PLUGINS[vendor]
        seen = f"{_PODS_OF_NODE} | grep {pods}, then its log"
        help_text = f"check the driver ({tool}) and the device plugin on the node ({seen})"
    help_text = f"{help_text}, {AGAIN}".replace("{node}", name)
    word = have.resource or "GPU resource"
    if not have.allocatable:
        if have.partitions:
            message = f"its GPUs are partitioned ({some_of(have.partitions, 3)}): it offers no whole one"
            return class_finding(name, "gpus_partitioned", message)
        if not (have.capacity or expected or sku != "auto" or vendor_by_labels(description["labels"])):
            return None
        if have.capacity:
            message = f"the device plugin reports none of its {have.capacity} {word} healthy"
        elif have.offered:
            message = f"it offers 0 {word}: the device plugin is gone, or finds no working GPU"
        else:
            message = (
                f"it offers no {word}: no {have.source} has registered on it (node created {description['created']})"
                + (f"; DRA: {note}" if note else "")
            )
        return ProbeFinding("no_gpu_resource", message, help_text)
    if have.replicas > 1:
        message = f"the device plugin shares each of its GPUs among {have.replicas} pods, so results would not count"
        return class_finding(name, "gpus_partitioned", message)
    if expected and have.allocatable < expected:
        capacity_words = f" (capacity {have.capacity})" if have.capacity != have.allocatable else ""
        message = f"{have.allocatable} {word} allocatable{capacity_words}, {expected} expected"
        return ProbeFinding(REACHABLE, message, help_text)
    return None


def _device_problem(name: str, devices: NodeDevices, expected: int | None) -> ProbeFinding | None:
    """Why the GPUs that a node publishes by DRA let no pod be placed; None if they do. `expected`: number of GPUs."""
    driver, note = f"DRA driver {devices.driver}", f" ({devices.note})" if devices.note else ""
    is_split = bool(devices.partitions) and not devices.count + devices.tainted
    problems = (
        (is_split, "gpus_partitioned", f"{driver} publishes only {devices.partitions} parts of GPUs{note}"),
        (devices.shared, "gpus_partitioned", f"{driver} lets claims share a GPU, so results would not count"),
        (not devices.count, "no_gpu_resource", f"{driver} publishes no usable GPU{note}"),
        (not devices.device_class, "device_class_missing", f"no DeviceClass selects the GPUs of {driver}"),
    )
    for applies, problem, message in problems:
        if applies:
            return class_finding(name, problem, message)
    if expected and devices.count < expected:
        message = f"{devices.count} GPUs allocatable ({devices.request}), {expected} expected{note}"
        return ProbeFinding(REACHABLE, message, class_finding(name, "no_gpu_resource", "").remedy)
    return None


def not_ready(node: Mapping[str, Any] | None) -> str:
    """Why a node is not Ready; empty if it is."""
    description = describe(node or {"metadata": {}})
    return "" if description["ready"] else _condition("Ready", description["conditions"].get("Ready"))


def _condition(kind: str, condition: Mapping[str, str] | None) -> str:
    if condition is None:
        return f"its kubelet never reported {kind}"
    since = f" since {condition['since']}" if condition["since"] else ""
    detail = ": ".join(text for text in (condition["reason"], condition["message"]) if text)
    return f"{kind} is {condition['status']}{since}" + (f": {detail}" if detail else "")


def finding_for(
    name: str,
    node: Mapping[str, Any] | None,
    settings: PodSettings,
    sku: str,
    expected_gpus: int | None,
    devices: ClusterDevices | None = None,
) -> dict[str, str] | None:
    """Failure class, message and remedy if no pod can be placed on the node; None if one can."""
    description = describe(node, devices) if node else None
    node_finding = finding(name, description, sku=sku, expected_gpus=expected_gpus, settings=settings)
    return None if node_finding.state == REACHABLE else node_finding.reason


class KubernetesHosts(ClusterHosts):
    """How Kubernetes Nodes become inventory hosts. `label_groups`: {label: prefix of the groups made of its values}."""

    TITLE = "the cluster"
    VARIABLE = VARIABLE
    #: Ansible itself runs nothing on these nodes.
    PLACED: ClassVar = {"ansible_connection": "local", "gpuval_placement": "kubernetes"}

    def __init__(self, rules: Mapping[str, Mapping[str, str]], label_groups: Mapping[str, str] | None = None) -> None:
        super().__init__(rules)
        self._label_groups = LABEL_GROUPS if label_groups is None else label_groups

    def sku_of(self, description: Mapping[str, Any]) -> str:
        return sku_of(description, self.rules)

    def groups_of(self, description: Mapping[str, Any]) -> list[str]:
        values = [(prefix, description["labels"].get(label)) for label, prefix in self._label_groups.items()]
        return [
            group_name(prefix, value) for prefix, value in (*values, ("type", description["instance_type"])) if value
        ]

    def kinds_of(
        self, described: Mapping[str, Mapping[str, Any]], skus: Mapping[str, str]
    ) -> dict[str, tuple[str, int]]:
        """{node with GPUs: (its group of similar nodes, number of GPUs)}. Similar nodes have the same instance type; if
        several SKUs share one type, as in k3s, the same SKU, else the same GPU vendor."""
        types = {(description["instance_type"], skus[name]) for name, description in described.items()}
        skus_of_type = Counter(instance_type for instance_type, _sku in types)
        kinds = {}
        for name, description in described.items():
            have, instance_type = gpus(description, PodSettings(), skus[name]), description["instance_type"]
            prefix, value = ("gpu", have.vendor) if skus[name] == "auto" else ("sku", skus[name])
            if instance_type and skus_of_type[instance_type] == 1:
                prefix, value = "type", instance_type
            if have.resource and skus[name] != CPU:
                kinds[name] = (group_name(prefix, value), have.capacity // have.replicas)
        return kinds

    def variables_of(self, description: Mapping[str, Any]) -> dict[str, Any]:
        labels = run_labels.of_cluster(description["labels"], self._label_groups)
        return super().variables_of(description) | ({"kubernetes_labels": labels} if labels else {})
