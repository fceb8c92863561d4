"""What to change so that a node's network is as declared, in order; pure."""

from __future__ import annotations

import fnmatch
import ipaddress
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from .hosts_file import block_of
from .settings import Interfaces, Settings
from .settings import Route as DeclaredRoute
from .state import Interface, State, can_be_restored, find_route, normal_value

HOSTS_FILE = "/etc/hosts"
LIMITS_FILE = "/etc/security/limits.d/99-gpuval.conf"


@dataclass(frozen=True)
class Change:
    """One thing that goes from `before` to `after`.

    state, mtu   of an interface
    flap         down; `before` says what goes lost by that
    address      on an interface: True is there, None is not
    route        `before` and `after` are routes as `ip -json` has them, None is none
    sysctl       values
    hosts        lines of the marked block
    limits       text of the file
    """

    kind: str
    subject: str
    before: Any
    after: Any
    interface: str = ""

    @property
    def identity(self) -> tuple[str, str, str]:
        return (self.kind, self.interface, self.subject)

    def inverse(self) -> Change:
        return Change(self.kind, self.subject, self.after, self.before, self.interface)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.kind == "flap":
            return f"{self.interface}: down and up again"
        if self.kind == "address":
            return f"{self.interface}: {'add' if self.after else 'remove'} address {self.subject}"
        if self.kind == "route":
            return f"route {self.subject}: {_way(self.before)} -> {_way(self.after)}"
        if self.kind in ("hosts", "limits"):
            return f"{self.subject}: {'write' if self.after is not None else 'remove'}"
        return f"{self.subject}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class Management:
    """What carries the connection to the controller, and must not be touched."""

    interfaces: frozenset[str] = frozenset()
    peer: Optional[str] = None
    reason: str = ""


@dataclass
class Plan:
    changes: list[Change] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)  # interfaces that must have a carrier in the end


def build(settings: Settings, state: State, management: Management, flapped: frozenset[str] = frozenset()) -> Plan:
    """The difference between what was declared and what is; `flapped` went down and up since the last boot already."""
    plan = Plan()
    wanted = _wanted(settings, state, plan)
    downs: list[Change] = []
    mtus: list[Change] = []
    ups: list[Change] = []
    rest: list[Change] = []
    for entry, members in wanted:
        flap = _flapping(entry, members, flapped)
        for interface in members:
            rest += [*_addresses(interface, entry), *_routes(interface, entry, state, plan)]
            if entry.state == "up":
                plan.links.append(interface.name)
            if flap and interface.up:
                downs.append(Change("flap", interface.name, _lost(interface, state), "done", interface.name))
            elif interface.state != entry.state:
                change = Change("state", f"{interface.name} state", interface.state, entry.state, interface.name)
                (ups if entry.state == "up" else downs).append(change)
            if entry.mtu not in (None, interface.mtu):
                mtus.append(Change("mtu", f"{interface.name} mtu", interface.mtu, entry.mtu, interface.name))
    # all down before the first comes up: ends of one link may be on this machine, and both must let go
    plan.changes = [*downs, *mtus, *ups, *rest, *_sysctls(settings, state, plan), *_files(settings, state)]
    plan.problems += _cutting(plan.changes, state, management)
    return plan


def matches(entry: Interfaces, interface: Interface) -> bool:
    if interface.name == "lo" or any(fnmatch.fnmatchcase(interface.name, text) for text in entry.exclude):
        return False
    tests = ((entry.name, interface.name == entry.name), (entry.pattern, _like(interface.name, entry.pattern)))
    if not all(result for asked, result in tests if asked):
        return False
    return not entry.driver or _like(interface.driver or "", entry.driver)


def protected(state: State, carriers: Iterable[str]) -> frozenset[str]:
    """These interfaces and all that they stand on: members of the bond or bridge, the port below the VLAN."""
    found: set[str] = set()
    todo = [name for name in carriers if name in state.interfaces]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        below = state.interfaces[name].below
        todo += [below] if below in state.interfaces else []
        todo += [other.name for other in state.interfaces.values() if other.above == name]
        above = state.interfaces[name].above
        todo += [above] if above in state.interfaces else []
    return frozenset(found)


def current(change: Change, state: State) -> Any:
    """What now is where the change is to lead; comparable with its `before` and `after`."""
    interface = state.interfaces.get(change.interface)
    if change.kind in ("state", "mtu", "address", "flap") and interface is None:
        return None
    if change.kind == "state":
        return interface.state
    if change.kind == "mtu":
        return interface.mtu
    if change.kind == "address":
        return True if change.subject in interface.addresses else None
    if change.kind == "flap":
        return "done" if interface.up else "down"
    if change.kind == "route":
        example = change.after or change.before
        return find_route(state, example["dst"], example["metric"])
    if change.kind == "sysctl":
        return state.sysctls.get(change.subject)
    return state.hosts_block if change.kind == "hosts" else state.limits


def same(change: Change, one: Any, other: Any) -> bool:
    if change.kind == "route" and one and other:
        return all(one.get(key) == other.get(key) for key in ("gateway", "dev"))
    if change.kind == "sysctl":
        return normal_value(one) == normal_value(other)
    return one == other


def _wanted(settings: Settings, state: State, plan: Plan) -> list[tuple[Interfaces, list[Interface]]]:
    found, owner = [], {}
    for entry in settings.interfaces:
        members = [interface for interface in state.interfaces.values() if matches(entry, interface)]
        least = 1 if entry.count is None else entry.count
        if len(members) < least:
            names = ", ".join(interface.name for interface in members) or "none"
            plan.problems.append(
                f"{len(members)} of {least} interface(s) with {entry} found ({names}): look at the driver (dmesg) and "
                f"the card, or correct network_interfaces; there are {', '.join(sorted(state.interfaces))}"
            )
        for interface in members:
            if interface.name in owner:
                plan.problems.append(
                    f"{interface.name} is meant by two entries of network_interfaces "
                    f"({owner[interface.name]}; {entry}): leave one of them, or use exclude"
                )
            owner[interface.name] = entry
        found.append((entry, members))
    return found


def _flapping(entry: Interfaces, members: list[Interface], flapped: frozenset[str]) -> bool:
    """All of the group or none: once after a boot, and again when one of them is not as it should be."""
    if not entry.flap:
        return False
    return any(
        interface.name not in flapped
        or not (interface.up and interface.carrier)
        or entry.mtu not in (None, interface.mtu)
        for interface in members
    )


def _lost(interface: Interface, state: State) -> dict[str, Any]:
    """What the kernel drops when the interface goes down and does not bring back by itself."""
    return {
        "addresses": [text for text in interface.addresses if ":" in text and text not in interface.dynamic],
        "routes": [
            route
            for route in state.routes
            if route.get("dev") == interface.name and route.get("protocol") not in ("kernel", "ra")
        ],
    }


def _addresses(interface: Interface, entry: Interfaces) -> list[Change]:
    missing = [text for text in entry.addresses if text not in interface.addresses]
    return [Change("address", text, None, True, interface.name) for text in missing]


def _routes(interface: Interface, entry: Interfaces, state: State, plan: Plan) -> list[Change]:
    found = []
    for declared in entry.routes:
        now = find_route(state, declared.to, declared.metric)
        wanted = _route(interface, declared)
        change = Change("route", f"{wanted['dst']} metric {wanted['metric']}", now, wanted)
        if same(change, now, wanted):
            continue
        if now and not can_be_restored(now):
            plan.problems.append(
                f"the route to {declared.to} has settings that could not be put back ({', '.join(sorted(now))}): "
                "remove it yourself, or declare another metric"
            )
            continue
        found.append(change)
    return found


def _route(interface: Interface, declared: DeclaredRoute) -> dict[str, Any]:
    version = ipaddress.ip_network(declared.to).version
    metric = declared.metric if declared.metric is not None else {4: 0, 6: 1024}[version]
    via = {"gateway": declared.via} if declared.via else {}
    return {"dst": declared.to, "version": version, "dev": interface.name, "metric": metric, **via}


def _sysctls(settings: Settings, state: State, plan: Plan) -> list[Change]:
    found = []
    for name, value in settings.sysctls.items():
        now = state.sysctls.get(name)
        if now is None:
            plan.problems.append(
                f"this kernel has no parameter {name}: load its module, or take it out of network_sysctls"
            )
        elif normal_value(now) != value:
            found.append(Change("sysctl", name, now, value))
    return found


def _files(settings: Settings, state: State) -> list[Change]:
    found = []
    if settings.hosts:
        block = block_of(settings.hosts)
        if block != state.hosts_block:
            found.append(Change("hosts", HOSTS_FILE, state.hosts_block, block))
    if settings.limits:
        text = "".join(f"{line}\n" for line in settings.limits)
        if text != state.limits:
            found.append(Change("limits", LIMITS_FILE, state.limits, text))
    return found


def _cutting(changes: list[Change], state: State, management: Management) -> list[str]:
    """Why a change would touch the connection that it is ordered through."""
    found = []
    peer = ipaddress.ip_address(management.peer) if management.peer else None
    for change in changes:
        if change.interface in management.interfaces:
            found.append(
                f"refused: {change} would touch {change.interface}, which carries the management connection "
                f"({management.reason}): set it in the operating system's own configuration, or leave it out by exclude"
            )
        elif peer and _draws_away(change, state, peer, management):
            found.append(
                f"refused: {change} would lead the way to the controller ({peer}) through another interface and "
                "cut the management connection: declare a narrower network or route"
            )
    return found


def _draws_away(change: Change, state: State, peer: Any, management: Management) -> bool:
    if change.kind == "sysctl":
        name = change.subject.replace("/", ".")
        return peer.version == 6 and name.endswith(".disable_ipv6") and change.after not in ("0", None)
    if change.kind == "route":
        route = change.after
        return (
            bool(route)
            and route["dev"] not in management.interfaces
            and _wins(route["dst"], route["metric"], state, peer)
        )
    if change.kind == "address":
        return _connected_wins(change.subject, state, peer)
    if change.kind == "state" and change.after == "up":
        return any(_connected_wins(text, state, peer) for text in state.interfaces[change.interface].addresses)
    return False


def _connected_wins(address: str, state: State, peer: Any) -> bool:
    """An address brings a route to its network with it."""
    network = ipaddress.ip_interface(address).network
    return _wins(str(network), {4: 0, 6: 256}[network.version], state, peer)


def _wins(to: str, metric: int, state: State, peer: Any) -> bool:
    """Whether a route to this network would replace the peer's present route."""
    network = ipaddress.ip_network(to)
    if peer not in network:
        return False
    ways = [
        (ipaddress.ip_network(route["dst"]), route["metric"])
        for route in state.routes
        if peer in ipaddress.ip_network(route["dst"])
    ]
    best = max(((leads.prefixlen, -cost) for leads, cost in ways), default=(-1, 0))
    return (network.prefixlen, -metric) >= best


def _like(text: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(text, pattern)


def _way(route: Optional[dict[str, Any]]) -> str:
    if not route:
        return "none"
    return " ".join([*(["via", route["gateway"]] if route.get("gateway") else []), "dev", str(route.get("dev"))])
