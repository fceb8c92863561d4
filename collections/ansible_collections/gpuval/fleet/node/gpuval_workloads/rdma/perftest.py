"""Runs the tools of perftest and parses their output and errors, in which versions differ (a column for the message
rate, MB/sec for MiB/sec, warnings): columns are found by name, and a row counts only if it has a number for each."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..common import command
from ..common.processes import free_port
from ..common.tool_output import number, plain, shortened

WRITE, SEND = "ib_write_bw", "ib_send_bw"
READ_LATENCY, WRITE_LATENCY = "ib_read_lat", "ib_write_lat"
TOOLS = (WRITE, SEND, READ_LATENCY, WRITE_LATENCY)
#: Message size and queue pairs at which the port is the limit, not the message rate.
BANDWIDTH_BYTES, QUEUE_PAIRS = 1 << 20, 2
#: Latency tests use a number of repeats: with a duration, the tools print only an average, no percentiles.
LATENCY_BYTES, LATENCY_REPEATS = 8, 10_000
#: ``-D`` must be more than twice ``-f``, the seconds left out at both ends.
MARGIN_SECONDS, LEAST_SECONDS = 1, 3

#: Seconds beside the measurement: to open a GPU takes seconds on a node with many.
SLACK_SECONDS = 30.0
LISTEN_SECONDS, END_SECONDS = 20.0, 5.0
HOST = "127.0.0.1"
#: Variables of the tools: GPUs in the order of PCI addresses; the third is for GPU memory (perftest's README).
ENVIRONMENT = {"LC_ALL": "C", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "MLX5_SCATTER_TO_CQE": "0"}
_POLL_SECONDS = 0.05
_LISTENS = "0A"
_COLUMN = re.compile(r"#\w+|[\w.]+%?(?: \w+)*\[[^\]]*\]|tps average")
_UNITS = {"Gb/sec": 1e9 / 8, "MB/sec": 2.0**20, "MiB/sec": 2.0**20}
_OPTION = re.compile(r"--[a-z][a-z0-9_-]*")
_COMPLAINT = re.compile(
    r"fail|unable|did not|could ?n.t|error|invalid|unsupported|unrecognized|cannot|not found", re.IGNORECASE
)
#: Errors for which no port is at fault: access, limits, options, libraries, a GPU's driver.
_SETUP = re.compile(
    r"unable to find the infiniband|did not detect devices|get context for the device|allocate (mr|memory)|"
    r"unsupported memory type|unrecognized option|invalid (command|option)|shared librar|permission denied|"
    r"\b(cuda|cu(mem|ctx|init|device)\w*|hip|rocm)\b|memory[_ ]init|"
    r"listen to port|bind socket",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class PerftestEnd:
    """One end of a perftest measurement: an RDMA port, and for RoCE the index of its GID."""

    device: str
    port: int
    gid_index: int | None = None

    @property
    def name(self) -> str:
        return f"{self.device}:{self.port}"


@dataclass(frozen=True)
class PerftestMeasurement:
    """A measurement by a tool of perftest between two ports, or of one. ``memory``: its options for GPU memory."""

    tool: str
    server: PerftestEnd
    client: PerftestEnd
    seconds: int = 0
    both_ways: bool = False
    memory: tuple[str, ...] = ()

    @property
    def is_pair(self) -> bool:
        return self.server != self.client

    @property
    def name(self) -> str:
        """Return the port or pair, as part of a metric's scope."""
        return f"{self.client.name}>{self.server.name}" if self.is_pair else self.client.name

    @property
    def title(self) -> str:
        return " ".join([self.tool, *(["-b"] if self.both_ways else []), self.name, *self.memory])

    def arguments(self, end: PerftestEnd, port: int) -> list[str]:
        """Return the tool's options at one end; ``port`` is the TCP port by which both ends find each other."""
        words = ["-d", end.device, "-i", str(end.port), "-p", str(port), "-F"]
        words += [] if end.gid_index is None else ["-x", str(end.gid_index)]
        if self.tool in (WRITE, SEND):
            words += ["--report_gbits", "-s", str(BANDWIDTH_BYTES), "-q", str(QUEUE_PAIRS)]
            words += ["-D", str(max(LEAST_SECONDS, self.seconds)), "-f", str(MARGIN_SECONDS)]
            return [*words, *(["-b"] if self.both_ways else []), *self.memory]
        return [*words, "-s", str(LATENCY_BYTES), "-n", str(LATENCY_REPEATS)]


def options(help_text: str) -> frozenset[str]:
    """Return the long options of a tool, from its help text."""
    return frozenset(_OPTION.findall(help_text))


def bandwidth(output: str) -> float | None:
    """Return the average bandwidth in a tool's output in bytes/s (``-b``: of both directions); None if implausible."""
    for name, value in _row(output).items():
        unit = re.fullmatch(r"BW average\[(.+)\]", name)
        if unit and unit[1] in _UNITS and value > 0:
            return value * _UNITS[unit[1]]
    return None


def latency(output: str) -> tuple[float, ...] | None:
    """Return a tool's latency in seconds: median, 99th and 99.9th percentile; None without plausible numbers."""
    row = _row(output)
    microseconds = [row.get(f"{name}[usec]", 0.0) for name in ("t_typical", "99% percentile", "99.9% percentile")]
    is_plausible = 0 < microseconds[0] <= microseconds[1] <= microseconds[2]
    return tuple(value * 1e-6 for value in microseconds) if is_plausible else None


def complaint(outputs: Sequence[str]) -> str:
    """Return the last line with an error in the outputs of a measurement's ends, if any of the setup; empty without."""
    lines = _complaints(outputs)
    telling = [line for line in lines if _SETUP.search(line)] or lines
    return shortened(telling[-1], 160) if telling else ""


def is_setup_problem(outputs: Sequence[str]) -> bool:
    """Whether the outputs of a measurement's ends show a failure of the setup, which proves nothing about ports."""
    return any(map(_SETUP.search, _complaints(outputs)))


def _complaints(outputs: Sequence[str]) -> list[str]:
    return [line for text in outputs for line in plain(text).splitlines() if _COMPLAINT.search(line)]


def _row(output: str) -> dict[str, float]:
    """Return ``{column: value}`` of the last complete row in a tool's table; empty without such a row."""
    columns: list[str] = []
    row: dict[str, float] = {}
    for line in plain(output).splitlines():
        if "#bytes" in line:
            columns, row = _COLUMN.findall(line), {}
            continue
        values = [value for value in map(number, line.split()) if value is not None]
        if columns and len(values) == len(columns) == len(line.split()):
            row = dict(zip(columns, values))
    return row


@dataclass(frozen=True)
class PerftestOutcome:
    """The outcome of a measurement: ``output`` of the client, whose table counts; ``problem``: why it has no figure."""

    output: str = ""
    problem: str = ""
    #: Whether the test failed by its setup, and so proves nothing about its ports.
    is_setup_problem: bool = False
    hung: bool = False


class PerftestSide:
    """Runs one end of a measurement for at most ``seconds``, from creation until ``end``. ``cpus``: CPUs near each
    device. ``port``: the server's TCP port. With the server's ``host``, this is the client, whose output is printed."""

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
        """Wait for at most ``seconds`` until the server listens at a TCP port or ends; return whether it listens."""
        deadline = time.monotonic() + seconds
        while self.thread.is_alive() and time.monotonic() < deadline:
            if _is_listening(port):
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def _work(self) -> None:
        with suppress(OSError, ValueError):  # for this thread's child; a container may lack the CPUs
            os.sched_setaffinity(0, self._cpus or os.sched_getaffinity(0))
        environment = {**os.environ, **ENVIRONMENT}
        echo = (lambda line: print(f"client: {line}", flush=True)) if self._is_shown else None
        self.ended = command.run(
            self._command, self._seconds, environment=environment, echo=echo, stopped=self._over.is_set
        )


def limit(test: PerftestMeasurement, slack: float = SLACK_SECONDS) -> float:
    return max(test.seconds, LEAST_SECONDS) + slack


def run(
    test: PerftestMeasurement,
    tool: Path,
    cpus: Mapping[str, frozenset[int]],
    slack: float = SLACK_SECONDS,
    port: int = 0,
) -> PerftestOutcome:
    """Run both ends of a measurement on this node, for at most its time, ``slack`` seconds and a kill. ``cpus``: CPUs
    near each device; ``port``: TCP port, 0 for a free one."""
    port, seconds = port or free_port(), limit(test, slack)
    sides, is_silent = [PerftestSide(test, tool, cpus, port, seconds)], False
    try:
        if sides[0].is_listening(port, min(LISTEN_SECONDS, slack)):
            sides.append(PerftestSide(test, tool, cpus, port, seconds, HOST))
            sides[1].thread.join()
            sides[0].thread.join(END_SECONDS)
        else:
            is_silent = sides[0].thread.is_alive()
    finally:  # also after a signal: the tools must end before this process
        for side in sides:
            side.end()
    return outcome(sides[0].ended, sides[1].ended if len(sides) > 1 else None, is_silent)


def outcome(
    server: command.ProgramEnd | None, client: command.ProgramEnd | None, is_silent: bool = False
) -> PerftestOutcome:
    """Return the outcome of a measurement's ends on this node. ``is_silent``: its server neither listened nor ended."""
    if client and client.code == 0 and not client.timed_out and not client.problem:
        return PerftestOutcome(client.output)
    ends = [side for side in (server, client) if side]
    if server:
        print(server.output, flush=True)  # the client's output is in the log already
    hung = is_silent or any(side.timed_out for side in ends)
    ending = f"the client {client.how()}" if client else f"the server {server.how()}" if server else "it never began"
    ending = "the server did not begin to listen" if is_silent else ending
    outputs = [side.output for side in ends]
    never_began = any(side.code is None for side in ends) or is_setup_problem(outputs)
    problem = ": ".join(filter(None, (ending, complaint(outputs))))
    return PerftestOutcome("", problem, never_began and not hung, hung)


def _is_listening(port: int) -> bool:
    """Whether a process listens at a TCP port, by the kernel's table: the server would accept a test connection."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in Path(name).read_text(encoding="ascii").splitlines()[1:]]
            if any(row[3] == _LISTENS and row[1].endswith(f":{port:04X}") for row in rows if len(row) > 3):
                return True
    return False
