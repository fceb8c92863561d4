"""A member's own address, and which network interface has it: gloo and NCCL take the first, not always that one."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Iterable
from contextlib import suppress

from ..common.result import WorkloadCrash
from .host.routes import addresses, is_ip, route_to
from .members import Gang

#: The first member's network is widened so far at most: a wider one would have other interfaces of the hosts too.
WIDEST_PREFIX = 16
LOOK_UP_SECONDS = 1.0


def resolved(address: str, seconds: float) -> str:
    """Return the IP address that a name stands for; an address is its own.

    A pod's name is known some moments after the pod has begun. Raises ``WorkloadCrash`` when it is not within
    ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            if time.monotonic() >= deadline:
                raise WorkloadCrash(
                    f"{address}, by which the others reach this node, is not known here after {seconds:g} s "
                    f"({error.strerror}): see whether the name server of the cluster answers"
                ) from None
        time.sleep(LOOK_UP_SECONDS)


def own_address(gang: Gang, seconds: float) -> str:
    """Return this member's IP address.

    Many a host calls itself 127.0.1.1, where no other host reaches it: then it is the address that it sends from to
    another member.
    Raises ``WorkloadCrash`` as :func:`resolved`.
    """
    address = resolved(gang.own.address, seconds)
    other_addresses = [member.address for member in gang.members if member is not gang.own]
    if address != gang.own.address and other_addresses and ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        with suppress(OSError, ValueError, WorkloadCrash):
            return route_to(resolved(other_addresses[0], 0)).source or address
    return address


def interface_of(address: str) -> str | None:
    """Return the name of the interface that has the address; None where none has it, or it is a name."""
    interface = _held(address)
    return interface[0] if interface else None


def interface_environment(gang: Gang, address: str, *, with_nccl: bool) -> dict[str, str]:
    """Return variables that hold gloo, and NCCL where there is one, to the interface with this member's address."""
    interface = interface_of(address)
    is_own_name = address != gang.own.address  # often a host's own name is 127.0.1.1, unreachable for others
    if not interface or (is_own_name and interface == "lo"):
        return {}
    return {"GLOO_SOCKET_IFNAME": interface, **({"NCCL_SOCKET_IFNAME": f"={interface}"} if with_nccl else {})}


def network_of(address: str, addresses_of_others: Iterable[str]) -> str | None:
    """Return the network of an address of this host, ``10.0.0.0/24``, widened until it has the others as well.

    None where that makes no sense: names, IPv6, the loopback interface, an address that no interface has, and where it
    would have to be widened further than to a /16.
    """
    interface = _held(address)
    try:
        ip_addresses = [ipaddress.IPv4Address(member_address) for member_address in addresses_of_others]
    except ValueError:
        return None
    if not interface or interface[1].version == 6 or interface[1].is_loopback:
        return None
    network = interface[1].network
    widest = min(WIDEST_PREFIX, network.prefixlen)
    while any(member_address not in network for member_address in ip_addresses):
        network = network.supernet()
    return str(network) if network.prefixlen >= widest else None


def _held(address: str) -> tuple[str, ipaddress.IPv4Interface | ipaddress.IPv6Interface] | None:
    """The interface of this host that has the address, and its network."""
    if not is_ip(address):
        return None
    ip_address = ipaddress.ip_address(address.partition("%")[0])
    with suppress(OSError):
        return next(
            (
                (socket.if_indextoname(number), interface_address)
                for number, interface_address in addresses()
                if interface_address.ip == ip_address
            ),
            None,
        )
    return None
