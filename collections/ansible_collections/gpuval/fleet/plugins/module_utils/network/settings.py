"""What was declared for a node, checked before anything is touched."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from .errors import NetworkError

#: Below 1280 the kernel takes IPv6 off an interface; above 65535 no interface goes but loopback.
MTU_RANGE = range(1280, 65536)
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")
SYSCTL = re.compile(r"[A-Za-z0-9_-]+([./][A-Za-z0-9_:@-]+)+")
LIMIT_TYPES = ("-", "soft", "hard")
LIMIT_WORD = re.compile(r"[A-Za-z0-9_@%:*.-]+")

Prefix = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


@dataclass(frozen=True)
class Route:
    """A route through the interface it is declared with; `metric` None is the kernel's own."""

    to: str
    via: Optional[str] = None
    metric: Optional[int] = None


@dataclass(frozen=True)
class Interfaces:
    """One entry of the declared interfaces: those it means, and what they are to be."""

    name: str = ""
    pattern: str = ""
    driver: str = ""
    exclude: tuple[str, ...] = ()
    count: Optional[int] = None
    state: str = "up"
    mtu: Optional[int] = None
    addresses: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()
    flap: bool = False

    def __str__(self) -> str:
        words = (("driver", self.driver), ("pattern", self.pattern), ("name", self.name))
        return " and ".join(f"{key} {value}" for key, value in words if value)


@dataclass(frozen=True)
class Settings:
    interfaces: tuple[Interfaces, ...] = ()
    hosts: dict[str, str] = field(default_factory=dict)
    sysctls: dict[str, str] = field(default_factory=dict)
    limits: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.interfaces or self.hosts or self.sysctls or self.limits)


def parse(parameters: dict[str, Any]) -> Settings:
    """Settings from the options of the module. Raises NetworkError naming the entry that is wrong."""
    return Settings(
        interfaces=tuple(_interfaces(entry) for entry in parameters.get("interfaces") or []),
        hosts={_host_name(name): _address(value, f"hosts {name}") for name, value in _items(parameters, "hosts")},
        sysctls={_sysctl_name(name): _sysctl_value(name, value) for name, value in _items(parameters, "sysctls")},
        limits=tuple(_limit(entry) for entry in parameters.get("limits") or []),
    )


def prefix(text: str) -> Prefix:
    """The network that a route leads to; `default` is 0.0.0.0/0."""
    return ipaddress.ip_network("0.0.0.0/0" if text == "default" else text, strict=False)


def _items(parameters: dict[str, Any], name: str) -> list[tuple[str, Any]]:
    return list((parameters.get(name) or {}).items())


def _interfaces(entry: dict[str, Any]) -> Interfaces:
    given = {key: value for key, value in entry.items() if value is not None}
    if not (given.get("name") or given.get("pattern") or given.get("driver")):
        raise NetworkError(f"an interface needs a name, a pattern or a driver: {given}")
    lists = {
        "exclude": tuple(given.get("exclude", ())),
        "addresses": tuple(_interface_address(text) for text in given.get("addresses", ())),
        "routes": tuple(_route(route) for route in given.get("routes", ())),
    }
    found = Interfaces(**{**given, **lists})
    where = f"interfaces, {found}"
    if found.mtu is not None and found.mtu not in MTU_RANGE:
        raise NetworkError(f"{where}: mtu {found.mtu} is not from {MTU_RANGE[0]} to {MTU_RANGE[-1]}")
    if found.state == "down" and (found.addresses or found.routes or found.flap):
        raise NetworkError(f"{where}: an interface that is to be down has no addresses, routes or flap")
    if (found.addresses or found.routes) and not found.name:
        raise NetworkError(f"{where}: addresses and routes belong to one interface: give its name")
    return found


def _route(entry: dict[str, Any]) -> Route:
    to, via, metric = entry.get("to"), entry.get("via"), entry.get("metric")
    try:
        leads = prefix(to or "")
        if via and ipaddress.ip_address(via).version != leads.version:
            raise NetworkError(f"route to {to}: the gateway {via} is of another IP version")
    except ValueError as error:
        raise NetworkError(f"route to {to!r} via {via!r}: {error}") from error
    return Route(to=str(leads), via=str(ipaddress.ip_address(via)) if via else None, metric=metric)


def _interface_address(text: str) -> str:
    """`10.0.0.1/24`; a length is asked for, since none would mean a network of one address."""
    try:
        if "/" not in text:
            raise NetworkError(f"address {text}: give its prefix length too, as in {text}/24")
        return str(ipaddress.ip_interface(text))
    except ValueError as error:
        raise NetworkError(f"address {text!r}: {error}") from error


def _address(text: Any, where: str) -> str:
    try:
        return str(ipaddress.ip_address(str(text)))
    except ValueError as error:
        raise NetworkError(f"{where}: {error}") from error


def _host_name(name: str) -> str:
    if not HOST_NAME.fullmatch(name):
        raise NetworkError(f"hosts: {name!r} cannot be a name in /etc/hosts")
    return name


def _sysctl_name(name: str) -> str:
    if not SYSCTL.fullmatch(name) or ".." in name:
        raise NetworkError(f"sysctls: {name!r} is not the name of a kernel parameter")
    return name


def _sysctl_value(name: str, value: Any) -> str:
    text = " ".join(str(int(value) if isinstance(value, bool) else value).split())
    if not text or len(text) > 1000:
        raise NetworkError(f"sysctls: {name} needs a value of one line")
    return text


def _limit(entry: dict[str, Any]) -> str:
    """A line of limits.conf."""
    words = [str(entry.get(key) or default) for key, default in (("domain", "*"), ("type", "-"), ("item", ""))]
    words.append(str(entry.get("value", "")))
    if words[1] not in LIMIT_TYPES or not all(LIMIT_WORD.fullmatch(word) for word in words):
        raise NetworkError(
            f"limits: {entry}: give domain, type ({', '.join(LIMIT_TYPES)}), item and value, a word each"
        )
    return " ".join(words)
