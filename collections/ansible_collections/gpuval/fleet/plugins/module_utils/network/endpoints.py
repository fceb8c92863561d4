"""Measures the path to named services: name lookup, TCP, TLS with its certificate, speed of one HTTP GET or PUT.

Any HTTP answer counts as reachable; with a declared size, all bytes must pass. Bounded in bytes and seconds.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any, Optional
from urllib.parse import urlsplit

from ..node_directory import NodeError
from .tcp import connect, resolve

TRIES = 3
#: Minimum bytes for a speed: a smaller answer measures the service's latency, not the path's bandwidth.
LEAST_BYTES = 65536
BLOCK = bytes(65536)
#: A TCP handshake of this time or more has lost a packet: TCP repeats its first packet after a second.
REPEATED_SECONDS = 0.9
#: Seconds between TCP handshakes with a service, so that they do not fill its queue.
APART_SECONDS = 0.01
#: Socket options for the kernel's path MTU, by IP version, which the module `socket` does not name on Linux.
PATH_MTU = {socket.AF_INET: (socket.IPPROTO_IP, 14), socket.AF_INET6: (socket.IPPROTO_IPV6, 24)}
#: What is wrong with a certificate, and the remedy, by OpenSSL's number of the error.
CERTIFICATES = {
    9: ("is not yet valid", "correct the clock of the node or of the service"),
    10: ("expired", "renew it on the service, or correct the clock of the node"),
    **dict.fromkeys(
        (62, 63, 64), ("is for another name", "use the name in the certificate, or renew it with this name")
    ),
    **dict.fromkeys(
        (2, 18, 19, 20, 21), ("has an unknown CA", "give the CA's file on the node as ca_file, or install it there")
    ),
}
PORTS = {"http": 80, "https": 443}
FIGURES = (
    "name_seconds",
    "tcp_seconds",
    "tls_seconds",
    "status",
    "received_bytes",
    "bytes_per_second",
    "loss_ratio",
    "mtu_bytes",
    "certificate_seconds",
)


@dataclass(frozen=True)
class Endpoint:
    name: str
    host: str
    port: int
    scheme: str  # tcp, http or https
    path: str
    proxy: Optional[tuple[str, int]]
    ca_file: Optional[str]
    method: str = "GET"
    #: Bytes that must be transferred completely; None accepts any answer.
    size_bytes: Optional[int] = None


def parse(entry: dict[str, Any]) -> Endpoint:
    """Return the endpoint of an entry with `url` or `address` (host:port)."""
    name = entry["name"]
    try:
        parts = urlsplit(entry.get("url") or f"tcp://{entry.get('address') or ''}")
        port = parts.port or PORTS.get(parts.scheme)
        proxy = urlsplit(entry["proxy"]) if entry.get("proxy") else None
        via = (proxy.hostname or "", proxy.port or 3128) if proxy else None
    except ValueError:
        raise NodeError(f"endpoint {name}: the url or address cannot be read") from None
    if not parts.hostname or not port or parts.scheme not in ("tcp", "http", "https"):
        raise NodeError(f"endpoint {name}: give a url (http or https) or an address (host:port)")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    ca_file, size = entry.get("ca_file") or None, entry.get("size_bytes")
    return Endpoint(name, parts.hostname, port, parts.scheme, path, via, ca_file, entry.get("method") or "GET", size)


def probe(endpoint: Endpoint, size_bytes: int, seconds: float, tries: int = TRIES) -> dict[str, Any]:
    """Return the measurements of an endpoint; reads `size_bytes` of its answer within `seconds`. `state` is `ok` or the
    step that failed: name, tcp, tls, http. `tries`: number of handshakes."""
    result: dict[str, Any] = {
        **dict.fromkeys(FIGURES),
        "host": endpoint.host,
        "port": endpoint.port,
        "state": "name",
        "message": "",
    }
    host, port = endpoint.proxy or (endpoint.host, endpoint.port)
    address, result["name_seconds"] = resolve(host)
    if address is None:
        result["message"] = f"the name {host} is not known to the node: see /etc/resolv.conf"
        return result
    times: list[float] = []
    tried = lost = 0
    end = time.monotonic() + seconds
    while tried < tries and time.monotonic() < end:
        state, spent, link = connect(address, port, min(seconds, REPEATED_SECONDS))
        tried += 1
        if link is not None and spent is not None:
            with link, contextlib.suppress(OSError):
                result["mtu_bytes"] = None
                result["mtu_bytes"] = link.getsockopt(*PATH_MTU[link.family])
            times.append(spent)
        lost += link is None
        if state == "unreachable":
            break
        time.sleep(APART_SECONDS)
    result["loss_ratio"] = lost / tried
    if not times:
        result.update(state="tcp", message=f"{host} port {port}: {state}")
        return result
    result["tcp_seconds"] = min(times)
    if endpoint.scheme == "tcp":
        result["state"] = "ok"
        return result
    return _http(endpoint, address, port, endpoint.size_bytes or size_bytes, seconds, result)


def _http(
    endpoint: Endpoint, address: str, port: int, size_bytes: int, seconds: float, result: dict[str, Any]
) -> dict[str, Any]:
    """Complete the measurements in `result` by a GET or PUT of `size_bytes` to an address, that of a proxy if any."""
    state, _spent, link = connect(address, port, seconds)
    if link is None:
        result.update(state="tcp", message=f"{endpoint.host} port {port}: {state}")
        return result
    end = time.monotonic() + seconds
    try:
        if endpoint.proxy:
            _through_proxy(link, endpoint)
        if endpoint.scheme == "https":
            result["state"] = "tls"
            begin = time.perf_counter()
            context = ssl.create_default_context(cafile=endpoint.ca_file)
            link = context.wrap_socket(link, server_hostname=endpoint.host)
            result["tls_seconds"] = time.perf_counter() - begin
            ends = (link.getpeercert() or {}).get("notAfter")
            if ends:
                result["certificate_seconds"] = max(0.0, ssl.cert_time_to_seconds(str(ends)) - time.time())
        result["state"] = "http"
        connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=seconds)
        connection.sock = link
        is_put = endpoint.method == "PUT"
        amount = {"Content-Length": str(size_bytes)} if is_put else {"Range": f"bytes=0-{max(0, size_bytes - 1)}"}
        headers = {**amount, "User-Agent": "gpuval", "Accept-Encoding": "identity", "Connection": "close"}
        begin = time.perf_counter()
        connection.request(endpoint.method, endpoint.path, headers=headers)
        got = _send(link, size_bytes, end) if is_put else 0
        link.settimeout(max(0.05, end - time.monotonic()))
        answer = connection.getresponse()
        result["status"] = answer.status
        while not is_put and got < size_bytes and time.monotonic() < end:
            link.settimeout(max(0.05, end - time.monotonic()))
            data = answer.read1(min(65536, size_bytes - got))
            if not data:
                break
            got += len(data)
        spent = time.perf_counter() - begin
        accepted = not endpoint.size_bytes or 200 <= answer.status < 300
        complete = accepted and (not endpoint.size_bytes or got >= size_bytes)
        speed = got / spent if complete and got >= LEAST_BYTES and spent else None
        result.update(received_bytes=got, bytes_per_second=speed)
        if not accepted:
            result["message"] = f"{endpoint.host}: {endpoint.method} answered with HTTP {answer.status}"
        elif not complete:
            why = f"within {seconds:g} s" if time.monotonic() >= end else "before the answer ended: check its size"
            result["message"] = f"{endpoint.host}: {got} of {size_bytes} bytes passed {why}"
        else:
            result["state"] = "ok"
    except ssl.SSLCertVerificationError as error:
        problem, remedy = CERTIFICATES.get(error.verify_code, (f"is refused: {error.verify_message}", "renew it"))
        result["message"] = f"{endpoint.host}: the certificate {problem}: {remedy}"
    except socket.timeout:
        if result["status"] is None:
            result["message"] = f"{endpoint.host} port {port}: no answer within {seconds:g} s"
        else:
            result.update(state="http", message=f"{endpoint.host}: the answer stalled, incomplete after {seconds:g} s")
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        result["message"] = f"{endpoint.host} port {port}: {reason}"
    finally:
        link.close()
    return result


def _send(link: socket.socket, size_bytes: int, end: float) -> int:
    """Send bytes until the monotonic time `end`. Returns how many were sent: a service may close before all are."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < size_bytes and time.monotonic() < end:
            link.settimeout(max(0.05, end - time.monotonic()))
            sent += link.send(BLOCK[: size_bytes - sent])
    return sent


def _through_proxy(link: socket.socket, endpoint: Endpoint) -> None:
    target = f"{endpoint.host}:{endpoint.port}"
    link.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head and len(head) < 8192:
        data = link.recv(1024)
        if not data:
            break
        head += data
    if head.split(b" ")[1:2] != [b"200"]:
        raise OSError(os.strerror(111) + " by the proxy")
