"""Parses and checks the declaration of a node's network; pure."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional

from ..node_directory import NodeError
from .state import DEFAULT_METRIC, HostInterface

#: Valid MTUs: below 1280 the kernel disables IPv6 on an interface; above 65535 only loopback can go.
MTU_RANGE = range(1280, 65536)
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")
SYSCTL = re.compile(r"(?!.*\.\.)[A-Za-z0-9_-]+([./][A-Za-z0-9_:@-]+)+")
LIMIT_TYPES = ("-", "soft", "hard")
LIMIT_WORD = re.compile(r"[A-Za-z0-9_@%:*.-]+")


@dataclass(frozen=True)
class RouteOptions:
    to: str
    via: Optional[str] = None
    metric: Optional[int] = None


@dataclass(frozen=True)
class DeclaredInterfaces:
    """One entry of the declared `interfaces`: which it selects, and their settings. Routes are as in `ip -json`."""

    name: str = ""
    pattern: str = ""
    driver: str = ""
    exclude: Sequence[str] = ()
    count: int = 1
    state: Literal["up", "down"] = "up"
    mtu: Optional[int] = None
    addresses: Sequence[str] = ()
    routes: Sequence[Annotated[dict[str, Any], RouteOptions]] = ()
    flap: bool = False

    def __str__(self) -> str:
        words = (("driver", self.driver), ("pattern", self.pattern), ("name", self.name))
        return " and ".join(f"{key} {text}" for key, text in words if text)

    def selects(self, interface: HostInterface) -> bool:
        name = interface.name
        if name == "lo" or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.exclude):
            return False
        return (
            self.name in ("", name)
            and fnmatch.fnmatchcase(name, self.pattern or "*")
            and fnmatch.fnmatchcase(interface.driver or "", self.driver or "*")
        )


@dataclass(frozen=True)
class NetworkDeclaration:
    interfaces: tuple[DeclaredInterfaces, ...] = ()
    hosts: dict[str, str] = field(default_factory=dict)
    sysctls: dict[str, str] = field(default_factory=dict)
    limits: tuple[str, ...] = ()  # lines of limits.conf

    @property
    def is_empty(self) -> bool:
        return self == NetworkDeclaration()


def parse_declaration(parameters: dict[str, Any]) -> NetworkDeclaration:
    """Return the declaration of a node's network in a step's options. Raises NodeError naming the wrong entry."""
    hosts, sysctls = ((parameters.get(name) or {}).items() for name in ("hosts", "sysctls"))
    return NetworkDeclaration(
        interfaces=tuple(map(_parse_interfaces, parameters.get("interfaces") or [])),
        hosts={_match(HOST_NAME, name, "hosts", "a name in /etc/hosts"): _address(name, text) for name, text in hosts},
        sysctls={
            _match(SYSCTL, name, "sysctls", "the name of a kernel parameter"): _sysctl_value(name, text)
            for name, text in sysctls
        },
        limits=tuple(map(_limit_line, parameters.get("limits") or [])),
    )


def _require(is_valid: Any, message: str) -> None:
    if not is_valid:
        raise NodeError(message)


def _match(pattern: re.Pattern[str], name: str, option: str, meaning: str) -> str:
    _require(pattern.fullmatch(name), f"{option}: {name!r} cannot be {meaning}")
    return name


def _parse_interfaces(entry: dict[str, Any]) -> DeclaredInterfaces:
    declared = {key: value for key, value in entry.items() if value is not None}
    is_selective = any(declared.get(key) for key in ("name", "pattern", "driver"))
    _require(is_selective, f"an interface needs a name, a pattern or a driver: {declared}")
    interfaces = DeclaredInterfaces(
        **{
            **declared,
            "exclude": tuple(declared.get("exclude", ())),
            "addresses": tuple(map(_interface_address, declared.get("addresses", ()))),
            "routes": tuple(map(_parse_route, declared.get("routes", ()))),
        }
    )
    where, mtu = f"interfaces, {interfaces}", interfaces.mtu
    has_own = interfaces.addresses or interfaces.routes
    _require(mtu is None or mtu in MTU_RANGE, f"{where}: mtu {mtu} is not from {MTU_RANGE[0]} to {MTU_RANGE[-1]}")
    _require(
        interfaces.state == "up" or not (has_own or interfaces.flap),
        f"{where}: an interface that is to be down has no addresses, routes or flap",
    )
    _require(interfaces.name or not has_own, f"{where}: addresses and routes belong to one interface: give its name")
    return interfaces


def _parse_route(entry: dict[str, Any]) -> dict[str, Any]:
    to, via, metric = (entry.get(key) for key in ("to", "via", "metric"))
    try:
        network = ipaddress.ip_network("0.0.0.0/0" if to == "default" else to or "", strict=False)
        gateway = ipaddress.ip_address(via) if via else None
    except ValueError as error:
        raise NodeError(f"route to {to!r} via {via!r}: {error}") from error
    version = network.version
    _require(
        gateway is None or gateway.version == version, f"route to {to}: the gateway {via} is of another IP version"
    )
    route = {"dst": str(network), "version": version, "metric": DEFAULT_METRIC[version] if metric is None else metric}
    return {**route, "gateway": str(gateway)} if gateway else route


def _interface_address(text: str) -> str:
    """Return an address with prefix length, such as `10.0.0.1/24`. Raises NodeError without a length."""
    _require("/" in text, f"address {text}: give its prefix length too, as in {text}/24")
    try:
        return str(ipaddress.ip_interface(text))
    except ValueError as error:
        raise NodeError(f"address {text!r}: {error}") from error


def _address(name: str, text: Any) -> str:
    try:
        return str(ipaddress.ip_address(str(text)))
    except ValueError as error:
        raise NodeError(f"hosts {name}: {error}") from error


def _sysctl_value(name: str, value: Any) -> str:
    text = " ".join(str(int(value) if isinstance(value, bool) else value).split())
    _require(0 < len(text) <= 1000, f"sysctls: {name} needs a value of one line")
    return text


def _limit_line(entry: dict[str, Any]) -> str:
    words = [str(entry.get(key) or default) for key, default in (("domain", "*"), ("type", "-"), ("item", ""))]
    words.append(str(entry.get("value", "")))
    _require(
        words[1] in LIMIT_TYPES and all(map(LIMIT_WORD.fullmatch, words)),
        f"limits: {entry}: give domain, type ({', '.join(LIMIT_TYPES)}), item and value, a word each",
    )
    return " ".join(words)
