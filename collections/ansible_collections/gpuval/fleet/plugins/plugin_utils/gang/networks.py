"""Networks between nodes, as data: the environment of the workloads, and the names in NCCL's log.

With ``auto`` nothing is set, and sockets are only accepted on nodes without any RDMA port, active or not.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from ..core import schemas
from ..core.errors import GpuvalError
from ..core.vendors import GPU_VENDORS
from ..judge import sku_catalogue
from ..judge.criteria import COLLECTION, CriteriaError, read_document

AUTO = "auto"
#: Vendors whose variables are set if the inventory does not declare a vendor: NCCL and RCCL read the same names, which
#: no other library reads.
USUAL_VENDORS = ("nvidia", "amd")


class NetworkError(GpuvalError, ValueError):
    """An unknown network, or an unusable file; the message says what to change."""


@dataclass(frozen=True)
class Variable:
    name: str
    value: str
    vendors: tuple[str, ...]


@dataclass(frozen=True)
class Network:
    """``names`` are those in NCCL's log, ``*`` for any text; see ``schemas/networks.schema.json``."""

    name: str
    names: tuple[str, ...]
    environment: tuple[Variable, ...]


def files() -> list[Path]:
    return sorted(COLLECTION.glob("networks/*.yml"))


def read(path: Path) -> Network:
    """The network of one file. Raises NetworkError."""
    try:
        document = read_document(path)
        schemas.validate("networks", document, what=str(path))
    except (CriteriaError, schemas.Invalid) as error:
        raise NetworkError(str(error)) from error
    if document["name"] != path.stem:
        raise NetworkError(f"{path}: defines the network {document['name']}: rename it to {document['name']}.yml")
    variables = (Variable(one["name"], one["value"], tuple(one["vendors"])) for one in document["environment"])
    return Network(document["name"], tuple(document["names"]), tuple(variables))


@functools.cache
def shipped() -> dict[str, Network]:
    return {network.name: network for network in map(read, files())}


def environment(name: str, sku: str = AUTO) -> dict[str, str]:
    """Environment variables of workloads on nodes of that SKU; none for auto. Raises NetworkError."""
    network = _named(name)
    if network is None:
        return {}
    wanted = _vendors(sku)
    return {one.name: one.value for one in network.environment if not wanted.isdisjoint(one.vendors)}


def names(name: str) -> list[str]:
    """Names of the network in NCCL's log; none for auto. Raises NetworkError."""
    network = _named(name)
    return list(network.names) if network else []


def _named(name: str) -> Network | None:
    if name == AUTO:
        return None
    known = shipped()
    if name not in known:
        raise NetworkError(f"gpuval_network {name} is unknown: set auto, {', '.join(known)}")
    return known[name]


def _vendors(sku: str) -> set[str]:
    known = sku_catalogue.named(sku)
    if known or sku in GPU_VENDORS:
        return {known.vendor if known else sku}
    return set(USUAL_VENDORS)
