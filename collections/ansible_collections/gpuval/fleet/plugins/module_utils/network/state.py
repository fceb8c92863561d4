"""The state of a node's network, parsed from `ip -json`; pure."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass, field
from typing import Any, Optional

from ..node_directory import NodeError

#: Maximum numbers of interfaces and addresses to show of a node.
MOST_INTERFACES, MOST_ADDRESSES = 128, 32

#: Metric of a route that is listed without one, by IP version.
DEFAULT_METRIC = {4: 0, 6: 1024}

#: Keys of a route that `route_words` can restore. Routes with other keys are not replaced.
ROUTE_KEYS = {"type", "dst", "gateway", "dev", "protocol", "scope", "prefsrc", "metric", "flags", "pref"}


@dataclass(frozen=True)
class HostInterface:
    name: str
    up: bool = False  # administrative state of the interface
    carrier: bool = False  # whether the link works
    mtu: int = 0
    addresses: tuple[str, ...] = ()  # addresses with prefix length, without link-local ones
    dynamic: frozenset[str] = frozenset()  # addresses from DHCP or router advertisements
    pending: frozenset[str] = frozenset()  # addresses whose duplicate detection is under way
    duplicate: frozenset[str] = frozenset()  # addresses that another machine has, too
    link_local: tuple[str, ...] = ()
    above: Optional[str] = None  # bond or bridge of which the interface is a member
    below: Optional[str] = None  # interface on which the VLAN or macvlan is
    driver: Optional[str] = None
    physical: bool = False

    @property
    def state(self) -> str:
        return "up" if self.up else "down"


@dataclass(frozen=True)
class NetworkState:
    interfaces: dict[str, HostInterface] = field(default_factory=dict)
    routes: tuple[dict[str, Any], ...] = ()
    sysctls: dict[str, Optional[str]] = field(default_factory=dict)  # None for a parameter that the kernel lacks
    hosts_block: Optional[str] = None
    limits: Optional[str] = None
    boot_id: str = ""


def shown(state: NetworkState) -> dict[str, dict[str, Any]]:
    """Return a node's interfaces by name, in the form in which they are reported and compared with other nodes'.

    If many are virtual (of containers), interfaces without hardware are left out.
    """
    chosen = [interface for interface in state.interfaces.values() if interface.name != "lo"]
    if len(chosen) > MOST_INTERFACES:
        chosen = [interface for interface in chosen if interface.physical][:MOST_INTERFACES]
    return {
        interface.name: {
            "state": interface.state,
            "carrier": interface.carrier,
            "mtu": interface.mtu,
            "addresses": list(interface.addresses[:MOST_ADDRESSES]),
            "driver": interface.driver,
            "physical": interface.physical,
        }
        for interface in chosen
    }


def parse_interfaces(text: str, drivers: dict[str, Optional[str]]) -> dict[str, HostInterface]:
    """Return interfaces by name, from `ip -json -details address show`. `drivers`: kernel drivers of hardware."""
    interfaces = {}
    for entry in _json(text, "ip address"):
        name = entry.get("ifname")
        if not name:
            continue
        listed = [info for info in entry.get("addr_info", []) if info.get("local")]
        plain = [info for info in listed if info.get("scope") != "link"]
        interfaces[name] = HostInterface(
            name=name,
            up="UP" in entry.get("flags", []),
            carrier="LOWER_UP" in entry.get("flags", []),
            mtu=int(entry.get("mtu", 0)),
            addresses=tuple(map(_cidr, plain)),
            dynamic=frozenset(_cidr(info) for info in plain if info.get("dynamic")),
            pending=frozenset(_cidr(info) for info in plain if info.get("tentative") and not info.get("dadfailed")),
            duplicate=frozenset(_cidr(info) for info in plain if info.get("dadfailed")),
            link_local=tuple(_cidr(info) for info in listed if info.get("scope") == "link"),
            above=entry.get("master"),
            # for a veth pair, `link` is the other end
            below=entry.get("link") if entry.get("linkinfo", {}).get("info_kind") != "veth" else None,
            driver=drivers.get(name),
            physical=name in drivers,
        )
    return interfaces


def parse_routes(text: str, version: int) -> tuple[dict[str, Any], ...]:
    """Return the main table's routes, from `ip -4|-6 -json -details route show`, each with full `dst` and `metric`."""
    everything = "0.0.0.0/0" if version == 4 else "::/0"
    routes = []
    for entry in _json(text, "ip route"):
        to = entry.get("dst", "default")
        network = ipaddress.ip_network(everything if to == "default" else to, strict=False)
        metric = int(entry.get("metric", DEFAULT_METRIC[version]))
        routes.append({**entry, "version": version, "dst": str(network), "metric": metric})
    return tuple(routes)


def find_route(state: NetworkState, to: str, metric: int) -> Optional[dict[str, Any]]:
    return next((route for route in state.routes if (route["dst"], route["metric"]) == (to, metric)), None)


def route_words(route: dict[str, Any]) -> list[str]:
    """Return a route of `ip -json` as arguments of `ip route replace`."""
    words = [route["type"]] if route.get("type", "unicast") != "unicast" else []
    words.append(route["dst"])
    for key, word in (("gateway", "via"), ("dev", "dev"), ("protocol", "proto"), ("prefsrc", "src")):
        if route.get(key) is not None:
            words += [word, str(route[key])]
    if route.get("scope") not in (None, "global") and route["version"] == 4:
        words += ["scope", str(route["scope"])]
    if route.get("metric"):
        words += ["metric", str(route["metric"])]
    words += ["onlink"] if "onlink" in route.get("flags", []) else []
    return words


def is_restorable(route: dict[str, Any]) -> bool:
    return set(route) <= ROUTE_KEYS | {"version"}


def normal_value(value: Optional[str]) -> Optional[str]:
    """Return the value of a kernel parameter with its tabs replaced by blanks."""
    return None if value is None else " ".join(value.split())


def _cidr(info: dict[str, Any]) -> str:
    return f"{info['local']}/{info['prefixlen']}"


def _json(text: str, call: str) -> list[dict[str, Any]]:
    try:
        return [entry for entry in json.loads(text or "[]") if isinstance(entry, dict)]
    except ValueError as error:
        raise NodeError(f"`{call}` does not answer in JSON ({error}): install iproute2 4.14 or newer") from error
