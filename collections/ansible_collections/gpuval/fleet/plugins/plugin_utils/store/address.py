"""Finds the controller's IP addresses on which the embedded store listens, and checks gpuval_store_address."""

import ipaddress
import re
import socket
from collections.abc import Iterable

import psutil

from ...module_utils.store import StoreError

LOOPBACK = "127.0.0.1"
HIGHEST_PORT = 65535

_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")
_INSTEAD = (
    "Behind NAT no address of the controller will do: set gpuval_s3_endpoint to an S3 service that controller "
    "and nodes reach, or leave gpuval_store_address empty: records then come over SSH, and nodes cannot load models "
    "(--skip-tags loading,inference)"
)


def own_addresses() -> set[str]:
    """The IP addresses of this machine's interfaces."""
    families = (socket.AF_INET, socket.AF_INET6)
    net = (entry for entries in psutil.net_if_addrs().values() for entry in entries if entry.family in families)
    return {entry.address.partition("%")[0] for entry in net}


def interface_bits_per_second(address: str) -> float | None:
    """Speed of the network interface with this IP address; None if the operating system does not report it."""
    speeds = psutil.net_if_stats()
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries) and name in speeds:
            return speeds[name].speed * 1e6 or None
    return None


def look_up(name: str) -> set[str]:
    """The IP addresses of a host name. Raises OSError."""
    return {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}


def listening_addresses(address: str) -> list[str]:
    """The IP addresses to listen on, so that nodes reach the store by `address`. Raises StoreError with a remedy."""
    local, literal = own_addresses(), _ip(address)
    if literal is None and not _NAME.fullmatch(address):
        raise StoreError(
            f"gpuval_store_address {address!r}: a host name or an IP address, without scheme, port or brackets"
        )
    try:
        candidates = {str(literal)} if literal is not None else look_up(address)
    except OSError as error:
        raise StoreError(
            f"gpuval_store_address {address} has no address here ({error.strerror or error}): set it to the IP "
            "address by which the nodes reach this controller"
        ) from error
    outward = sorted(text for text in candidates if _may_be_reached(text))
    if not outward:
        raise StoreError(
            f"gpuval_store_address {address} means {', '.join(sorted(candidates)) or 'nothing'} on this controller, "
            "which no node reaches (is the name in its /etc/hosts?): set it to an IP address of this controller"
            + _hint(local)
        )
    bound = [text for text in outward if text in local]
    if not bound:
        raise StoreError(
            f"gpuval_store_address {address} ({', '.join(outward)}) is no address of this controller{_hint(local)}. "
            + _INSTEAD
        )
    return bound


def canonical(address: str) -> str:
    """A host name or IP address in canonical form. Both sides need the same one, since a URL's signature covers it."""
    literal = _ip(address.strip())
    return str(literal) if literal is not None else address.strip().lower().rstrip(".")


def bracketed(host: str) -> str:
    """The host for use before a port: an IPv6 address in brackets."""
    literal = _ip(host)
    return f"[{host}]" if literal is not None and literal.version == 6 else host


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _may_be_reached(text: str) -> bool:
    literal = ipaddress.ip_address(text)
    unusable = literal.is_loopback or literal.is_unspecified or literal.is_multicast
    return not (unusable or (literal.version == 6 and literal.is_link_local))


def _hint(local: Iterable[str]) -> str:
    usable = sorted(text for text in local if _may_be_reached(text))
    return f"; it has {', '.join(usable)}" if usable else "; it has none but loopback"
