"""One test: the tool at both ends on this node, beside their ports' memory, with a deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..common import command
from ..common.ports import free_port
from . import perftest
from .perftest import PerftestMeasurement

#: What a tool may need beside its measuring: a context on a GPU of a node with many takes seconds.
SLACK_SECONDS = 30.0
LISTEN_SECONDS, END_SECONDS = 20.0, 5.0
HOST = "127.0.0.1"
#: GPUs in the order of their addresses; perftest's README has the second for memory of GPUs.
ENVIRONMENT = {"LC_ALL": "C", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "MLX5_SCATTER_TO_CQE": "0"}
_POLL_SECONDS = 0.05
_LISTENS = "0A"


@dataclass(frozen=True)
class PerftestOutcome:
    """``output`` of the client, whose table counts; without a figure ``problem`` says why."""

    output: str = ""
    problem: str = ""
    #: The test could not begin here, and tells nothing of its ports.
    is_setup_problem: bool = False
    hung: bool = False


class PerftestSide:
    """One end of a test, whose tool runs from the making of this to ``end``. ``cpus`` are those beside each device;
    with the server's ``host`` it is the client, whose lines are shown."""

    def __init__(
        self,
        test: PerftestMeasurement,
        tool: Path,
        cpus: Mapping[str, frozenset[int]],
        port: int,
        seconds: float,
        host: str = "",
    ) -> None:
        end = test.client if host else test.server
        self._command = [str(tool), *test.arguments(end, port), *filter(None, [host])]
        self._cpus, self._seconds, self._is_shown = cpus.get(end.device), seconds, bool(host)
        self.ended: command.ProgramEnd | None = None
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def end(self) -> None:
        self._over.set()
        self.thread.join()

    def is_listening(self, port: int, seconds: float) -> bool:
        """Wait until it does, has ended, or so long."""
        deadline = time.monotonic() + seconds
        while self.thread.is_alive() and time.monotonic() < deadline:
            if _is_listening(port):
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def _work(self) -> None:
        with suppress(OSError, ValueError):  # of this thread, whose child inherits it; a container may have other CPUs
            os.sched_setaffinity(0, self._cpus or os.sched_getaffinity(0))
        environment = {**os.environ, **ENVIRONMENT}
        echo = (lambda line: print(f"client: {line}", flush=True)) if self._is_shown else None
        self.ended = command.run(
            self._command, self._seconds, environment=environment, echo=echo, stopped=self._over.is_set
        )


def limit(test: PerftestMeasurement, slack: float = SLACK_SECONDS) -> float:
    return max(test.seconds, perftest.LEAST_SECONDS) + slack


def run(
    test: PerftestMeasurement,
    tool: Path,
    cpus: Mapping[str, frozenset[int]],
    slack: float = SLACK_SECONDS,
    port: int = 0,
) -> PerftestOutcome:
    """Run both ends; ``cpus`` are those beside each device. Takes no longer than the test, the slack and a kill."""
    port, seconds = port or free_port(), limit(test, slack)
    sides, is_silent = [PerftestSide(test, tool, cpus, port, seconds)], False
    try:
        if sides[0].is_listening(port, min(LISTEN_SECONDS, slack)):
            sides.append(PerftestSide(test, tool, cpus, port, seconds, HOST))
            sides[1].thread.join()
            sides[0].thread.join(END_SECONDS)
        else:
            is_silent = sides[0].thread.is_alive()
    finally:  # by a signal too: their processes have to end before this one
        for side in sides:
            side.end()
    return outcome(sides[0].ended, sides[1].ended if len(sides) > 1 else None, is_silent)


def outcome(
    server: command.ProgramEnd | None, client: command.ProgramEnd | None, is_silent: bool = False
) -> PerftestOutcome:
    """Of the ends that ran here. ``is_silent``: the server neither listened nor ended."""
    if client and client.code == 0 and not client.timed_out and not client.problem:
        return PerftestOutcome(client.output)
    ends = [side for side in (server, client) if side]
    if server:
        print(server.output, flush=True)  # that of the client is in the log
    hung = is_silent or any(side.timed_out for side in ends)
    ending = f"the client {client.how()}" if client else f"the server {server.how()}" if server else "it never began"
    ending = "the server did not begin to listen" if is_silent else ending
    outputs = [side.output for side in ends]
    is_setup_problem = any(side.code is None for side in ends) or perftest.is_setup_problem(outputs)
    problem = ": ".join(filter(None, (ending, perftest.complaint(outputs))))
    return PerftestOutcome("", problem, is_setup_problem and not hung, hung)


def _is_listening(port: int) -> bool:
    """By the kernel's table: a connection to find out would be the one that the server waits for."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in Path(name).read_text(encoding="ascii").splitlines()[1:]]
            if any(row[3] == _LISTENS and row[1].endswith(f":{port:04X}") for row in rows if len(row) > 3):
                return True
    return False
