"""A proxy before an S3 server that spoils what passes, as it is asked to."""

from __future__ import annotations

import http.client
import http.server
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from urllib.parse import urlsplit

SKEWED = b"<Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the request time</Message></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
NO_KEY = b"<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>"
FULL = b"<Error><Code>InsufficientStorage</Code><Message>No space left</Message></Error>"
STATUSES = {
    "500": (500, b""),
    "503": (503, b""),
    "403": (403, DENIED),
    "404": (404, NO_KEY),
    "507": (507, FULL),
    "skewed": (403, SKEWED),
}
SLOW_BYTES_PER_SECOND = 2048


class SpoilingProxy:
    """Passes requests to the server at ``port``. Spoils those for which ``applies(method, path)``, ``count`` of them.

    ``how``: a status of STATUSES, or ``reset`` and ``truncate`` in mid-body, ``flip`` (always the same byte),
    ``flip_anew`` (another byte each time), ``slow`` (2 KB/s), ``trickle`` (10 bytes per second), ``away`` (the
    connection ends without an answer), ``alter`` (a body that is sent becomes what ``altered`` makes of it).
    Its answers have a Date that is ``seconds_ahead`` of this machine's clock.
    """

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._target = port
        self.how, self.applies, self.count = "", spoils_objects, -1
        self.spoiled, self.seconds_ahead = 0, 0.0
        self.altered: Callable[[bytes], bytes] = bytes
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if context:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> SpoilingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def spoil(self, how: str, applies: Callable[[str, str], bool] | None = None, count: int = -1) -> None:
        self.how, self.applies, self.count = how, applies or spoils_objects, count

    def _takes(self, method: str, path: str) -> str:
        with self._lock:
            if not self.how or self.count == 0 or not self.applies(method, path):
                return ""
            self.count -= 1
            self.spoiled += 1
            return self.how

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                how = proxy._takes(self.command, self.path)
                if how == "away":
                    self._break_off()
                elif how in STATUSES:
                    self._send(*STATUSES[how], [])
                else:
                    self._pass_on(how)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 (the server's names)

            def _pass_on(self, how: str) -> None:
                server = http.client.HTTPConnection("127.0.0.1", proxy._target, timeout=60)
                try:  # with its Host, which is signed
                    headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
                    if how == "alter":
                        self._sent = proxy.altered(self._sent)
                        headers["Content-Length"] = str(len(self._sent))
                    server.request(self.command, self.path, self._sent or None, headers)
                    answer = server.getresponse()
                    body = answer.read()
                finally:
                    server.close()
                headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in DROPPED]
                if self.command == "HEAD":
                    headers.append(("Content-Length", answer.headers.get("Content-Length", "0")))
                self._send(answer.status, body, headers, how)

            def _send(self, status: int, body: bytes, headers: list, how: str = "") -> None:
                middle = len(body) // 2
                if how in ("flip", "flip_anew"):
                    at = middle if how == "flip" else proxy.spoiled % len(body)
                    body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
                self.send_response_only(status)
                self.send_header("Date", formatdate(time.time() + proxy.seconds_ahead, usegmt=True))
                for name, value in headers:
                    self.send_header(name, value)
                if self.command != "HEAD":
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "HEAD":
                    return
                try:
                    if how in ("slow", "trickle"):
                        self._trickle(body, SLOW_BYTES_PER_SECOND // 4 if how == "slow" else 1)
                    elif how in ("reset", "truncate"):
                        self.wfile.write(body[:middle])
                        self._break_off(reset=how == "reset")
                    else:
                        self.wfile.write(body)
                except OSError:
                    self.close_connection = True

            def _trickle(self, body: bytes, step: int) -> None:
                for at in range(0, len(body), step):
                    self.wfile.write(body[at : at + step])
                    self.wfile.flush()
                    if proxy._ended.wait(0.25 if step > 1 else 0.1):
                        break

            def _break_off(self, *, reset: bool = True) -> None:
                self.close_connection = True
                if reset:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


DROPPED = {"content-length", "transfer-encoding", "connection", "date"}


def spoils_objects(_method: str, path: str) -> bool:
    """Whether a request is for the content of an object, or its size."""
    parts = urlsplit(path)
    return parts.path.count("/") > 2 and "list-type" not in parts.query and "delimiter" not in parts.query


def of_weights(method: str, path: str) -> bool:
    return method == "GET" and spoils_objects(method, path) and urlsplit(path).path.endswith(".safetensors")
