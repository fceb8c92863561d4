"""Networks between nodes, as data: variables for workloads, and names in NCCL's log. With ``auto`` no variable is set,
and sockets are only accepted on nodes without any RDMA port, active or not."""

import functools
from pathlib import Path
from typing import Any

from ...module_utils.hardware.pci import GPU_VENDORS
from ..core import schemas, yaml_file
from ..core.errors import GpuvalError
from ..core.paths import COLLECTION
from ..judge import sku_catalogue

AUTO = "auto"
#: GPU vendors whose variables are set if the inventory declares no vendor: NCCL and RCCL read the same names, and no
#: other library reads these.
USUAL_VENDORS = ("nvidia", "amd")


class GangNetworkError(GpuvalError, ValueError):
    """An unknown network, or an unusable file; the message says what to change."""


def files() -> list[Path]:
    return sorted(COLLECTION.glob("networks/*.yml"))


def read(path: Path) -> dict[str, Any]:
    """Read a network's file, as ``schemas/networks.schema.json`` describes it. Raises GangNetworkError."""
    try:
        document = yaml_file.shipped(path, "networks")
    except (yaml_file.YamlError, schemas.Invalid) as error:
        raise GangNetworkError(str(error)) from error
    if document["name"] != path.stem:
        raise GangNetworkError(f"{path}: defines the network {document['name']}: rename it to {document['name']}.yml")
    return document


@functools.cache
def shipped() -> dict[str, dict[str, Any]]:
    return {path.stem: read(path) for path in files()}


def environment(name: str, sku: str = AUTO) -> dict[str, str]:
    """Environment variables for workloads on nodes of that SKU; none for the network auto. Raises GangNetworkError."""
    sku_entry = sku_catalogue.named(sku)
    vendors = set(USUAL_VENDORS)
    if sku_entry or sku in GPU_VENDORS:
        vendors = {sku_entry.vendor if sku_entry else sku}
    variables = _network_part(name, "environment")
    return {entry["name"]: entry["value"] for entry in variables if not vendors.isdisjoint(entry["vendors"])}


def names(name: str) -> list[str]:
    """The names of a network in NCCL's log; none for the network auto. Raises GangNetworkError."""
    return _network_part(name, "names")


def _network_part(name: str, part: str) -> list[Any]:
    if name == AUTO:
        return []
    networks = shipped()
    if name not in networks:
        raise GangNetworkError(f"gpuval_network {name} is unknown: set auto, {', '.join(networks)}")
    return list(networks[name][part])
