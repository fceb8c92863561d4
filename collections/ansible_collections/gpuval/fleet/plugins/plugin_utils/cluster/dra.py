"""GPUs by Kubernetes' dynamic resource allocation (DRA): what nodes publish in ResourceSlices, and the claims of pods.
Only `read` sends requests. Of a DeviceClass's selector (CEL), only names of drivers and types are parsed."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..core.escape import one_line
from ..core.grouping import values_by_key
from ..runs.labels import CLIQUE_LABEL
from . import names
from .api import Cluster, Forbidden, Missing
from .kinds import Manifest
from .pod_settings import CPU, KEEPING_AWAY, RESOURCES, VENDORS, PodSettings

#: By DRA driver, the vendor of its GPUs and the attribute that names their model.
DRIVERS = {
    "gpu.nvidia.com": ("nvidia", "productName"),
    "gpu.amd.com": ("amd", "productName"),
    "gaudi.intel.com": ("gaudi", "model"),
}
#: Values of the DRA attribute `type` that mean a whole GPU. Others mean partitions, or passthrough to virtual machines.
WHOLE_TYPES = ("", "gpu", "amdgpu")
#: Names of a pod's claims: its GPUs, and the channel of its ComputeDomain.
GPUS, CHANNEL = "gpus", "channel"
_TYPE = re.compile(r"""\btype\s*==\s*["']([\w-]+)["']""")


@dataclass(frozen=True)
class NodeDevices:
    """The GPUs that a DRA driver publishes on one node; without a driver, there are none. `count`, `tainted`: number of
    whole GPUs without and with a taint that keeps pods away. `kind`: their DRA attribute `type`. `device_class`: the
    DeviceClass that selects them. `resource`: extended resource that pods may request instead, empty if none.
    `partitions`: number of devices that are no whole GPU. `shared`: a GPU may have several claims. `note`: other
    limits of their use."""

    driver: str = ""
    vendor: str = ""
    product: str = ""
    kind: str = ""
    device_class: str = ""
    resource: str = ""
    count: int = 0
    tainted: int = 0
    partitions: int = 0
    shared: bool = False
    note: str = ""

    @property
    def request(self) -> str:
        """How pods request the GPUs, in words."""
        return f"DRA, DeviceClass {self.device_class or 'missing'}" + (f" as {self.resource}" if self.resource else "")


def requested(
    devices: NodeDevices, settings: PodSettings, sku: str, allocatable: Mapping[str, int] | None
) -> NodeDevices | None:
    """The published GPUs that the node's pod requests; None if it requests those of a device plugin, or none.
    `allocatable`: {extended resource: count} of the Node object, where GPUs published by DRA do not appear."""
    if not devices.vendor or sku == CPU or settings.resource not in (None, devices.resource or None):
        return None
    if sku in RESOURCES and sku != devices.vendor:
        return None
    is_plugged = any((allocatable or {}).get(name) for name in RESOURCES.values())
    rules = {"auto": not is_plugged, "plugin": not is_plugged and bool(devices.resource), "dra": True}
    return devices if rules[settings.devices] else None


def is_claimed(devices: NodeDevices, settings: PodSettings) -> bool:
    """Whether a pod requests these GPUs by a claim, rather than by an extended resource."""
    return not devices.resource or settings.always_claims


def claim_template(run_id: str, namespace: str, devices: NodeDevices, *, is_queued: bool) -> Manifest:
    """The ResourceClaimTemplate for all whole GPUs of a node; nodes with equal GPUs share it. A queued pod requests a
    number without selectors, since Kueue counts devices before allocation. A number also leaves out tainted GPUs, for
    which `All` would wait."""
    request: Manifest = {"deviceClassName": devices.device_class, "allocationMode": "All"}
    if is_queued or devices.tainted:
        request |= {"allocationMode": "ExactCount", "count": devices.count}
    if devices.partitions and devices.kind and not is_queued:  # the DeviceClass may select partitions, too
        expression = f'device.attributes["{devices.driver}"].type == "{devices.kind}"'
        request["selectors"] = [{"cel": {"expression": f'device.driver == "{devices.driver}" && {expression}'}}]
    name = names.run_name(run_id, f"{GPUS}-{names.digest(json.dumps(request, sort_keys=True), 10)}")
    claim = {"devices": {"requests": [{"name": GPUS, "exactly": request}]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": names.metadata(run_id, namespace, name),
        "spec": {"metadata": {"labels": names.run_labels(run_id)}, "spec": claim},
    }


def compute_domains(
    run_id: str, namespace: str, gang: str, labels: Mapping[str, Mapping[str, str]]
) -> list[tuple[Manifest, list[str]]]:
    """A ComputeDomain, with the names of its members, for each NVLink domain with at least two members of a gang: it
    lets pods use memory of each other's GPUs over NVLink. `labels`: {member's node: labels of its Node object}."""
    domains = []
    by_clique = values_by_key((node_labels.get(CLIQUE_LABEL, ""), name) for name, node_labels in labels.items())
    for clique, members in by_clique.items():
        if clique and len(members) > 1:
            name = names.run_name(run_id, f"domain-{names.digest(f'{gang} {clique}', 10)}")
            metadata = names.metadata(run_id, namespace, name)
            metadata["labels"][names.GANG_LABEL] = names.label_value(gang)
            channel = {"resourceClaimTemplate": {"name": f"{name}-{CHANNEL}"}}  # made by NVIDIA's controller
            spec = {"numNodes": len(members), "channel": channel}
            kind = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain"}
            domains.append(({**kind, "metadata": metadata, "spec": spec}, members))
    return domains


class ClusterDevices:
    """The GPUs that all nodes of a cluster publish, from its ResourceSlices and DeviceClasses. `problem`: why the GPUs
    are unknown; empty if they are known. `warning`: text to show if they are unknown for lack of a right."""

    def __init__(
        self, slices: Iterable[Manifest] = (), classes: Sequence[Manifest] = (), problem: str = "", warning: str = ""
    ) -> None:
        self.problem, self.warning = problem, warning
        of_pools = values_by_key((_pool(item["spec"]), item["spec"]) for item in slices)
        self._incomplete: dict[tuple[str, str], str] = {}
        #: By node name, the specs of slices that only this node uses; under "", specs of slices for several nodes.
        self._specs: dict[str, list[Manifest]] = defaultdict(list)
        for pool, in_pool in of_pools.items():
            newest = max(spec["pool"]["generation"] for spec in in_pool)
            specs = [spec for spec in in_pool if spec["pool"]["generation"] == newest]
            if len(specs) < (expected := max(spec["pool"]["resourceSliceCount"] for spec in specs)):
                self._incomplete[pool] = f"pool {pool[1]} has {len(specs)} of {expected} slices"
            for spec in specs:
                self._specs[spec.get("nodeName") or ""].append(spec)
        self._gpu_drivers = {driver: _class_of(driver, classes) for driver in {driver for driver, _name in of_pools}}

    def of_node(self, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
        """The fields of a node's NodeDevices, of the driver with most whole GPUs; without GPUs only `note`, or none."""
        found = [
            devices
            for driver, (device_class, resource) in self._gpu_drivers.items()
            if (devices := self._of_driver(driver, device_class, resource, name, labels))
        ]
        if not found:
            return {"note": self.problem} if self.problem else {}
        return asdict(max(found, key=lambda devices: (devices.count, devices.tainted, devices.driver)))

    def _of_driver(
        self, driver: str, device_class: str, resource: str, name: str, labels: Mapping[str, str]
    ) -> NodeDevices | None:
        vendor, model = DRIVERS.get(driver) or (VENDORS.get(resource, ""), "productName")
        specs = [spec for spec in (*self._specs.get(name, ()), *self._specs.get("", ())) if spec["driver"] == driver]
        devices = [device for spec in specs for device in _devices_for(spec, name, labels)]
        if not vendor or not (devices or any(spec.get("nodeName") == name for spec in specs)):
            return None
        whole = [device for device in devices if _attribute(device, driver, "type") in WHOLE_TYPES]
        usable = [device for device in whole if not _taints(device)]
        taints = sorted({taint for device in whole for taint in _taints(device)})
        notes = [f"device taints {', '.join(taints)}"] if taints else []
        notes += sorted({self._incomplete[_pool(spec)] for spec in specs if _pool(spec) in self._incomplete})
        first = whole[0] if whole else {}
        return NodeDevices(
            driver=driver,
            vendor=vendor,
            product=_attribute(first, driver, model),
            kind=_attribute(first, driver, "type"),
            device_class=device_class,
            resource=resource,
            count=len(usable),
            tainted=len(whole) - len(usable),
            partitions=len(devices) - len(whole),
            shared=any(device.get("allowMultipleAllocations") for device in whole),
            note=one_line("; ".join(notes), 300),
        )


def read(cluster: Cluster) -> ClusterDevices:
    """Read the GPUs that nodes publish by DRA: one list of ResourceSlices, and, if there are any, of DeviceClasses."""
    try:
        slices = cluster.list("ResourceSlice")[0]
        return ClusterDevices(slices, cluster.list("DeviceClass")[0] if slices else ())
    except Missing:
        return ClusterDevices(problem="the cluster does not serve resource.k8s.io/v1")
    except Forbidden as error:
        asked = ", ".join(f"{item.verb} {item.full_resource}" for item in error.asked)
        problem = f"this user may not {asked}: apply role.yml, which `make prepare` writes"
        return ClusterDevices(problem=problem, warning=f"GPUs published by DRA are unknown: {problem}")


def summary(published: Iterable[NodeDevices]) -> str:
    """Number of nodes and GPUs by model and request, as one line; empty if no node publishes GPUs."""
    nodes_by_kind = values_by_key(
        ((devices.product or devices.vendor, devices.request), devices.count) for devices in published if devices.vendor
    )
    return "; ".join(
        f"{len(counts)} node(s) publish {sum(counts)} {product} ({request})"
        for (product, request), counts in sorted(nodes_by_kind.items())
    )


def _pool(spec: Manifest) -> tuple[str, str]:
    return spec["driver"], spec["pool"]["name"]


def _class_of(driver: str, classes: Iterable[Manifest]) -> tuple[str, str]:
    """The DeviceClass of a driver's whole GPUs, preferably the one named like the driver, and the extended resource of
    one of these classes, preferably a vendor's usual one; empty where there is none."""
    fitting = []
    for item in classes:
        name, spec = item["metadata"]["name"], item.get("spec") or {}
        expressions = " ".join((each.get("cel") or {}).get("expression", "") for each in spec.get("selectors") or ())
        types = _TYPE.findall(expressions)
        selects = name == driver or re.search(rf"""["']{re.escape(driver)}["']""", expressions)
        if selects and (not types or set(types) & set(WHOLE_TYPES)):
            fitting.append((name != driver, len(expressions), name, spec.get("extendedResourceName") or ""))
    resources = sorted((item[-1] not in RESOURCES.values(), *item) for item in fitting if item[-1])
    return min(fitting)[2] if fitting else "", resources[0][-1] if resources else ""


def _devices_for(spec: Manifest, name: str, labels: Mapping[str, str]) -> Iterator[Manifest]:
    """The devices of a ResourceSlice's `spec` that the node `name` can use. `labels`: of its Node object."""
    for device in spec.get("devices") or ():
        scope = device if spec.get("perDeviceNodeSelection") else spec
        if scope.get("nodeName") == name or scope.get("allNodes") or _selects(scope.get("nodeSelector"), name, labels):
            yield device


def _selects(selector: Mapping[str, Any] | None, name: str, labels: Mapping[str, str]) -> bool:
    """Whether a NodeSelector chooses the node: one of its terms, of which all requirements must hold."""

    def holds(requirement: Mapping[str, Any]) -> bool:
        value, values = {**labels, "metadata.name": name}.get(requirement["key"]), requirement.get("values") or ()
        operators = {"In": value in values, "NotIn": value not in values, "Exists": value is not None}
        return {**operators, "DoesNotExist": value is None}.get(requirement["operator"], False)

    for term in (selector or {}).get("nodeSelectorTerms") or ():
        requirements = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
        if requirements and all(map(holds, requirements)):
            return True
    return False


def _attribute(device: Mapping[str, Any], driver: str, name: str) -> str:
    """A DRA attribute of a device as text; empty if the device lacks it. Its key may have the driver as prefix."""
    attributes = device.get("attributes") or {}
    value = attributes.get(name) or attributes.get(f"{driver}/{name}") or {}
    return one_line(str(next(iter(value.values()), "")), 80)


def _taints(device: Mapping[str, Any]) -> list[str]:
    return [
        f"{taint.get('key')}:{taint.get('effect')}"
        for taint in device.get("taints") or ()
        if taint.get("effect") in KEEPING_AWAY
    ]
