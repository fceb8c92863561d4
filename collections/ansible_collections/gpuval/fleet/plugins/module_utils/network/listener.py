"""Listeners on declared ports, which other nodes connect to; they end by themselves, even if the play fails.

They end when every measuring node has reported completion, at the latest at their deadline.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from ..node_directory import make_private, read_document, write_private
from ..process_stat import look
from .parallel import run_detached

FOLDER = "network"  # below the folder of gpuval
NAME = "listener.json"
STOP_SECONDS = 5


def open_ports(ports: list[int]) -> tuple[dict[int, socket.socket], dict[int, str]]:
    """Return by port the sockets that listen on all addresses, and for other ports why there is none: `in_use`, if a
    service listens, which serves as well."""
    is_dual, sockets, refused = socket.has_dualstack_ipv6(), {}, {}
    family = socket.AF_INET6 if is_dual else socket.AF_INET
    for port in ports:
        try:
            sockets[port] = socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=is_dual)
        except OSError as error:
            refused[port] = "in_use" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
    return sockets, refused


def start(base: Path, node: str, listening: dict[int, socket.socket], seconds: float, askers: set[str]) -> None:
    """Serve listening sockets (by port) in a separate process, for `seconds` or until all nodes in `askers` are done.
    `base`: gpuval's folder on the node."""
    import asyncio  # noqa: PLC0415 - takes long to load, and other steps need none

    from .greeting import GreetingService  # noqa: PLC0415 - it imports asyncio, too

    make_private(base)
    make_private(base / FOLDER)
    path = base / FOLDER / NAME

    def serve() -> None:
        document = {"pid": os.getpid(), "started": _start_time(os.getpid()), "ports": sorted(listening)}
        write_private(path, json.dumps(document).encode())
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        links = [link.dup() for link in listening.values()]  # the ports close with this process, after its file is gone
        asyncio.run(GreetingService(node, askers).serve(links, seconds=seconds))
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


def _read(path: Path) -> Any:
    state = read_document(path)
    return state if isinstance(state.get("pid"), int) and state["pid"] > 1 and "started" in state else None


def _start_time(pid: int) -> Optional[int]:
    """Return the start time of a process, which distinguishes it from a later process with the same pid."""
    process = look(pid)
    return process.start_ticks if process else None


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + STOP_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
