"""Reads routes, RDMA devices and PCIe links of this host before multi-node work, and error counters again after it."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpuval_node.hardware.nics import NET, pci_address
from gpuval_node.hardware.tree import Tree
from gpuval_node.network.parallel import in_parallel
from gpuval_node.network.routes import KernelRoute, route_to

from ..members import Gang
from . import pcie, rdma

MOST_TEXT = 200

#: ``{probe name: function}``; a function returns values for fields of :class:`Local`.
Steps = Mapping[str, Callable[[], Mapping[str, Any]]]


@dataclass
class Local:
    """The state of this host. ``looked``: probes that succeeded; ``unknown``: the reason for each other probe.
    ``ways``: routes to other members by node; ``links``: PCIe links by NIC; ``counters``: by port and counter."""

    looked: set[str] = field(default_factory=set)
    ways: dict[str, KernelRoute] = field(default_factory=dict)
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


def look(gang: Gang, tree: Tree, seconds: float) -> Local:
    """Return the state of this host, as far as read within ``seconds``, even if a driver or name server hangs."""
    local, over = Local(), threading.Event()
    routes: Steps = {"routes": lambda: {"ways": ways(gang, tree)}}
    devices: Steps = {
        "rdma": lambda: {
            "devices": rdma.devices(tree),
            "closed": rdma.closed_devices(tree),
            "locked_limit_bytes": rdma.locked_limit(),
        },
        "pcie": lambda: {
            "links": {n: link for n, address in _nics(local, tree).items() if (link := pcie.link(tree, address))}
        },
        "acs": lambda: {"acs": pcie.acs(tree, [device.pci_address for device in local.devices if device.pci_address])},
        "counters": lambda: {"counters": _counters(local, tree)},
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


def counters_again(local: Local, tree: Tree, seconds: float) -> dict[str, rdma.Moved]:
    """Return the changes of RDMA counters since :func:`look`, by port; empty if the driver hangs for ``seconds``."""
    now = in_parallel({"counters": partial(rdma.counters, tree, local.ports)}, seconds).get("counters")
    if now is None:
        local.unknown["counters"] = f"this host did not report them again within {seconds:g} s"
        return {}
    return rdma.moved(local.counters, now)


def ways(gang: Gang, tree: Tree) -> dict[str, KernelRoute]:
    """Return ``{node: route}`` from this host to the other members, with the smaller MTU of interface and route."""
    return {m.node: _way(m.address, tree) for i, m in enumerate(gang.members) if i != gang.index}


def _way(address: str, tree: Tree) -> KernelRoute:
    try:
        route = route_to(str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0]))
    except socket.gaierror:
        return KernelRoute(problem=f"the name {address} is not known here")
    except OSError as error:
        return KernelRoute(problem=error.strerror or str(error))
    mtu = tree.number(f"{NET}/{route.interface}/mtu") if route.interface else None
    return replace(route, mtu_bytes=min(mtu, route.mtu_bytes or mtu) if mtu else None)


def _nics(local: Local, tree: Tree) -> dict[str, str]:
    """Return the PCI addresses, by name, of RDMA devices in use; without RDMA, of interfaces that are up."""
    used = {port.device for port in local.ports if port.is_active}
    if local.devices:
        return {d.name: d.pci_address for d in local.devices if d.pci_address and (d.name in used or not used)}
    up = [name for name in tree.entries(NET) if tree.read(f"{NET}/{name}/operstate") == "up"]
    return {name: address for name in up if (address := pci_address(tree, f"{NET}/{name}/device"))}


def _counters(local: Local, tree: Tree) -> dict[str, dict[str, int]]:
    counters = rdma.counters(tree, local.ports)
    if local.ports and not counters:
        raise LookupError("the drivers of these devices have none")
    return counters
