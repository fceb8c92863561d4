"""What the network of a node is, from what `ip -json` says; pure."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass, field
from typing import Any, Optional

from ..node_directory import NodeError

#: Of what is shown of a node, at most.
MOST_INTERFACES, MOST_ADDRESSES = 128, 32

#: What a metric that is not shown stands for.
DEFAULT_METRIC = {4: 0, 6: 1024}

#: Keys of a route that `route_words` can give back to the kernel. Routes with others are not replaced.
ROUTE_KEYS = {"type", "dst", "gateway", "dev", "protocol", "scope", "prefsrc", "metric", "flags", "pref"}


@dataclass(frozen=True)
class HostInterface:
    name: str
    up: bool = False  # what the administrator wants
    carrier: bool = False  # what the link says
    mtu: int = 0
    addresses: tuple[str, ...] = ()  # with prefix length, link-local ones left out
    dynamic: frozenset[str] = frozenset()  # of these, what DHCP or router advertisements gave
    pending: frozenset[str] = frozenset()  # duplicate address detection is under way
    duplicate: frozenset[str] = frozenset()  # another machine has it
    link_local: tuple[str, ...] = ()
    above: Optional[str] = None  # bond or bridge that it is a member of
    below: Optional[str] = None  # interface that a VLAN or macvlan stands on
    driver: Optional[str] = None
    physical: bool = False

    @property
    def state(self) -> str:
        return "up" if self.up else "down"


@dataclass(frozen=True)
class NetworkState:
    interfaces: dict[str, HostInterface] = field(default_factory=dict)
    routes: tuple[dict[str, Any], ...] = ()
    sysctls: dict[str, Optional[str]] = field(default_factory=dict)  # None: the kernel does not know it
    hosts_block: Optional[str] = None
    limits: Optional[str] = None
    boot_id: str = ""


def shown(state: NetworkState) -> dict[str, dict[str, Any]]:
    """Interfaces by name, to be shown and compared with other nodes'.

    Where many are not hardware (containers' ends), those without hardware are left out.
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


def parse_interfaces(text: str, drivers: dict[str, str], physical: frozenset[str]) -> dict[str, HostInterface]:
    """Interfaces by name, from `ip -json -details address show`."""
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
            # the other end of a veth pair is also called its link
            below=entry.get("link") if entry.get("linkinfo", {}).get("info_kind") != "veth" else None,
            driver=drivers.get(name),
            physical=name in physical,
        )
    return interfaces


def parse_routes(text: str, version: int) -> tuple[dict[str, Any], ...]:
    """Routes of the main table, from `ip -4|-6 -json -details route show`, with a whole `dst` and a `metric` always."""
    everything = "0.0.0.0/0" if version == 4 else "::/0"
    routes = []
    for entry in _json(text, "ip route"):
        to = entry.get("dst", "default")
        network = ipaddress.ip_network(everything if to == "default" else to, strict=False)
        metric = int(entry.get("metric", DEFAULT_METRIC[version]))
        routes.append({**entry, "version": version, "dst": str(network), "metric": metric})
    return tuple(routes)


def next_hop(text: str) -> Optional[dict[str, Any]]:
    """Device and gateway of `ip -json route get`; None when there is no way."""
    try:
        entry = json.loads(text)[0]
    except (ValueError, LookupError):
        return None
    return {key: entry[key] for key in ("dev", "gateway") if key in entry} or None


def find_route(state: NetworkState, to: str, metric: Optional[int]) -> Optional[dict[str, Any]]:
    version = ipaddress.ip_network(to).version
    metric_value = DEFAULT_METRIC[version] if metric is None else metric
    for route in state.routes:
        if route["dst"] == to and route["version"] == version and route["metric"] == metric_value:
            return route
    return None


def route_words(route: dict[str, Any]) -> list[str]:
    """The route as `ip route replace` takes it."""
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
    """A kernel parameter without the tabs that it separates its numbers by."""
    return None if value is None else " ".join(value.split())


def _cidr(info: dict[str, Any]) -> str:
    return f"{info['local']}/{info['prefixlen']}"


def _json(text: str, call: str) -> list[dict[str, Any]]:
    try:
        return [entry for entry in json.loads(text or "[]") if isinstance(entry, dict)]
    except ValueError as error:
        raise NodeError(f"`{call}` does not answer in JSON ({error}): install iproute2 4.14 or newer") from error
