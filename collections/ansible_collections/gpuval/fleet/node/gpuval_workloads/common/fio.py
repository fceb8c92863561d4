"""Runs fio 3, if the node or the image has it: speed of a folder's disk, and whether data read back is right."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from . import command
from .tool_output import dicts, json_object, number, plain, shortened, whole

BLOCK, DEPTH = "1M", 8
GRACE_SECONDS = 30.0  # beyond fio's runtime: to create the file, to flush, to end
#: Percentiles of latency that fio measures.
PERCENTILES = (50.0, 99.0, 99.9)
#: The error by which fio reports that data read back differs from data written (EILSEQ).
MISMATCH = errno.EILSEQ
#: Errors of space, permissions or the file system's features, which prove nothing about the disk.
NOT_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOMEM}

_NAMES = ("write", "read")


@dataclass(frozen=True)
class FioEngine:
    """An I/O engine of fio, and whether its requests bypass the page cache (``direct``)."""

    name: str
    direct: bool


#: Engines in the order to try: not every fio has libaio, and not every file system supports direct I/O. psync has one
#: request under way, whatever the depth.
_ENGINES = (FioEngine("libaio", True), FioEngine("psync", True), FioEngine("psync", False))
#: Error texts of fio, and of the dynamic loader, that are not at the start of a line.
_ERROR = re.compile(r"error=|: error while loading|not found \(required by")
_UNSUPPORTED = ("Invalid argument", "engine", "Operation not supported", "does not support direct")


@dataclass(frozen=True)
class FioDirection:
    """The figures of reads or writes: bytes moved, rates, and latency of a request by percentile."""

    total_bytes: int
    bytes_per_second: float
    requests_per_second: float
    latency_seconds: dict[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FioMeasurement:
    """The result of one call of fio; a direction without data is None. ``problem``: why it is no measurement;
    ``error``: errno of the failed request, if fio named it; ``hung``: fio did not end by itself."""

    write: FioDirection | None = None
    read: FioDirection | None = None
    problem: str = ""
    error: int = 0
    hung: bool = False

    def figures(self) -> str:
        sides = [
            f"{name} {side.bytes_per_second / 1e9:.3f} GB/s, {side.requests_per_second:.0f} requests/s"
            for name, side in (("written", self.write), ("read", self.read))
            if side
        ]
        return "; ".join([*sides, *([self.problem] if self.problem else [])])

    @property
    def is_disk_error(self) -> bool:
        """Whether a request failed by the disk's fault, not for lack of space or rights, nor as fio does not work."""
        return self.error not in {0, *NOT_THE_DISK}


@dataclass(frozen=True)
class FioWork:
    """The settings of one call of fio on one file: access pattern (``rw``) and block size in fio's notation, requests
    under way (``depth``). ``limit_bytes``: maximum bytes to move, 0 for no limit; a call without a limit repeats until
    its time is over."""

    rw: str
    block: str
    depth: int
    size_bytes: int
    seconds: float
    jobs: int = 1
    limit_bytes: int = 0
    arguments: tuple[str, ...] = ()


def find() -> str | None:
    """Return the path of fio, None if it is not installed."""
    return shutil.which("fio")


def read_report(text: str) -> FioMeasurement:
    """Return the measurement in the output of ``fio --output-format=json``, among other text. Never raises."""
    document = json_object(plain(text), key="jobs")
    if document is None:
        return FioMeasurement(problem="fio's JSON is missing or cut short")
    jobs = dicts(document.get("jobs"))
    write, read = (_side([job[name] for job in jobs if isinstance(job.get(name), dict)]) for name in _NAMES)
    errors = [code for code in (whole(job.get("error")) for job in jobs) if code]
    if errors:
        return FioMeasurement(write, read, f"fio: {os.strerror(errors[0])}", errors[0])
    return FioMeasurement(write, read, "fio moved no data" if write is None and read is None else "")


def _side(sides: list[dict]) -> FioDirection | None:
    """Return the sums over all jobs for one direction; None if no job moved data. Latency is the slowest job's."""
    moved = [side for side in sides if (number(side.get("io_bytes")) or 0) > 0]
    rates = [rate for rate in (number(side.get("bw_bytes")) for side in moved) if rate is not None]
    if not rates:
        return None
    latency: dict[float, float] = {}
    clats = [clat["percentile"] for side in moved for clat in dicts([side.get("clat_ns")]) if "percentile" in clat]
    for percentiles, percent in product(dicts(clats), PERCENTILES):
        value = number(percentiles.get(f"{percent:.6f}"))
        if value is not None:
            latency[percent] = max(latency.get(percent, 0.0), value / 1e9)
    requests = sum(number(side.get("iops")) or 0.0 for side in moved)
    return FioDirection(int(sum(number(side["io_bytes"]) or 0 for side in moved)), sum(rates), requests, latency)


def run(directory: Path, seconds: float, size_bytes: int) -> FioMeasurement | None:
    """Write a file of ``size_bytes`` into a folder, read and remove it, for at most ``seconds`` in all; None without
    fio. Bypasses the page cache if the file system allows it."""
    fio = find()
    if fio is None:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="fio-", dir=directory) as folder:
            path = Path(folder) / "data"
            write = FioWork("write", BLOCK, DEPTH, size_bytes, seconds / 2, arguments=("--end_fsync=1",))
            engine, written = choose_engine(fio, path, size_bytes, write)  # writes and flushes the whole file
            if written.problem:
                return FioMeasurement(problem=written.problem)
            depth = DEPTH if engine.name == "libaio" else 1
            read = replace(write, rw="read", depth=depth, arguments=("--invalidate=1", "--time_based=1"))
            measurement = call(fio, path, read, engine)
            return FioMeasurement(written.write, None if measurement.problem else measurement.read, measurement.problem)
    except OSError as error:
        return FioMeasurement(problem=f"{directory}: {error.strerror or error}")


def choose_engine(
    fio: str, path: Path, size_bytes: int, work: FioWork | None = None
) -> tuple[FioEngine, FioMeasurement]:
    """Return the first engine that works for a file, tried by writing ``size_bytes``, and the measurement of that."""
    work = work or FioWork("write", BLOCK, 1, size_bytes, 10, limit_bytes=size_bytes)
    for engine in _ENGINES:
        measurement = call(fio, path, replace(work, depth=work.depth if engine.name == "libaio" else 1), engine)
        if not any(sign in measurement.problem for sign in _UNSUPPORTED):
            break
    return engine, measurement


def call(
    fio: str, path: Path, work: FioWork, engine: FioEngine, say: Callable[[str], None] | None = None
) -> FioMeasurement:
    """Run fio once on a file or device, in bounded time. The result has a ``problem`` if fio did not complete it."""
    filename = str(path).replace(":", "\\:")  # fio separates file names by colons
    arguments: Sequence[str] = [
        fio, "--name=gpuval", f"--filename={filename}", f"--rw={work.rw}", f"--bs={work.block}",
        f"--size={work.size_bytes}", f"--runtime={max(250, round(1000 * work.seconds))}ms",
        f"--direct={int(engine.direct)}", f"--ioengine={engine.name}", f"--iodepth={work.depth}",
        f"--numjobs={work.jobs}",
        "--thread", "--group_reporting",  # processes of fio would leave the session and outlive a killed fio
        *([f"--io_size={work.limit_bytes // work.jobs}"] if work.limit_bytes else []),
        f"--percentile_list={':'.join(f'{percent:g}' for percent in PERCENTILES)}",
        "--fallocate=none", "--output-format=json", *work.arguments,
    ]  # fmt: skip
    ended = command.run(arguments, work.seconds + GRACE_SECONDS, cwd=path.parent, say=say)
    measurement = read_report(ended.output)
    if ended.code != 0 or measurement.problem:
        return replace(measurement, problem=_why(ended, measurement.problem), hung=ended.timed_out)
    return measurement


def _why(ended: command.ProgramEnd, problem: str) -> str:
    lines = plain(ended.output).splitlines()
    errors = [line for line in lines if line.startswith(("fio:", "verify:", "crc32c:")) or _ERROR.search(line)]
    reason = shortened(errors[0], 160) if errors else problem or "fio moved no data"
    ended_itself = ended.code in (0, 1) and not ended.timed_out and not ended.problem
    return reason if ended_itself else f"fio {ended.how()}: {reason}"
