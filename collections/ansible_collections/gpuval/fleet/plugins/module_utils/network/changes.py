"""Plans the changes that make a node's network as declared, in order; pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from .declaration import DeclaredInterfaces, NetworkDeclaration
from .hosts_file import block_of
from .state import HostInterface, NetworkState, find_route, is_restorable, normal_value

HOSTS_FILE = "/etc/hosts"
LIMITS_FILE = "/etc/security/limits.d/99-gpuval.conf"


@dataclass(frozen=True)
class NetworkChange:
    """One setting that goes from `before` to `after`, by `kind`:

    state, mtu   of an interface
    flap         down and up; `before`: addresses and routes lost by that, `after`: id of the boot in which it happened
    address      on an interface: True is present, None absent
    route        routes as `ip -json` has them; None is none
    sysctl       values
    hosts        lines of the marked block in /etc/hosts
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

    @property
    def sysctls(self) -> list[str]:
        """Return the kernel parameters that `value_in` needs in a network state."""
        return [self.subject] if self.kind == "sysctl" else []

    @property
    def is_down(self) -> bool:
        """Whether the change sets a network interface down, even for a moment."""
        return self.kind == "flap" or (self.kind == "state" and self.after == "down")

    def inverse(self) -> NetworkChange:
        return NetworkChange(self.kind, self.subject, self.after, self.before, self.interface)

    def value_in(self, state: NetworkState) -> Any:
        """Return the setting's value in a network state, as `before` and `after` have it; for a flap, up or down."""
        if self.kind == "route":
            route = self.after or self.before
            return find_route(state, route["dst"], route["metric"])
        if self.kind == "sysctl":
            return state.sysctls.get(self.subject)
        if self.kind in ("hosts", "limits"):
            return state.hosts_block if self.kind == "hosts" else state.limits
        interface = state.interfaces.get(self.interface)
        if interface is None:
            return None
        if self.kind == "address":
            return True if self.subject in interface.addresses else None
        return interface.mtu if self.kind == "mtu" else interface.state

    def is_same(self, value: Any, value_now: Any) -> bool:
        """Whether two values of the change's setting are equal; for a route, its gateway and interface count."""
        if self.kind == "route" and value and value_now:
            return all(value.get(key) == value_now.get(key) for key in ("gateway", "dev"))
        if self.kind == "sysctl":
            return normal_value(value) == normal_value(value_now)
        return value == value_now

    def __str__(self) -> str:
        if self.kind == "flap":
            return f"{self.interface}: down and up again"
        if self.kind == "address":
            return f"{self.interface}: {'add' if self.after else 'remove'} address {self.subject}"
        if self.kind == "route":
            return f"route {self.subject}: {_next_hop(self.before)} -> {_next_hop(self.after)}"
        if self.kind in ("hosts", "limits"):
            return f"{self.subject}: {'write' if self.after is not None else 'remove'}"
        return f"{self.subject}: {self.before} -> {self.after}"


@dataclass
class NetworkPlan:
    changes: list[NetworkChange] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)  # interfaces that must have a carrier in the end

    def add(self, kind: str, subject: str, before: Any, after: Any, interface: str = "") -> None:
        self.changes.append(NetworkChange(kind, subject, before, after, interface))

    def links_down(self, state: NetworkState) -> list[str]:
        return [
            name
            for name in dict.fromkeys(self.links)
            if not (name in state.interfaces and state.interfaces[name].up and state.interfaces[name].carrier)
        ]


def plan_changes(
    declaration: NetworkDeclaration, state: NetworkState, flapped: frozenset[str] = frozenset()
) -> NetworkPlan:
    """Return the changes of a node's network that make `state` as declared. Interfaces in `flapped` went down and up in
    this boot already."""
    plan = NetworkPlan()
    for entry, interfaces in _selected(declaration, state, plan):
        # either all interfaces of an entry flap, or none
        is_flapping = entry.flap and any(
            not (
                interface.name in flapped and interface.up and interface.carrier and entry.mtu in (None, interface.mtu)
            )
            for interface in interfaces
        )
        for interface in interfaces:
            name = interface.name
            if entry.state == "up":
                plan.links.append(name)
            if is_flapping and interface.up:
                plan.add("flap", name, _lost_by_down(interface, state), state.boot_id, name)
            elif interface.state != entry.state:
                plan.add("state", f"{name} state", interface.state, entry.state, name)
            if entry.mtu not in (None, interface.mtu):
                plan.add("mtu", f"{name} mtu", interface.mtu, entry.mtu, name)
            for address in entry.addresses:
                if address not in interface.addresses:
                    plan.add("address", address, None, True, name)
            _add_routes(name, entry, state, plan)
    # all down before the first comes up: both ends of a link may be on this machine, and both must be down
    plan.changes.sort(key=lambda change: 0 if change.is_down else {"mtu": 1, "state": 2}.get(change.kind, 3))
    for name, declared in declaration.sysctls.items():
        present = state.sysctls.get(name)
        if present is None:
            plan.problems.append(
                f"this kernel has no parameter {name}: load its module, or take it out of network_sysctls"
            )
        elif normal_value(present) != declared:
            plan.add("sysctl", name, present, declared)
    limits = "".join(f"{line}\n" for line in declaration.limits)
    for kind, path, declared, present in (
        ("hosts", HOSTS_FILE, block_of(declaration.hosts), state.hosts_block),
        ("limits", LIMITS_FILE, limits, state.limits),
    ):
        if declared not in ("", present):
            plan.add(kind, path, present, declared)
    return plan


def _selected(
    declaration: NetworkDeclaration, state: NetworkState, plan: NetworkPlan
) -> list[tuple[DeclaredInterfaces, list[HostInterface]]]:
    """Return each declared entry with the interfaces that it selects; adds a problem for a wrong count."""
    selected = []
    entry_by_name: dict[str, DeclaredInterfaces] = {}
    for entry in declaration.interfaces:
        interfaces = [interface for interface in state.interfaces.values() if entry.selects(interface)]
        if len(interfaces) < entry.count:
            names = ", ".join(interface.name for interface in interfaces) or "none"
            plan.problems.append(
                f"{len(interfaces)} of {entry.count} interface(s) with {entry} found ({names}): look at the driver "
                f"(dmesg) and the card, or correct network_interfaces; there are {', '.join(sorted(state.interfaces))}"
            )
        for name in (interface.name for interface in interfaces):
            if name in entry_by_name:
                plan.problems.append(
                    f"{name} matches two entries of network_interfaces ({entry_by_name[name]}; {entry}): remove one "
                    "of them, or use exclude"
                )
            entry_by_name[name] = entry
        selected.append((entry, interfaces))
    return selected


def _lost_by_down(interface: HostInterface, state: NetworkState) -> dict[str, Any]:
    """Return addresses and routes that the kernel drops when an interface goes down, and does not restore."""
    return {
        "addresses": [text for text in interface.addresses if ":" in text and text not in interface.dynamic],
        "routes": [
            route
            for route in state.routes
            if route.get("dev") == interface.name and route.get("protocol") not in ("kernel", "ra")
        ],
    }


def _add_routes(name: str, entry: DeclaredInterfaces, state: NetworkState, plan: NetworkPlan) -> None:
    for declared in entry.routes:
        to, metric = declared["dst"], declared["metric"]
        present = find_route(state, to, metric)
        change = NetworkChange("route", f"{to} metric {metric}", present, {**declared, "dev": name})
        if change.is_same(present, change.after):
            continue
        if present and not is_restorable(present):
            plan.problems.append(
                f"the route to {to} has settings that gpuval cannot restore ({', '.join(sorted(present))}): remove it "
                "yourself, or declare another metric"
            )
        else:
            plan.changes.append(change)


def _next_hop(route: Optional[dict[str, Any]]) -> str:
    if not route:
        return "none"
    return " ".join([*(["via", route["gateway"]] if route.get("gateway") else []), "dev", str(route.get("dev"))])
