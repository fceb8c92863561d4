"""Node objects as API servers give them, cut to size: one for each kind of cluster that the docs describe."""

from __future__ import annotations

import copy
from typing import Any


def node(
    name: str = "gpu-001",
    *,
    labels: dict[str, str] | None = None,
    resources: dict[str, str] | None = None,
    allocatable: dict[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
    conditions: dict[str, dict[str, str]] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A node of a kubeadm cluster that is well. `resources` are extended ones; `allocatable` overrides them."""
    conditions = conditions or {}
    basics = {"cpu": "192", "memory": "2113451672Ki", "ephemeral-storage": "3690472012Ki", "pods": "110"}
    return {
        "metadata": {
            "name": name,
            "uid": "5c7a0f0e-6e5f-4a55-9c4c-0a5a1a1f3c11",
            "resourceVersion": "812345",
            "creationTimestamp": "2026-11-02T08:11:54Z",
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {}}}],
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                **(labels or {}),
            },
        },
        "spec": {"podCIDR": "10.244.3.0/24", **({"taints": taints} if taints else {}), **spec},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "192.0.2.11"}, {"type": "Hostname", "address": name}],
            "capacity": {**basics, **(resources or {})},
            "allocatable": {**basics, **(resources or {}), **(allocatable or {})},
            "conditions": [
                _condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "", conditions),
                _condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "", conditions),
                _condition("PIDPressure", "False", "KubeletHasSufficientPID", "", conditions),
                _condition("Ready", "True", "KubeletReady", "kubelet is posting ready status", conditions),
            ],
            "images": [{"names": ["registry.example.org/gpuval-training:1"], "sizeBytes": 9876543210}],
            "nodeInfo": {
                "architecture": "amd64",
                "containerRuntimeVersion": "containerd://2.1.4",
                "kernelVersion": "6.8.0-85-generic",
                "kubeletVersion": "v1.34.1",
                "machineID": "ec2a3f3fd3c2e58a1ab8e3a0a8a0c1d2",
                "operatingSystem": "linux",
                "osImage": "Ubuntu 24.04.3 LTS",
            },
        },
    }


def _condition(kind: str, status: str, reason: str, message: str, given: dict[str, dict[str, str]]) -> dict[str, str]:
    known = {"status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-02T08:13:10Z"}
    return {"type": kind, **known, **given.get(kind, {})}


#: GPU operator on a bare cluster: feature discovery of GPU and node.
BARE_H200 = {
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.memory": "143771",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "NVIDIA-H200",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.config": "all-disabled",
}
DOKS_MI300X = {
    "beta.kubernetes.io/instance-type": "gpu-mi300x8-1536gb",
    "doks.digitalocean.com/gpu-brand": "amd",
    "doks.digitalocean.com/gpu-model": "mi300x",
    "doks.digitalocean.com/node-pool": "mi300x",
    "node.kubernetes.io/instance-type": "gpu-mi300x8-1536gb",
    "topology.kubernetes.io/region": "atl1",
}
GKE_H100 = {
    "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
    "cloud.google.com/gke-accelerator-count": "8",
    "cloud.google.com/gke-nodepool": "a3-high",
    "node.kubernetes.io/instance-type": "a3-highgpu-8g",
    "topology.kubernetes.io/zone": "us-central1-a",
}
EKS_P5 = {
    "eks.amazonaws.com/nodegroup": "p5",
    "node.kubernetes.io/instance-type": "p5.48xlarge",
    "topology.kubernetes.io/zone": "us-east-2a",
}
AMD_LABELLER = {
    "amd.com/gpu.device-id": "74a1",
    "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
    "amd.com/gpu.vram": "192G",
    "feature.node.kubernetes.io/amd-gpu": "true",
}
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def h200(name: str = "gpu-001", gpus: int = 8, **given: Any) -> dict[str, Any]:
    return node(name, labels=copy.copy(BARE_H200), resources={"nvidia.com/gpu": str(gpus)}, **given)
