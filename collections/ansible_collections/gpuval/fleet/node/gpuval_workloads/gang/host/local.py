"""Reads the state of this host: before the other members are queried, and again after the work."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpuval_node.hardware.pci import ADDRESS
from gpuval_node.hardware.tree import Tree
from gpuval_node.network.parallel import in_parallel

from ..members import Gang
from . import pcie, rdma
from .routes import route_to

MOST_TEXT = 200

#: Probes by name; each returns fields of :class:`Local`.
Steps = Mapping[str, Callable[[], Mapping[str, Any]]]


@dataclass(frozen=True)
class Way:
    """The route from this host to a peer: the interface's name and MTU in bytes, or why there is no route."""

    interface: str | None = None
    mtu_bytes: int | None = None
    gateway: str | None = None
    source: str | None = None
    is_local: bool = False
    problem: str = ""


@dataclass
class Local:
    """The state of this host. ``looked`` names the probes that succeeded; ``unknown`` says why others did not."""

    looked: set[str] = field(default_factory=set)
    ways: dict[str, Way] = field(default_factory=dict)
    devices: list[rdma.Device] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    locked_limit_bytes: int | None = None
    links: dict[str, pcie.Link] = field(default_factory=dict)
    acs: pcie.Acs | None = None
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)

    @property
    def ports(self) -> list[rdma.Port]:
        return [port for device in self.devices for port in device.ports]

    @property
    def interface(self) -> str | None:
        """Return the interface on the route to most other members."""
        names = Counter(route.interface for route in self.ways.values() if route.interface)
        return max(names, key=lambda name: (names[name], name)) if names else None

    @property
    def mtu_bytes(self) -> int | None:
        return next((route.mtu_bytes for route in self.ways.values() if route.interface == self.interface), None)

    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprints that should be equal on all members."""
        value_by_name = {}
        if "rdma" in self.looked:
            value_by_name["rdma_ports"] = rdma.describe_ports(self.ports)
            value_by_name["rdma_firmware"] = rdma.describe_firmware(self.devices)
            value_by_name["rdma_gids"] = rdma.describe_gids(self.ports)
        if "pcie" in self.looked:
            value_by_name["gang_nic_pcie"] = rdma.grouped(str(link.now) for link in self.links.values())
        if self.mtu_bytes:
            value_by_name["gang_mtu"] = str(self.mtu_bytes)
        return {name: text[:MOST_TEXT] or "none" for name, text in value_by_name.items()}


def look(gang: Gang, sysfs: Tree, seconds: float) -> Local:
    """Return the state of this host, as far as found within ``seconds``, even if a driver or name server hangs."""
    local, over = Local(), threading.Event()
    routes: Steps = {"routes": lambda: {"ways": ways(gang, sysfs)}}
    devices: Steps = {
        "rdma": lambda: {
            "devices": rdma.devices(sysfs),
            "closed": rdma.closed_devices(sysfs),
            "locked_limit_bytes": rdma.locked_limit(),
        },
        "pcie": lambda: {
            "links": {n: link for n, address in _nics(local, sysfs).items() if (link := pcie.link(sysfs, address))}
        },
        "acs": lambda: {"acs": pcie.acs(sysfs, [device.pci_address for device in local.devices if device.pci_address])},
        "counters": lambda: {"counters": _counters(local, sysfs)},
    }
    local.unknown = dict.fromkeys((*routes, *devices), f"this host did not report within {seconds:g} s")
    in_parallel({number: partial(_do, steps, local, over) for number, steps in enumerate((routes, devices))}, seconds)
    over.set()
    return local


def _do(steps: Steps, local: Local, over: threading.Event) -> None:
    for name, step in steps.items():
        why = ""
        fields: Mapping[str, Any] = {}
        try:
            fields = step()
        except Exception as error:  # an error of a probe must not fail the stage
            why = f"{error or type(error).__name__}"[:MOST_TEXT]
        if over.is_set():
            return
        if why:
            local.unknown[name] = why
        else:
            vars(local).update(fields)
            local.looked.add(name)
            del local.unknown[name]


def counters_again(local: Local, sysfs: Tree, seconds: float) -> dict[str, rdma.Moved]:
    """Return the changes of the counters since `look`; empty if the driver does not answer within ``seconds``."""
    now = in_parallel({"counters": partial(rdma.counters, sysfs, local.ports)}, seconds).get("counters")
    if now is None:
        local.unknown["counters"] = f"this host did not report them again within {seconds:g} s"
        return {}
    return rdma.moved(local.counters, now)


def ways(gang: Gang, sysfs: Tree) -> dict[str, Way]:
    """Return this host's routes to the other members, by node."""
    return {m.node: _way(m.address, sysfs) for i, m in enumerate(gang.members) if i != gang.index}


def _way(address: str, sysfs: Tree) -> Way:
    try:
        route = route_to(str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0]))
        name = socket.if_indextoname(route.interface) if route.interface else None
    except socket.gaierror:
        return Way(problem=f"the name {address} is not known here")
    except OSError as error:
        return Way(problem=error.strerror or str(error))
    mtu = sysfs.number(f"class/net/{name}/mtu") if name else None
    if mtu and route.mtu:
        mtu = min(mtu, route.mtu)
    return Way(name, mtu, route.gateway, route.source, route.is_local)


def _nics(local: Local, sysfs: Tree) -> dict[str, str]:
    """Return the PCI addresses, by name, of RDMA devices in use; without RDMA, of interfaces that are up."""
    used = {port.device for port in local.ports if port.is_active}
    if local.devices:
        return {d.name: d.pci_address for d in local.devices if d.pci_address and (d.name in used or not used)}
    up = [n for n in sysfs.entries("class/net") if sysfs.read(f"class/net/{n}/operstate") == "up"]
    ends = {name: sysfs.way(f"class/net/{name}/device")[-1:] for name in up}
    return {name: end[0] for name, end in ends.items() if end and ADDRESS.fullmatch(end[0])}


def _counters(local: Local, sysfs: Tree) -> dict[str, dict[str, int]]:
    counters = rdma.counters(sysfs, local.ports)
    if local.ports and not counters:
        raise LookupError("the drivers of these devices have none")
    return counters
