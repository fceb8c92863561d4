"""Listeners on declared ports, which other nodes connect to; they end by themselves, even if the play fails.

They end when every measuring node has reported completion, at the latest at their deadline.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

from ..node_directory import make_private, write_private
from .parallel import run_detached
from .tcp import GREETING

FOLDER = "network"  # below the folder of gpuval
NAME = "listener.json"
CONNECTION_SECONDS = 10
MOST_BYTES = 256 * 1024 * 1024
MOST_CONNECTIONS = 64
STOP_SECONDS = 5


def open_ports(ports: list[int]) -> tuple[dict[int, socket.socket], dict[int, str]]:
    """Return listening sockets by port, and why other ports have none: `in_use` by a service is as good."""
    sockets, refused = {}, {}
    for port in ports:
        try:
            sockets[port] = _listen(port)
        except OSError as error:
            refused[port] = "in_use" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
    return sockets, refused


def start(base: Path, node: str, listening: dict[int, socket.socket], seconds: float, askers: set[str]) -> None:
    """Serve the sockets in a separate process, for `seconds` or until all nodes in `askers` are done."""
    make_private(base)
    make_private(base / FOLDER)
    path = base / FOLDER / NAME

    def serve() -> None:
        document = {"pid": os.getpid(), "started": _start_time(os.getpid()), "ports": sorted(listening)}
        write_private(path, json.dumps(document).encode())
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        GreetingService(node, listening, askers).serve(seconds)
        path.unlink(missing_ok=True)

    run_detached(serve)
    for link in listening.values():
        link.close()
    _wait_until(lambda: _read(path) is not None)


def stop(base: Path) -> bool:
    """End the listener of this node. Returns whether a listener was running."""
    path = base / FOLDER / NAME
    state = _read(path)
    if state is None:
        path.unlink(missing_ok=True)
        return False
    pid = state["pid"]
    alive = _start_time(pid) == state["started"]
    if alive:
        os.kill(pid, signal.SIGTERM)
        _wait_until(lambda: _start_time(pid) != state["started"])
    path.unlink(missing_ok=True)
    return alive


class GreetingService:
    """Greets each connection with the node's name; on `bulk N` sends N bytes; on `bye NAME` marks that node as done."""

    def __init__(self, node: str, listening: dict[int, socket.socket], askers: set[str]) -> None:
        self.node = node
        self.listening = listening
        self.askers = set(askers)
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def serve(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for link in self.listening.values():
                link.setblocking(False)
                selector.register(link, selectors.EVENT_READ)
            while time.monotonic() < end and self.askers:
                for key, _events in selector.select(timeout=0.5):
                    self._accept(key.fileobj)

    def _accept(self, listening: Any) -> None:
        try:
            link, _address = listening.accept()
        except OSError:
            return
        if not self._places.acquire(blocking=False):
            link.close()
            return
        threading.Thread(target=self._answer, args=(link,), daemon=True).start()

    def _answer(self, link: socket.socket) -> None:
        try:
            with link:
                link.settimeout(CONNECTION_SECONDS)
                link.sendall(f"{GREETING} {self.node}\n".encode())
                words = link.recv(300).decode("utf-8", "replace").split()
                if words[:1] == ["bye"] and len(words) == 2:
                    with self._lock:
                        self.askers.discard(words[1])
                if words[:1] == ["bulk"] and len(words) == 2 and words[1].isdigit():
                    self._send(link, min(int(words[1]), MOST_BYTES))
        except OSError:
            pass
        finally:
            self._places.release()

    @staticmethod
    def _send(link: socket.socket, size: int) -> None:
        block = bytes(65536)
        end = time.monotonic() + CONNECTION_SECONDS
        while size > 0 and time.monotonic() < end:
            size -= link.send(block[: min(size, len(block))])


def _listen(port: int) -> socket.socket:
    """Return a socket that listens on all addresses of both IP versions, or of IPv4 without IPv6."""
    dualstack = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dualstack else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=dualstack)


def _read(path: Path) -> Any:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return state if isinstance(state["pid"], int) and state["pid"] > 1 and "started" in state else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _start_time(pid: int) -> Any:
    """Return the start time of a process, which distinguishes it from a later process with the same pid."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _wait_until(true: Any) -> None:
    end = time.monotonic() + STOP_SECONDS
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
