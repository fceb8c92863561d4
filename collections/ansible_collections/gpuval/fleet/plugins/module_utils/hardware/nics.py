"""Facts on network interfaces and RDMA devices."""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct
from typing import Any, Optional

from .pci import ADDRESS, numa_node
from .tree import Tree

NET = "/sys/class/net"
RDMA = "/sys/class/infiniband"
VIRTUAL_LIMIT = 16
#: Values of operstate of an interface without a link (Documentation/networking/operstates.rst).
NO_LINK = ("down", "lowerlayerdown", "notpresent")
#: Values of link_layer, and of phys_state of a port with a link.
ETHERNET, INFINIBAND, LINK_UP = "Ethernet", "InfiniBand", "LinkUp"
_SIOCETHTOOL, _GDRVINFO = 0x8946, 0x00000003
#: struct ethtool_drvinfo: command, driver, version, firmware version, ... of linux/ethtool.h.
_SIZE, _FIRMWARE = 196, slice(68, 100)
MAX_NAME = 15
#: phys_port_name of interfaces that represent virtual functions and subfunctions (devlink-port.rst).
_FUNCTION = re.compile(r"(?:c\d+)?pf\d+(?:vf|sf)\d+")


def facts(tree: Tree) -> list[dict[str, Any]]:
    return [*_interfaces(tree), *(rdma_device(tree, name) for name in tree.entries(RDMA))]


def without_link(tree: Tree) -> set[str]:
    """Return the PCI addresses of network devices without a link on any interface or RDMA port."""
    states: dict[Optional[str], set[bool]] = {}
    for name in tree.entries(NET):
        address = pci_address(tree, f"{NET}/{name}/device")
        states.setdefault(address, set()).add(not has_link(tree, name))
    for name in tree.entries(RDMA):
        address, ports = pci_address(tree, f"{RDMA}/{name}/device"), f"{RDMA}/{name}/ports"
        for port in tree.entries(ports):
            state = _after_number(tree.read(f"{ports}/{port}/phys_state"))
            states.setdefault(address, set()).add(state not in (None, LINK_UP))
    return {address for address, unlinked in states.items() if address and unlinked == {True}}


def _interfaces(tree: Tree) -> list[dict[str, Any]]:
    """Return physical interfaces and bonds; without any (in a container), all interfaces."""
    names = [name for name in tree.entries(NET) if name not in ("lo", "bonding_masters")]
    physical = [name for name in names if tree.exists(f"{NET}/{name}/device") or tree.exists(f"{NET}/{name}/bonding")]
    return [_interface(tree, name) for name in physical or names[:VIRTUAL_LIMIT]]


def _interface(tree: Tree, name: str) -> dict[str, Any]:
    megabits = tree.number(f"{NET}/{name}/speed")  # -1 or an error while the link is down
    return {
        "kind": "interface",
        "name": name,
        "speed_bits_per_second": megabits * 1_000_000 if megabits and megabits > 0 else None,
        "mtu_bytes": tree.number(f"{NET}/{name}/mtu"),
        "state": tree.read(f"{NET}/{name}/operstate"),
        "driver": tree.link_name(f"{NET}/{name}/device/driver"),
        "address": tree.read(f"{NET}/{name}/address"),
        "pci_address": pci_address(tree, f"{NET}/{name}/device"),
        "numa_node": numa_node(tree, f"{NET}/{name}/device"),
        "interface_firmware": firmware_version(name) if tree.is_real else None,
    }


def rdma_device(tree: Tree, name: str) -> dict[str, Any]:
    """Return the facts on an RDMA device and its ports (Documentation/ABI/stable/sysfs-class-infiniband)."""
    ports = f"{RDMA}/{name}/ports"
    return {
        "kind": "rdma",
        "name": name,
        "firmware_version": tree.read(f"{RDMA}/{name}/fw_ver"),
        "board_id": tree.read(f"{RDMA}/{name}/board_id"),
        "model": tree.read(f"{RDMA}/{name}/hca_type"),
        "driver": tree.link_name(f"{RDMA}/{name}/device/driver"),
        "pci_address": pci_address(tree, f"{RDMA}/{name}/device"),
        "numa_node": numa_node(tree, f"{RDMA}/{name}/device"),
        "ports": [_port(tree, f"{ports}/{port}", port) for port in tree.entries(ports)],
    }


def _port(tree: Tree, folder: str, port: str) -> dict[str, Any]:
    rate = re.match(r"([\d.]+) Gb/sec", tree.read(f"{folder}/rate") or "")
    return {
        "port": int(port) if port.isdigit() else None,
        "state": _after_number(tree.read(f"{folder}/state")),
        "physical_state": _after_number(tree.read(f"{folder}/phys_state")),
        "link_layer": tree.read(f"{folder}/link_layer"),
        "rate_bits_per_second": int(float(rate.group(1)) * 1_000_000_000) if rate else None,
    }


def _after_number(state: Optional[str]) -> Optional[str]:
    """Return the name in a port's state as sysfs has it: `ACTIVE` of `4: ACTIVE`."""
    return None if state is None else state.partition(":")[2].strip() or state


def pci_address(tree: Tree, device: str) -> Optional[str]:
    """Return the PCI address to which a folder `device` of sysfs leads; None for a device of another bus."""
    name = tree.link_name(device)
    return name if name and ADDRESS.fullmatch(name) else None


def has_port(tree: Tree, name: str) -> bool:
    """Return whether an interface has a port of its own: it is no virtual function, whose cable is another port's, and
    represents none in a NIC's switch."""
    folder = f"{NET}/{name}"
    is_function = tree.exists(f"{folder}/device/physfn") or _FUNCTION.fullmatch(
        tree.read(f"{folder}/phys_port_name") or ""
    )
    return tree.exists(f"{folder}/device") and not is_function


def has_link(tree: Tree, name: str) -> bool:
    """Return whether an interface has a link; True as well if its state is unknown."""
    return tree.read(f"{NET}/{name}/operstate") not in NO_LINK


def firmware_version(name: str) -> Optional[str]:
    """Return an interface's firmware version by ETHTOOL_GDRVINFO, which needs no privileges; None if it has none."""
    if len(name.encode()) > MAX_NAME:
        return None
    info = array.array("B", struct.pack("I", _GDRVINFO).ljust(_SIZE, b"\0"))
    request = struct.pack("16sP16x", name.encode(), info.buffer_info()[0])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SIOCETHTOOL, request)
    except OSError:
        return None
    text = info.tobytes()[_FIRMWARE].partition(b"\0")[0].decode("ascii", "replace").strip()
    return text if text not in ("", "N/A") else None
