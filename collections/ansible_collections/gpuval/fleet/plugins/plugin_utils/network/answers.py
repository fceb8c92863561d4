"""Intake of nodes' answers: they are untrusted, so only known keys of the right type stay. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.escape import one_line

STATES = ("open", "closed", "timeout", "unreachable", "forbidden", "error", "unknown_name", "not_asked")
PORT_STATES = ("open", "closed", "timeout", "unreachable", "forbidden", "error", "other_node")
MOST_INTERFACES = 128
MOST_ADDRESSES = 32


@dataclass(frozen=True)
class Asked:
    """One node's measurements of another node."""

    state: str = "not_asked"
    address: str | None = None
    message: str = ""
    tcp_minimum_seconds: float | None = None
    tcp_median_seconds: float | None = None
    mtu_bytes: int | None = None
    path_mtu_bytes: int | None = None
    size_tried: bool = False
    large_seconds: float | None = None
    sent: int = 0
    received: int = 0
    bytes_per_second: float | None = None
    ports: dict[int, str] = field(default_factory=dict)

    @property
    def reached(self) -> bool:
        return self.state in ("open", "closed")


@dataclass(frozen=True)
class Service:
    """One node's measurements of a named service."""

    state: str
    message: str = ""
    host: str = ""
    port: int | None = None
    status: int | None = None
    name_seconds: float | None = None
    tcp_seconds: float | None = None
    tls_seconds: float | None = None
    received_bytes: float | None = None
    bytes_per_second: float | None = None


@dataclass(frozen=True)
class Interface:
    state: str
    carrier: bool
    mtu: int | None
    addresses: tuple[str, ...]
    physical: bool


@dataclass(frozen=True)
class Answers:
    """The answer of one node."""

    peers: dict[str, Asked] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    interfaces: dict[str, Interface] = field(default_factory=dict)
    not_listening: dict[int, str] = field(default_factory=dict)


def take_in(facts: Any, peers: Iterable[str], services: Iterable[str], not_listening: Any = None) -> Answers | None:
    """The requested facts of a node; None without any."""
    if not isinstance(facts, Mapping):
        return None
    asked, measured, listed = (_mapping(facts.get(key)) for key in ("peers", "endpoints", "interfaces"))
    return Answers(
        peers={name: _asked(_mapping(asked.get(name))) for name in peers},
        services={name: _service(_mapping(measured.get(name))) for name in services if name in measured},
        interfaces={
            one_line(str(name), 32): _interface(_mapping(value))
            for name, value in list(listed.items())[:MOST_INTERFACES]
        },
        not_listening={
            int(port): one_line(str(reason), 120)
            for port, reason in _mapping(not_listening).items()
            if str(port).isdigit() and reason != "in_use"
        },
    )


def _asked(value: Mapping[str, Any]) -> Asked:
    ping = _mapping(value.get("ping"))
    small, large = _mapping(ping.get("small")), _mapping(ping.get("large"))
    return Asked(
        state=_word(value.get("state"), STATES, "error" if value else "not_asked"),
        address=_text(value.get("address"), 64) or None,
        message=_text(value.get("message")),
        tcp_minimum_seconds=_number(value.get("tcp_minimum_seconds")),
        tcp_median_seconds=_number(value.get("tcp_median_seconds")),
        mtu_bytes=_whole(value.get("mtu_bytes")),
        path_mtu_bytes=_whole(ping.get("path_mtu_bytes")),
        size_tried=bool(large.get("sent")),
        large_seconds=_number(large.get("mean_seconds")),
        sent=(_whole(small.get("sent")) or 0),
        received=(_whole(small.get("received")) or 0),
        bytes_per_second=_number(value.get("bytes_per_second")),
        ports={
            int(port): _word(state, PORT_STATES, "error")
            for port, state in _mapping(value.get("ports")).items()
            if str(port).isdigit()
        },
    )


def _service(value: Mapping[str, Any]) -> Service:
    return Service(
        state=_word(value.get("state"), ("ok", "name", "tcp", "tls", "http"), "tcp"),
        message=_text(value.get("message")),
        host=_text(value.get("host"), 253),
        port=_whole(value.get("port")),
        status=_whole(value.get("status")),
        **{
            key: _number(value.get(key))
            for key in ("name_seconds", "tcp_seconds", "tls_seconds", "received_bytes", "bytes_per_second")
        },
    )


def _interface(value: Mapping[str, Any]) -> Interface:
    listed = value.get("addresses")
    return Interface(
        state=_word(value.get("state"), ("up", "down"), "down"),
        carrier=value.get("carrier") is True,
        mtu=_whole(value.get("mtu")),
        addresses=tuple(_text(text, 64) for text in (listed if isinstance(listed, list) else [])[:MOST_ADDRESSES]),
        physical=value.get("physical") is True,
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return float(value) if good else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _word(value: Any, known: tuple[str, ...], otherwise: str) -> str:
    return value if isinstance(value, str) and value in known else otherwise


def _text(value: Any, limit: int = 200) -> str:
    return one_line(value, limit) if isinstance(value, str) else ""
