"""Reads routes to peers and addresses of this host from the kernel by netlink. Needs no privileges."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_NEW_ROUTE, _GET_ROUTE, _ERROR = 24, 26, 2
_NEW_ADDRESS, _GET_ADDRESS, _DONE = 20, 22, 3
_REQUEST, _ALL = 1, 0x300
_DESTINATION, _INTERFACE, _GATEWAY, _SOURCE, _METRICS, _VIA = 1, 4, 5, 7, 8, 18
_METRIC_MTU = 2
_ADDRESS, _OWN_ADDRESS = 1, 2
_LOCAL = 2
_HEADER, _ROUTE, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBBBBBI"), struct.Struct("=HH")
_HELD = struct.Struct("=BBBBI")
_SECONDS = 1.0


@dataclass(frozen=True)
class KernelRoute:
    """A route to an address: its interface, the MTU in bytes if the route limits it, and why there is no route."""

    interface: str | None = None
    mtu_bytes: int | None = None
    gateway: str | None = None
    source: str | None = None
    is_local: bool = False
    problem: str = ""


def route_to(address: str) -> KernelRoute:
    """Return the route to an IP address. Raises ``OSError`` without a route, ``ValueError`` for an invalid address."""
    with _asking() as asking:
        asking.send(question(address))
        return parse(asking.recv(65536))


def next_hop(address: str) -> tuple[str | None, str | None]:
    """Return interface and gateway of the route to an address; None for both without a route."""
    try:
        route = route_to(address)
    except (OSError, ValueError):
        return None, None
    return route.interface, route.gateway


def addresses() -> list[tuple[int, ipaddress.IPv4Interface | ipaddress.IPv6Interface]]:
    """Return interface number, address and network of all addresses of this host. Raises ``OSError``."""
    interfaces: list[tuple[int, ipaddress.IPv4Interface | ipaddress.IPv6Interface]] = []
    with _asking() as asking:
        body = _HELD.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        asking.send(_HEADER.pack(_HEADER.size + len(body), _GET_ADDRESS, _REQUEST | _ALL, 1, 0) + body)
        while True:
            for kind, message in _messages(asking.recv(65536)):
                if kind == _DONE:
                    return interfaces
                if kind == _ERROR:
                    raise OSError("the kernel refuses to list this host's addresses")
                if kind == _NEW_ADDRESS:
                    _, prefix, _, _, interface = _HELD.unpack_from(message)
                    attributes = _attributes(message[_HELD.size :])
                    packed = attributes.get(_OWN_ADDRESS) or attributes.get(_ADDRESS, b"")  # _ADDRESS may be the peer's
                    if len(packed) in (4, 16):
                        interfaces.append((interface, ipaddress.ip_interface((packed, prefix))))


def _asking() -> socket.socket:
    asking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    asking.settimeout(_SECONDS)
    asking.bind((0, 0))
    return asking


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if length < _HEADER.size:
            return
        yield kind, data[_HEADER.size : length]
        data = data[length + 3 & ~3 :]


def is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return True


def question(address: str) -> bytes:
    packed = ipaddress.ip_address(address.partition("%")[0]).packed
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    body = _ROUTE.pack(family, len(packed) * 8, 0, 0, 0, 0, 0, 0, 0)
    body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(packed), _DESTINATION) + packed
    return _HEADER.pack(_HEADER.size + len(body), _GET_ROUTE, _REQUEST, 1, 0) + body


def parse(answer: bytes) -> KernelRoute:
    """Return the route in a netlink answer of the kernel. Raises ``OSError`` if the kernel reports that it has none."""
    if len(answer) < _HEADER.size + 4:
        raise OSError("the kernel's answer is cut off")
    length, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind == _ERROR:
        number = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        raise OSError(number, os.strerror(number))
    if kind != _NEW_ROUTE or length > len(answer) or length < _HEADER.size + _ROUTE.size:
        raise OSError("the kernel's answer is no route")
    is_local = answer[_HEADER.size + 7] == _LOCAL
    attributes = _attributes(answer[_HEADER.size + _ROUTE.size : length])
    gateway = attributes.get(_GATEWAY) or attributes.get(_VIA, b"")[2:]
    return KernelRoute(
        interface=interface_name(_number(attributes.get(_INTERFACE))),
        mtu_bytes=_number(_attributes(attributes.get(_METRICS, b"")).get(_METRIC_MTU)),
        gateway=_address(gateway),
        source=_address(attributes.get(_SOURCE, b"")),
        is_local=is_local,
    )


def interface_name(number: int | None) -> str | None:
    """Return the name of the interface with the kernel's number; None without one."""
    try:
        return socket.if_indextoname(number) if number else None
    except OSError:  # the interface is gone
        return None


def _attributes(data: bytes) -> dict[int, bytes]:
    attributes, offset = {}, 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            break
        attributes[kind & 0x3FFF] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += length + 3 & ~3
    return attributes


def _number(data: bytes | None) -> int | None:
    return struct.unpack("=I", data)[0] if data and len(data) == 4 else None


def _address(data: bytes) -> str | None:
    return str(ipaddress.ip_address(data)) if len(data) in (4, 16) else None
