"""Facts on what the ports of a node are connected to: LLDP neighbours of Ethernet ports, peers of InfiniBand ports.

InfiniBand ports ask only their direct peer (`smpquery` by directed route): nodes that each read the whole fabric
(`iblinkinfo`, `ibdiagnet`) would load its subnet manager.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Optional

from . import nics
from .tools import Run, ToolResult
from .tree import Tree
from .values import text

MAX_PORTS, MAX_NEIGHBOURS, MAX_TEXT = 128, 8, 120
TOOL_SECONDS, INFINIBAND_SECONDS = 5.0, 15.0
#: Of linux/if_arp.h: the type of IPoIB interfaces, which have no LLDP.
ARPHRD_INFINIBAND = 32
NO_LINK = "no link"
#: Bits of a bridge and a router in LLDP's capabilities (IEEE 802.1AB); an agent with none of them is a host.
BRIDGE_OR_ROUTER = 0x04 | 0x10
#: Parts of a tool's error message that differ between nodes: process id, time.
_VARYING = re.compile(r"\[\d+\] |\d{4}-\d\d-\d\dT\S+ ")
#: How managed InfiniBand switches describe themselves: `MF0;leaf1:MQM8700/U1`, where `leaf1` is the name.
_MANAGED_SWITCH = re.compile(r"MF\d+;(.+):[^:]+")
_FIELD = re.compile(r"^(Guid|LocalPort|Node Description):\.*(.+)$", re.MULTILINE)

#: Device at the other end of a cable: `name` and `id` (chassis id or GUID), or None, and `ports` (names of its port).
Neighbour = dict[str, Any]


def facts(tree: Tree, run: Run) -> list[dict[str, Any]]:
    """Return the node's ports: `names` (interface or RDMA device, PCI address, other names of that PCI device),
    `neighbours`, and `problem`, why no neighbour is known."""
    interfaces, devices = ({name: nics.pci_address(tree, f"{folder}/{name}/device") for name in tree.entries(folder)}
                           for folder in (nics.NET, nics.RDMA))  # fmt: skip
    ports = [*_infiniband_ports(tree, run, interfaces, devices)]
    neighbours_of, complaint = lldp_neighbours(run)
    for name, address in interfaces.items():
        neighbours = neighbours_of.get(name, [])
        folder = f"{nics.NET}/{name}"
        if tree.number(f"{folder}/type") == ARPHRD_INFINIBAND or not (neighbours or nics.has_port(tree, name)):
            continue
        is_up = nics.has_link(tree, name)
        problem = None if neighbours else complaint or "no LLDP neighbour" if is_up else NO_LINK
        ports.append({"names": _names(name, address, devices), "neighbours": neighbours, "problem": problem})
    return ports[:MAX_PORTS]


def _names(name: str, address: Optional[str], others: dict[str, Optional[str]]) -> list[str]:
    """Return a port's name, its PCI address, and its names in `others`: PCI addresses by interface or RDMA device."""
    return [name, *([address, *(other for other, its in others.items() if its == address)] if address else [])]


def lldp_neighbours(run: Run) -> tuple[dict[str, list[Neighbour]], str]:
    """Return LLDP neighbours by interface, by lldpd or systemd-networkd, and why neither answers, empty if one does."""
    complaints = []
    for tool, arguments, read in (
        ("lldpctl", ("-f", "json"), _lldpd_neighbours),
        ("networkctl", ("--json=short", "lldp"), _networkd_neighbours),
    ):
        answer = run(tool, *arguments, timeout=TOOL_SECONDS)
        try:
            pairs = [*read(json.loads(answer.stdout))] if answer.ok else []
        except (ValueError, RecursionError):
            complaints.append(f"{tool} of this version prints no JSON")
            continue
        neighbours: dict[str, list[Neighbour]] = {}
        for interface, neighbour in pairs:
            neighbours.setdefault(interface, []).append(neighbour)
        if neighbours:
            return {name: of_port[:MAX_NEIGHBOURS] for name, of_port in neighbours.items()}, ""
        complaints.append("" if answer.ok else _complaint(answer))
    return {}, "" if "" in complaints else "; ".join(complaints)


def _lldpd_neighbours(document: Any) -> Iterator[tuple[str, Neighbour]]:
    """Yield interface and neighbour from `lldpctl -f json`: lists of named objects (json0, old versions), or objects
    whose keys are the names."""
    for entry in _objects(_first(document, "lldp").get("interface")):
        named = [(entry["name"], entry)] if isinstance(entry.get("name"), str) else entry.items()
        for interface, port in named:
            chassis = _first(port, "chassis")
            name = _text(chassis, "name")
            if "id" not in chassis and len(chassis) == 1:
                name, chassis = next(iter(chassis)), _first(chassis, next(iter(chassis)))
            enabled = {
                str(item.get("type")) for item in _objects(chassis.get("capability")) if item.get("enabled") is True
            }
            if enabled and not enabled & {"Bridge", "Router"}:
                continue
            ports = [_text(_first(port, "port"), key) for key in ("id", "descr")]
            yield interface, _neighbour(name, _text(chassis, "id"), ports)


def _networkd_neighbours(document: Any) -> Iterator[tuple[str, Neighbour]]:
    """Yield interface and neighbour from `networkctl --json=short lldp` (systemd 256 or newer)."""
    for interface in _objects(document.get("Neighbors") if isinstance(document, dict) else None):
        for peer in _objects(interface.get("Neighbors")):
            enabled = peer.get("EnabledCapabilities")
            if isinstance(enabled, int) and enabled and not enabled & BRIDGE_OR_ROUTER:
                continue
            name, chassis, *ports = (peer.get(key) for key in ("SystemName", "ChassisID", "PortID", "PortDescription"))
            yield str(interface.get("InterfaceName")), _neighbour(name, chassis, ports)


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the JSON objects in a list, or a single object as a list."""
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]


def _first(value: Any, key: str) -> dict[str, Any]:
    return next(iter(_objects(value.get(key) if isinstance(value, dict) else None)), {})


def _text(value: dict[str, Any], key: str) -> Any:
    """Return `value[key]`, which may be a text, an object with a `value`, or a list of such."""
    return _first(value, key).get("value", value.get(key))


def _neighbour(name: Any, identity: Any, ports: list[Any]) -> Neighbour:
    name, identity, *ports = (word and word[:MAX_TEXT] for word in map(text, (name, identity, *ports)))
    return {"name": name, "id": identity, "ports": [port for port in ports if port]}


def _infiniband_ports(
    tree: Tree, run: Run, interfaces: dict[str, Optional[str]], devices: dict[str, Optional[str]]
) -> Iterator[dict[str, Any]]:
    deadline = time.monotonic() + INFINIBAND_SECONDS
    for device, address in devices.items():
        for port in nics.rdma_device(tree, device)["ports"]:
            number = port["port"]
            if port["link_layer"] != nics.INFINIBAND or number is None:
                continue
            names = [f"{device}:{number}", *(_names(device, address, interfaces) if number == 1 else [])]
            neighbours: list[Neighbour] = []
            if port["physical_state"] != nics.LINK_UP:
                problem = NO_LINK
            elif time.monotonic() > deadline:
                problem = f"no answer to smpquery within {INFINIBAND_SECONDS:g} s for earlier ports"
            else:
                neighbours, problem = infiniband_peer(run, device, str(number))
            yield {"names": names, "neighbours": neighbours, "problem": problem or None}


def infiniband_peer(run: Run, device: str, port: str) -> tuple[list[Neighbour], str]:
    """Return the peer at the other end of an InfiniBand cable, and why it is not known. NodeInfo of the peer has the
    port at which the query arrived (InfiniBand architecture, 14.2.5.3). A switch without a name of its own is described
    by its model."""
    fields: dict[str, str] = {}
    for query in ("nodeinfo", "nodedesc"):
        answer = run("smpquery", "-C", device, "-P", port, "-t", "500", "-D", query, f"0,{port}", timeout=TOOL_SECONDS)
        if not answer.ok:
            return [], _complaint(answer).replace(f"{device}:{port}", "DEVICE:PORT")
        fields.update(_FIELD.findall(answer.stdout))
    if "LocalPort" not in fields:
        return [], "smpquery prints no LocalPort"
    description = fields.get("Node Description", "").strip()
    managed = _MANAGED_SWITCH.fullmatch(description)
    name = managed[1] if managed else None if "Technologies" in description else description
    return [_neighbour(name, fields.get("Guid"), [fields["LocalPort"]])], ""


def _complaint(answer: ToolResult) -> str:
    """Return why a tool gave no answer, by the last line that it wrote to stderr: warnings come before."""
    last = answer.stderr.strip().splitlines()[-1:]
    return _VARYING.sub("", replace(answer, stderr="".join(last)).complaint)
