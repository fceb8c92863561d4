"""The kinds of Kubernetes objects that gpuval uses: their paths in the API, and the fields that gpuval keeps."""

from dataclasses import dataclass
from typing import Any

from .permissions import AccessRequest

Manifest = dict[str, Any]


@dataclass(frozen=True)
class ObjectKind:
    """A kind of Kubernetes objects, with its group, version and plural name in the API."""

    name: str
    group: str
    plural: str
    namespaced: bool = True
    #: Only metadata is fetched: no content of Secrets.
    metadata_only: bool = False
    version: str = "v1"

    def asked(self, verb: str) -> AccessRequest:
        return AccessRequest(verb, self.group, self.plural)

    def path(self, namespace: str) -> str:
        return f"{self.root}/namespaces/{namespace}/{self.plural}" if self.namespaced else f"{self.root}/{self.plural}"

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


KINDS = {
    kind.name: kind
    for kind in (
        ObjectKind("Job", "batch", "jobs"),
        ObjectKind("Pod", "", "pods"),
        ObjectKind("Node", "", "nodes", namespaced=False),
        ObjectKind("Secret", "", "secrets", metadata_only=True),
        ObjectKind("ConfigMap", "", "configmaps", metadata_only=True),
        ObjectKind("Service", "", "services", metadata_only=True),
        ObjectKind("Namespace", "", "namespaces", namespaced=False),
        ObjectKind("Event", "", "events"),
        ObjectKind("PersistentVolume", "", "persistentvolumes", namespaced=False, metadata_only=True),
        ObjectKind("PersistentVolumeClaim", "", "persistentvolumeclaims", metadata_only=True),
        ObjectKind("CronJob", "batch", "cronjobs"),
        ObjectKind("ServiceAccount", "", "serviceaccounts"),
        ObjectKind("Role", "rbac.authorization.k8s.io", "roles"),
        ObjectKind("RoleBinding", "rbac.authorization.k8s.io", "rolebindings"),
        ObjectKind("ClusterRole", "rbac.authorization.k8s.io", "clusterroles", namespaced=False),
        ObjectKind("ClusterRoleBinding", "rbac.authorization.k8s.io", "clusterrolebindings", namespaced=False),
        ObjectKind("PriorityClass", "scheduling.k8s.io", "priorityclasses", namespaced=False),
        # Not part of Kubernetes itself: `Cluster.serves` tells whether the cluster has it.
        ObjectKind("JobSet", "jobset.x-k8s.io", "jobsets", metadata_only=True, version="v1alpha2"),
        # Dynamic resource allocation: since Kubernetes 1.34, and of NVIDIA's driver.
        ObjectKind("ResourceSlice", "resource.k8s.io", "resourceslices", namespaced=False),
        ObjectKind("DeviceClass", "resource.k8s.io", "deviceclasses", namespaced=False),
        ObjectKind("ResourceClaimTemplate", "resource.k8s.io", "resourceclaimtemplates", metadata_only=True),
        ObjectKind("ComputeDomain", "resource.nvidia.com", "computedomains", metadata_only=True, version="v1beta1"),
    )
}


def trim(kind: str, item: Manifest) -> Manifest:
    """A Kubernetes object without the fields that gpuval does not use: a thousand objects may be in memory."""
    item = unmanaged(item)
    if kind in ("Secret", "ConfigMap"):
        return {"metadata": item["metadata"]}
    result = {key: value for key, value in item.items() if key not in ("kind", "apiVersion")}
    spec, status = item.get("spec") or {}, item.get("status") or {}
    if kind in ("Pod", "Job"):
        annotations = item["metadata"].get("annotations") or {}
        ours = {key: value for key, value in annotations.items() if key.startswith("gpuval.io/")}
        result["metadata"] = {**item["metadata"], "annotations": ours}
    if kind == "Pod":
        containers = {
            part: [
                {"name": container["name"], "image": container.get("image", "")} for container in spec.get(part) or []
            ]
            for part in ("initContainers", "containers")
        }
        volumes = [
            {key: volume[key] for key in ("name", "persistentVolumeClaim", "ephemeral") if key in volume}
            for volume in spec.get("volumes") or []
        ]
        kept = {"nodeName": spec.get("nodeName", ""), **containers, "volumes": volumes}
        return {**result, "spec": kept, "status": status}
    if kind == "Node":
        left_out = ("images", "volumesInUse", "volumesAttached", "config", "daemonEndpoints")
        return {**result, "spec": spec, "status": {key: value for key, value in status.items() if key not in left_out}}
    if kind == "Job":
        kept_spec = {key: value for key, value in spec.items() if key not in ("template", "selector")}
        return {**result, "spec": kept_spec, "status": status}
    return result


def unmanaged(item: Manifest) -> Manifest:
    """A Kubernetes object without metadata.managedFields and metadata.selfLink."""
    left_out = ("managedFields", "selfLink")
    return {**item, "metadata": {key: value for key, value in item["metadata"].items() if key not in left_out}}
