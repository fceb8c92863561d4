"""Fast network ports of a node, and counters of failures of their links in sysfs.

Counters of InfiniBand are those of the port. `carrier_down_count` also counts what an administrator or a driver does,
and a frame with a wrong checksum may come from another link behind a switch: both are advice.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

from .nics import INFINIBAND, LINK_UP, NET, RDMA, has_link, has_port, pci_address, rdma_device
from .tree import Tree

#: Minimum speed of a network interface without RDMA to count as a fast port.
FAST_BITS_PER_SECOND = 25e9
#: /sys/class/net/*/type of Ethernet; IPoIB has another.
ETHERNET_TYPE = 1
#: InfiniBand counters of faults of cables, transceivers and ports, and the maximum at which each stops.
LINK_ERRORS = {
    "symbol_error": 2**16 - 1,
    "link_error_recovery": 2**8 - 1,
    "link_downed": 2**8 - 1,
    "port_rcv_errors": 2**16 - 1,
    "port_rcv_remote_physical_errors": 2**16 - 1,
    "local_link_integrity_errors": 2**4 - 1,
    "excessive_buffer_overrun_errors": 2**4 - 1,
}
#: Kinds of link failures, each with the counters in a port's sysfs folder whose rise shows it.
SYMBOL_ERRORS = "link_symbol_error_ratio"
FAILURES = {
    "link_down": ("counters/link_downed", "counters/link_error_recovery"),
    SYMBOL_ERRORS: ("counters/symbol_error",),
    "link_carrier_down": ("carrier_down_count",),
    "link_crc_error": ("statistics/rx_crc_errors",),
}
NO_PORT = "no port with a link shows such counters here, as in a container with a network of its own"


class NetworkPort(NamedTuple):
    """A network port. ``name`` is that of its interface, or `mlx5_0:1` for InfiniBand, which may lack an interface."""

    name: str
    interface: Optional[str]
    rdma_device: Optional[str]
    pci_address: Optional[str]
    driver: Optional[str]
    has_link: bool
    rate_bits_per_second: Optional[int]
    counters: dict[str, int]

    @property
    def downs_count(self) -> Optional[int]:
        """Return how often the link was lost since the port's driver was loaded; None if nothing counts it."""
        return self.counters.get("counters/link_downed", self.counters.get("carrier_down_count"))


def network_ports(tree: Tree) -> list[NetworkPort]:
    """Return InfiniBand ports, and Ethernet interfaces with RDMA or a high speed, of PCI devices. Virtual functions are
    left out, since their cable is another port's, as are subfunctions, which are on the auxiliary bus."""
    ports = []
    for device in (rdma_device(tree, name) for name in tree.entries(RDMA)):
        name, address, driver = device["name"], device["pci_address"], device["driver"]
        interfaces = dict(enumerate(tree.entries(f"{RDMA}/{name}/device/net"), 1))
        for port in device["ports"] if not tree.exists(f"{RDMA}/{name}/device/physfn") else ():
            if port["link_layer"] == INFINIBAND and (number := port["port"]):
                counters = _counters(tree, f"{RDMA}/{name}/ports/{number}")
                is_up, rate = port["physical_state"] == LINK_UP, port["rate_bits_per_second"]
                interface = interfaces.get(number)
                ports.append(NetworkPort(f"{name}:{number}", interface, name, address, driver, is_up, rate, counters))
    for name in tree.entries(NET):
        folder, device_folder = f"{NET}/{name}", f"{NET}/{name}/device"
        rate = max(0, tree.number(f"{folder}/speed") or 0) * 1_000_000
        rdma = next(iter(tree.entries(f"{device_folder}/infiniband")), None)
        address, driver = pci_address(tree, device_folder), tree.link_name(f"{device_folder}/driver")
        is_ethernet = tree.number(f"{folder}/type") == ETHERNET_TYPE and address and has_port(tree, name)
        if is_ethernet and (rdma or rate >= FAST_BITS_PER_SECOND):
            counters = _counters(tree, folder)
            is_up = has_link(tree, name)
            ports.append(NetworkPort(name, name, rdma, address, driver, is_up, rate or None, counters))
    return ports


def _counters(tree: Tree, folder: str) -> dict[str, int]:
    read = {name: tree.number(f"{folder}/{name}") for names in FAILURES.values() for name in names}
    return {name: count for name, count in read.items() if count is not None}


def failures(before: list[NetworkPort], after: list[NetworkPort], seconds: float) -> dict[str, dict[str, float]]:
    """Return the link failures within ``seconds``, `{kind: {port: count}}`; a kind that no port counts is left out.

    For symbol errors, the value is a ratio that was surely exceeded: errors come at random, and a few show nothing.
    """
    now = {port.name: port.counters for port in after}
    failed: dict[str, dict[str, float]] = {}
    for port in (port for port in before if port.has_link):
        for kind, names in FAILURES.items():
            pairs = [(name, port.counters.get(name), now.get(port.name, {}).get(name)) for name in names]
            rises = [
                new - old
                for name, old, new in pairs
                # a counter that fell was reset, a full one shows nothing
                if old is not None and new is not None and LINK_ERRORS.get(name.rpartition("/")[2]) != old <= new
            ]
            if rises:
                failed.setdefault(kind, {})
            bits = seconds * (port.rate_bits_per_second or 0)
            value: float = sum(rises)
            if kind == SYMBOL_ERRORS:
                value = max(0.0, value - 3 * math.sqrt(value)) / bits if bits else 0.0
            # a lost link raises symbol errors, too
            is_explained = kind == SYMBOL_ERRORS and port.name in failed.get("link_down", ())
            if value and not is_explained:
                failed[kind][port.name] = value
    return failed
