"""The connection to the controller: its interfaces, and which changes would cut it; pure except `ssh_connection`."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Optional

from ..process_stat import look, variable_of
from .changes import NetworkChange
from .state import NetworkState

#: Metric of the route that the kernel adds for the network of an interface's address, by IP version.
CONNECTED_METRIC = {4: 0, 6: 256}


@dataclass(frozen=True)
class ManagementConnection:
    """The connection to the controller: interfaces `carriers` lead to its address `peer`; `interfaces` are these and
    all that they depend on."""

    carriers: tuple[str, ...] = ()
    interfaces: frozenset[str] = frozenset()
    peer: Optional[str] = None
    reason: str = ""

    def refusals(self, changes: Iterable[NetworkChange], state: NetworkState) -> list[str]:
        """Return the reasons why changes would cut the connection to the controller; empty if none would."""
        refusals = []
        for change in changes:
            if change.interface in self.interfaces:
                refusals.append(
                    f"refused: {change} would touch {change.interface}, which carries the management connection "
                    f"({self.reason}): set it in the operating system's own configuration, or leave it out by exclude"
                )
            elif self.peer and self._is_diverted(change, state):
                refusals.append(
                    f"refused: {change} would lead the way to the controller ({self.peer}) through another interface "
                    "and cut the management connection: declare a narrower network or route"
                )
        return refusals

    def _is_diverted(self, change: NetworkChange, state: NetworkState) -> bool:
        """Whether a change would lead packets to the controller through an interface other than now."""
        peer, addresses = ipaddress.ip_address(self.peer or ""), []
        if change.kind == "sysctl":
            is_disabling = change.subject.replace("/", ".").endswith(".disable_ipv6") and change.after != "0"
            return peer.version == 6 and is_disabling
        if change.kind == "route":
            route = change.after
            return route["dev"] not in self.interfaces and _is_preferred(route["dst"], route["metric"], state, peer)
        if change.kind == "address":
            addresses = [change.subject]
        elif change.kind == "state" and change.after == "up":
            addresses = list(state.interfaces[change.interface].addresses)
        networks = [ipaddress.ip_interface(address).network for address in addresses]
        return any(_is_preferred(str(it), CONNECTED_METRIC[it.version], state, peer) for it in networks)


def find_management(
    state: NetworkState, device_to_peer: Optional[str], connection: Optional[str], declared: str
) -> ManagementConnection:
    """Return the connection to the controller, by SSH_CONNECTION (`connection`), else by the inventory's address
    (`declared`), else by the default route.

    `device_to_peer`: the interface of the route to the other end of `connection`.
    """
    carriers, reasons = set(), []
    peer = peer_of(connection)
    if peer:
        local = _plain_address((connection or "").split()[2])
        carriers = {device_to_peer} if device_to_peer else set()
        carriers |= _holders(state, local)
        reasons.append(f"SSH from {peer}")
    if holders := _holders(state, declared):
        carriers |= holders
        reasons.append(f"it has {declared}")
    if not carriers:
        carriers = {route["dev"] for route in state.routes if route["dst"] in ("0.0.0.0/0", "::/0") and "dev" in route}
        reasons.append("the default route leads through it")
    names = tuple(sorted(carriers - {"lo"}))
    return ManagementConnection(names, with_dependencies(state, names), peer, ", ".join(reasons))


def peer_of(connection: Optional[str]) -> Optional[str]:
    """Return the controller's address in the text of SSH_CONNECTION."""
    words = (connection or "").split()
    return _plain_address(words[0]) if len(words) == 4 else None


def ssh_connection() -> Optional[str]:
    """Return the variable SSH_CONNECTION of this process or an ancestor: sudo removes it from the environment."""
    if os.environ.get("SSH_CONNECTION"):
        return os.environ["SSH_CONNECTION"]
    pid = os.getppid()
    for _step in range(32):
        process = look(pid) if pid > 1 else None
        if process is None:
            break
        if connection := variable_of(pid, "SSH_CONNECTION"):
            return connection
        pid = process.parent
    return None


def with_dependencies(state: NetworkState, carriers: Iterable[str]) -> frozenset[str]:
    """Return the interfaces `carriers` and all that they depend on: members of a bond or bridge, ports below VLANs."""
    names: set[str] = set()
    waiting = [name for name in carriers if name in state.interfaces]
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            interface = state.interfaces[name]
            waiting += [other.name for other in state.interfaces.values() if other.above == name]
            waiting += [other for other in (interface.below, interface.above) if other in state.interfaces]
    return frozenset(names)


def _is_preferred(to: str, metric: int, state: NetworkState, peer: Any) -> bool:
    """Whether a route to the network `to` would be preferred to the present route to the peer."""
    network = ipaddress.ip_network(to)
    present = [(ipaddress.ip_network(route["dst"]), route["metric"]) for route in state.routes]
    best = max(((known.prefixlen, -cost) for known, cost in present if peer in known), default=(-1, 0))
    return peer in network and (network.prefixlen, -metric) >= best


def _holders(state: NetworkState, address: str) -> set[str]:
    return {
        name
        for name, interface in state.interfaces.items()
        if address in (text.partition("/")[0] for text in (*interface.addresses, *interface.link_local))
    }


def _plain_address(text: str) -> str:
    return text.partition("%")[0].removeprefix("::ffff:")
