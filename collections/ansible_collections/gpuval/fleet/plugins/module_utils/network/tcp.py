"""One TCP connection: its state, the time of its handshake, and which node is at the other end."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from typing import Optional

GREETING = "gpuval-network"
GREETING_SECONDS = 0.5
STATES = {
    errno.ECONNREFUSED: "closed",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EACCES: "forbidden",
    errno.EPERM: "forbidden",
    errno.ETIMEDOUT: "timeout",
}
#: States in which the other host answered, even by refusing.
ANSWERED = ("open", "closed")


def connect(address: str, port: int, seconds: float) -> tuple[str, Optional[float], Optional[socket.socket]]:
    """Connect to an IP address; return state, seconds of the handshake, and the socket if open. Looks up no name."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    link = socket.socket(family, socket.SOCK_STREAM)
    link.settimeout(seconds)
    begin = time.perf_counter()
    try:
        link.connect((address, port))
        return "open", time.perf_counter() - begin, link
    except socket.timeout:
        state = "timeout"
    except OSError as error:
        state = STATES.get(error.errno or 0, "error")
    spent = time.perf_counter() - begin
    link.close()
    return state, spent if state == "closed" else None, None


def handshake(address: str, port: int, seconds: float) -> tuple[str, Optional[float]]:
    """Open a TCP connection within `seconds` and close it at once; return its state and the handshake's seconds."""
    state, spent, link = connect(address, port, seconds)
    if link is not None:
        link.close()
    return state, spent


def resolve(name: str) -> tuple[Optional[str], Optional[float]]:
    """Return an IP address of a name and the seconds of the lookup; None for a name without an address."""
    begin = time.perf_counter()
    try:
        addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None, None
    return str(addresses[0][4][0]), time.perf_counter() - begin


def port_state(address: str, port: int, seconds: float, node: str) -> str:
    """Return the state of a TCP port on `node`: `open` for gpuval's listener or any other service, `other_node` if the
    listener is that of another node, else as in STATES."""
    state, _spent, link = connect(address, port, seconds)
    if link is None:
        return state
    with link:
        link.settimeout(GREETING_SECONDS)
        try:
            words = link.recv(300).decode("utf-8", "replace").split()
        except OSError:
            words = []
    return "other_node" if words[:1] == [GREETING] and words[1:2] != [node] else "open"


def receive(address: str, port: int, size_bytes: int, seconds: float) -> Optional[float]:
    """Receive bytes from gpuval's listener on another node; return bytes per second, None if none arrive."""
    _state, _spent, link = connect(address, port, seconds)
    if link is None:
        return None
    begin, received = 0.0, 0
    try:
        with link, link.makefile("rb") as stream:
            link.sendall(f"bulk {size_bytes}\n".encode())
            if not stream.readline(300).startswith(GREETING.encode()):
                return None
            begin = time.perf_counter()
            while received < size_bytes and time.perf_counter() - begin < seconds:
                link.settimeout(max(0.05, seconds - (time.perf_counter() - begin)))
                data = stream.read1(65536)
                if not data:
                    break
                received += len(data)
    except socket.timeout:
        pass
    except OSError:
        return None
    return received / (time.perf_counter() - begin) if received else None


def say(address: str, port: int, line: str, seconds: float) -> None:
    _state, _spent, link = connect(address, port, seconds)
    if link is not None:
        with link, contextlib.suppress(OSError):
            link.sendall(line.encode())
            link.recv(300)
