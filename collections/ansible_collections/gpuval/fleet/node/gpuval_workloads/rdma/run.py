"""One test: the tool at both ends on this node, beside their ports' memory, with a deadline."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..common import command
from . import perftest
from .perftest import End, Measurement

#: What a tool may need beside its measuring: a context on a GPU of a node with many takes seconds.
SLACK_SECONDS = 30.0
LISTEN_SECONDS, END_SECONDS = 20.0, 5.0
HOST = "127.0.0.1"
SERVER, CLIENT = "server", "client"
#: GPUs in the order of their addresses; perftest's README has the second for memory of GPUs.
ENVIRONMENT = {"LC_ALL": "C", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "MLX5_SCATTER_TO_CQE": "0"}
_POLL_SECONDS = 0.05
_LISTENS = "0A"


@dataclass(frozen=True)
class Outcome:
    """``output`` of the client, whose table counts; without a figure ``problem`` says why."""

    output: str = ""
    problem: str = ""
    #: The test could not begin here, and tells nothing of its ports.
    is_of_the_setup: bool = False
    hung: bool = False


@dataclass
class _Sides:
    ended: dict[str, command.Ended] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)


def run(test: Measurement, tool: Path, cpus: Mapping[str, frozenset[int]], slack: float = SLACK_SECONDS) -> Outcome:
    """Run both ends; ``cpus`` are those beside each device. Takes no longer than the test, the slack and a kill."""
    port, sides = _free_port(), _Sides()
    seconds = max(test.seconds, perftest.LEAST_SECONDS) + slack
    server = _start(SERVER, [tool, *test.arguments(test.server, port)], test.server, seconds, cpus, sides)
    threads, is_silent = [server], False
    try:
        deadline = time.monotonic() + min(LISTEN_SECONDS, slack)
        while server.is_alive() and not _is_listening(port) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        is_silent = server.is_alive() and not _is_listening(port)
        if server.is_alive() and not is_silent:
            arguments = [tool, *test.arguments(test.client, port), HOST]
            threads.append(_start(CLIENT, arguments, test.client, seconds, cpus, sides))
            threads[-1].join()
            server.join(END_SECONDS)
    finally:  # by a signal too: their processes have to end before this one
        sides.over.set()
        for thread in threads:
            thread.join()
    return _outcome(sides.ended, is_silent)


def _start(
    side: str,
    arguments: Sequence[object],
    end: End,
    seconds: float,
    cpus: Mapping[str, frozenset[int]],
    sides: _Sides,
) -> threading.Thread:
    def work() -> None:
        with suppress(OSError, ValueError):  # of this thread, whose child inherits it; a container may have other CPUs
            os.sched_setaffinity(0, cpus.get(end.device) or os.sched_getaffinity(0))
        sides.ended[side] = command.run(
            list(map(str, arguments)),
            seconds,
            environment={**os.environ, **ENVIRONMENT},
            echo=lambda line: print(f"{side}: {line}", flush=True) if side == CLIENT else None,
            stopped=sides.over.is_set,
        )

    thread = threading.Thread(target=work, name=side, daemon=True)
    thread.start()
    return thread


def _outcome(ended: Mapping[str, command.Ended], is_silent: bool) -> Outcome:
    """``is_silent``: the server neither listened nor ended."""
    client, server = ended.get(CLIENT), ended[SERVER]
    if client and client.code == 0 and not client.timed_out and not client.problem:
        return Outcome(client.output)
    outputs = [one.output for one in (server, client) if one]
    print(server.output, flush=True)  # that of the client is in the log
    hung = is_silent or server.timed_out or bool(client and client.timed_out)
    how = "the server did not begin to listen" if is_silent else f"the server {server.how()}"
    how = f"the client {client.how()}" if client else how
    complaint = perftest.complaint(outputs)
    of_the_setup = not hung and (server.code is None or perftest.is_of_the_setup(outputs))
    return Outcome("", f"{how}{': ' if complaint else ''}{complaint}", of_the_setup, hung)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def _is_listening(port: int) -> bool:
    """By the kernel's table: a connection to find out would be the one that the server waits for."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in Path(name).read_text(encoding="ascii").splitlines()[1:]]
            if any(row[3] == _LISTENS and row[1].endswith(f":{port:04X}") for row in rows if len(row) > 3):
                return True
    return False
