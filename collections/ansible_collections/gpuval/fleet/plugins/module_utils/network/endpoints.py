"""How far named services are: name, TCP, TLS, and bytes of one HTTP answer.

Any answer of HTTP counts as there; what is read has bounds in bytes and seconds.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any, Optional
from urllib.parse import urlsplit

from .errors import NetworkError
from .tcp import connect, resolve

TRIES = 3
#: A smaller answer says how long the service thinks, not how much the way carries.
LEAST_BYTES = 65536
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Endpoint:
    name: str
    host: str
    port: int
    scheme: str  # tcp, http or https
    path: str
    proxy: Optional[tuple[str, int]]
    ca_file: Optional[str]


def parse(entry: dict[str, Any]) -> Endpoint:
    """An endpoint from `url` or `address` (host:port)."""
    name = entry["name"]
    try:
        parts = urlsplit(entry.get("url") or f"tcp://{entry.get('address') or ''}")
        port = parts.port or PORTS.get(parts.scheme)
        proxy = urlsplit(entry["proxy"]) if entry.get("proxy") else None
        via = (proxy.hostname or "", proxy.port or 3128) if proxy else None
    except ValueError:
        raise NetworkError(f"endpoint {name}: the url or address cannot be read") from None
    if not parts.hostname or not port or parts.scheme not in ("tcp", "http", "https"):
        raise NetworkError(f"endpoint {name}: give a url (http or https) or an address (host:port)")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Endpoint(name, parts.hostname, port, parts.scheme, path, via, entry.get("ca_file") or None)


def probe(endpoint: Endpoint, size: int, seconds: float) -> dict[str, Any]:
    """What was measured; `state` is `ok`, or where it ended: name, tcp, tls, http."""
    result: dict[str, Any] = {
        "host": endpoint.host,
        "port": endpoint.port,
        "state": "name",
        "message": "",
        "name_seconds": None,
        "tcp_seconds": None,
        "tls_seconds": None,
        "status": None,
        "received_bytes": None,
        "bytes_per_second": None,
    }
    host, port = endpoint.proxy or (endpoint.host, endpoint.port)
    address, result["name_seconds"] = resolve(host)
    if address is None:
        result["message"] = f"the name {host} is not known to the node: see /etc/resolv.conf"
        return result
    times = []
    for _try in range(TRIES):
        state, spent, link = connect(address, port, seconds)
        if link is not None:
            link.close()
            times.append(spent)
        if state in ("timeout", "unreachable"):
            break
    if not times:
        result.update(state="tcp", message=f"{host} port {port}: {state}")
        return result
    result["tcp_seconds"] = min(times)
    if endpoint.scheme == "tcp":
        result["state"] = "ok"
        return result
    return _http(endpoint, address, port, size, seconds, result)


def _http(
    endpoint: Endpoint, address: str, port: int, size: int, seconds: float, result: dict[str, Any]
) -> dict[str, Any]:
    _state, _spent, link = connect(address, port, seconds)
    if link is None:
        result.update(state="tcp", message=f"{endpoint.host} port {port}: {_state}")
        return result
    end = time.monotonic() + seconds
    answer = None
    try:
        link.settimeout(seconds)
        if endpoint.proxy:
            _through_proxy(link, endpoint)
        if endpoint.scheme == "https":
            result["state"] = "tls"
            begin = time.perf_counter()
            context = ssl.create_default_context(cafile=endpoint.ca_file)
            link = context.wrap_socket(link, server_hostname=endpoint.host)
            result["tls_seconds"] = time.perf_counter() - begin
        result["state"] = "http"
        connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=seconds)
        connection.sock = link
        headers = {
            "Range": f"bytes=0-{max(0, size - 1)}",
            "User-Agent": "gpuval",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        begin = time.perf_counter()
        connection.request("GET", endpoint.path, headers=headers)
        answer = connection.getresponse()
        result["status"] = answer.status
        got = 0
        while got < size and time.monotonic() < end:
            link.settimeout(max(0.05, end - time.monotonic()))
            data = answer.read1(min(65536, size - got))
            if not data:
                break
            got += len(data)
        spent = time.perf_counter() - begin
        result.update(
            state="ok", received_bytes=got, bytes_per_second=got / spent if got >= LEAST_BYTES and spent else None
        )
    except ssl.SSLCertVerificationError as error:
        result["message"] = f"{endpoint.host}: certificate refused: {error.verify_message}; give ca_file"
    except socket.timeout:
        if result["status"] is None:
            result["message"] = f"{endpoint.host} port {port}: no answer within {seconds:g} s"
        else:
            result.update(state="http", message=f"{endpoint.host}: the answer came to a stop within {seconds:g} s")
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        result["message"] = f"{endpoint.host} port {port}: {reason}"
    finally:
        link.close()
    return result


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
