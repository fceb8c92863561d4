"""Objects of dynamic resource allocation as drivers and administrators create them."""

from __future__ import annotations

from typing import Any

NVIDIA = "gpu.nvidia.com"


def device(name: str, kind: str = "gpu", *, product: str = "NVIDIA H200", **more: Any) -> dict[str, Any]:
    """A device as NVIDIA's driver publishes it: full GPUs have the type gpu, partitions mig."""
    attributes: dict[str, Any] = {
        "type": {"string": kind},
        "uuid": {"string": f"GPU-{name}"},
        "productName": {"string": product},
        "driverVersion": {"version": "580.159.3"},
        "resource.kubernetes.io/pciBusID": {"string": "0000:9d:00.0"},
    }
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "143771Mi"}}, **more}


def slice_of(
    node: str, devices: list[dict[str, Any]], *, driver: str = NVIDIA, generation: int = 1, part: int = 0, **spec: Any
) -> dict[str, Any]:
    place = {} if spec.keys() & {"nodeSelector", "allNodes", "perDeviceNodeSelection"} else {"nodeName": node}
    count = spec.pop("count", 1)
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}-{generation}-{part}"},
        "spec": {"driver": driver, "pool": pool, "devices": devices, **place, **spec},
    }


def gpus(count: int = 8) -> list[dict[str, Any]]:
    return [device(f"gpu-{index}") for index in range(count)]


def device_class(name: str = NVIDIA, *, driver: str = NVIDIA, kind: str = "gpu", resource: str = "") -> dict[str, Any]:
    expression = f"device.driver == '{driver}'"
    if kind:
        expression += f" && device.attributes['{driver}'].type == '{kind}'"
    extended = {"extendedResourceName": resource} if resource else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}], **extended},
    }
