"""perftest's tools: their options, what they print, and what their complaints mean.

Versions differ: a column for the message rate or none, MB/sec and MiB/sec for the same unit (2^20 bytes), warnings
between the header and its row. So columns go by their names, and a row counts only if it has a number for each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..common.tool_output import number, plain, shortened

WRITE, SEND = "ib_write_bw", "ib_send_bw"
READ_LATENCY, WRITE_LATENCY = "ib_read_lat", "ib_write_lat"
TOOLS = (WRITE, SEND, READ_LATENCY, WRITE_LATENCY)
#: Large enough that the port is the limit, and not the rate of messages.
BANDWIDTH_BYTES, QUEUE_PAIRS = 1 << 20, 2
#: Percentiles need repeats: with a duration the tools print an average alone.
LATENCY_BYTES, LATENCY_REPEATS = 8, 10_000
#: ``-D`` has to be more than twice ``-f``, the seconds left out at both ends.
MARGIN_SECONDS, LEAST_SECONDS = 1, 3

_COLUMN = re.compile(r"#\w+|[\w.]+%?(?: \w+)*\[[^\]]*\]|tps average")
_UNITS = {"Gb/sec": 1e9 / 8, "MB/sec": 2.0**20, "MiB/sec": 2.0**20}
_OPTION = re.compile(r"--[a-z][a-z0-9_-]*")
_COMPLAINT = re.compile(
    r"fail|unable|did not|could ?n.t|error|invalid|unsupported|unrecognized|cannot|not found", re.IGNORECASE
)
#: The test never began for a reason that no port is to blame for: access, limits, options, libraries, a GPU's driver.
_SETUP = re.compile(
    r"unable to find the infiniband|did not detect devices|get context for the device|allocate (mr|memory)|"
    r"unsupported memory type|unrecognized option|invalid (command|option)|shared librar|permission denied|"
    r"\b(cuda|cu(mem|ctx|init|device)\w*|hip|rocm)\b|memory[_ ]init|"
    r"listen to port|bind socket",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class PerftestEnd:
    """One end of a test: a port, and for RoCE the index of the address that it goes by."""

    device: str
    port: int
    gid_index: int | None = None

    @property
    def name(self) -> str:
        return f"{self.device}:{self.port}"


@dataclass(frozen=True)
class PerftestMeasurement:
    """A tool from one end to the other, which may be the same; ``memory`` are options for memory of a GPU."""

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
        """The port or pair, as part of a metric's scope."""
        return f"{self.client.name}>{self.server.name}" if self.is_pair else self.client.name

    @property
    def title(self) -> str:
        return " ".join([self.tool, *(["-b"] if self.both_ways else []), self.name, *self.memory])

    def arguments(self, end: PerftestEnd, port: int) -> list[str]:
        """The options at one end, with the TCP port by which both find each other. Both ends need the same."""
        words = ["-d", end.device, "-i", str(end.port), "-p", str(port), "-F"]
        words += [] if end.gid_index is None else ["-x", str(end.gid_index)]
        if self.tool in (WRITE, SEND):
            words += ["--report_gbits", "-s", str(BANDWIDTH_BYTES), "-q", str(QUEUE_PAIRS)]
            words += ["-D", str(max(LEAST_SECONDS, self.seconds)), "-f", str(MARGIN_SECONDS)]
            return [*words, *(["-b"] if self.both_ways else []), *self.memory]
        return [*words, "-s", str(LATENCY_BYTES), "-n", str(LATENCY_REPEATS)]


def options(help_text: str) -> frozenset[str]:
    """The long options of a tool, by its help."""
    return frozenset(_OPTION.findall(help_text))


def bandwidth(output: str) -> float | None:
    """The average in bytes/s, of both directions together with ``-b``; None without one that makes sense."""
    for name, value in _row(output).items():
        unit = re.fullmatch(r"BW average\[(.+)\]", name)
        if unit and unit[1] in _UNITS and value > 0:
            return value * _UNITS[unit[1]]
    return None


def latency(output: str) -> tuple[float, ...] | None:
    """The median, 99th and 99.9th percentile in seconds; None without any that make sense."""
    row = _row(output)
    microseconds = [row.get(f"{name}[usec]", 0.0) for name in ("t_typical", "99% percentile", "99.9% percentile")]
    # in this order they are percentiles, and of a clock that runs forward
    is_plausible = 0 < microseconds[0] <= microseconds[1] <= microseconds[2]
    return tuple(value * 1e-6 for value in microseconds) if is_plausible else None


def complaint(outputs: Sequence[str]) -> str:
    """The last complaint in what the ends of a test printed; empty without one."""
    lines = _complaints(outputs)
    telling = [line for line in lines if _SETUP.search(line)] or lines
    return shortened(telling[-1], 160) if telling else ""


def is_setup_problem(outputs: Sequence[str]) -> bool:
    """Whether a test without a figure tells only of the setup, and not of its ports."""
    return any(map(_SETUP.search, _complaints(outputs)))


def _complaints(outputs: Sequence[str]) -> list[str]:
    return [line for text in outputs for line in plain(text).splitlines() if _COMPLAINT.search(line)]


def _row(output: str) -> dict[str, float]:
    """The last row of the table, by column; empty where there is none that is whole."""
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
