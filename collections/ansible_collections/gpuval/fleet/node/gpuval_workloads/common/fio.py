"""fio, where the node or the image has it: how fast a folder's disk takes and gives data.

JSON of fio 3 (``bw_bytes``, ``clat_ns``) and of fio 2 (``bw`` in KiB/s, ``clat`` in microseconds).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from . import command
from .tool_output import dicts, json_object, number, plain, shortened, whole

BLOCK = "1M"
GRACE_SECONDS = 30.0  # beyond the time asked for: to lay out the file, to flush, to end

_NAMES = ("write", "read")
_PERCENTILES = {"p50": 50.0, "p99": 99.0}


@dataclass(frozen=True)
class _Way:
    """An engine of fio, how many requests it has under way, and whether they pass the page cache by."""

    engine: str
    depth: int
    direct: bool


#: Tried in this order: not every fio has libaio, and not every filesystem takes requests past the page cache.
_WAYS = (_Way("libaio", 8, True), _Way("psync", 1, True), _Way("psync", 1, False))
_NOT_THIS_WAY = ("Invalid argument", "engine", "Operation not supported")


@dataclass(frozen=True)
class Direction:
    """Reads or writes of all jobs: rate in bytes per second, bytes moved, completion latency in seconds of single
    requests (mean; of several jobs the slowest one's percentiles), None where fio does not say."""

    bytes_per_second: float
    moved_bytes: int
    latency_mean_seconds: float | None = None
    latency_p50_seconds: float | None = None
    latency_p99_seconds: float | None = None


@dataclass(frozen=True)
class Disk:
    """What fio measured. ``direct``: past the page cache; ``problem``: why a direction is missing, empty if none is."""

    write: Direction | None = None
    read: Direction | None = None
    version: str = ""
    direct: bool = True
    problem: str = ""

    @property
    def write_bytes_per_second(self) -> float | None:
        return self.write.bytes_per_second if self.write else None

    @property
    def read_bytes_per_second(self) -> float | None:
        return self.read.bytes_per_second if self.read else None


def parse(text: str) -> Disk:
    """Read ``fio --output-format=json``, notes before and after it allowed. Never raises."""
    document = json_object(plain(text), key="jobs")
    if document is None:
        return Disk(problem="fio's JSON is missing or cut short")
    jobs = dicts(document.get("jobs"))
    version = document.get("fio version")
    errors = [whole(job.get("error")) for job in jobs if whole(job.get("error"))]
    if errors:
        return Disk(version=str(version or ""), problem=f"fio: {os.strerror(errors[0])}")
    found = {name: _direction([job[name] for job in jobs if isinstance(job.get(name), dict)]) for name in _NAMES}
    problem = "" if any(found.values()) else "fio moved no data"
    return Disk(found["write"], found["read"], str(version or "")[:64], problem=problem)


def _direction(sides: list[Mapping]) -> Direction | None:
    """Put one direction of all jobs together; None when none of them moved data."""
    sides = [side for side in sides if (number(side.get("io_bytes")) or 0) > 0 and _rate(side) is not None]
    if not sides:
        return None
    latencies = [_latency(side) for side in sides]
    worst = {
        name: max((one[name] for one in latencies if name in one), default=None) for name in ("mean", "p50", "p99")
    }
    return Direction(
        sum(_rate(side) or 0.0 for side in sides),
        int(sum(number(side["io_bytes"]) or 0 for side in sides)),
        worst["mean"],
        worst["p50"],
        worst["p99"],
    )


def _rate(side: Mapping) -> float | None:
    exact, kib = number(side.get("bw_bytes")), number(side.get("bw"))
    return exact if exact is not None else None if kib is None else kib * 1024


def _latency(side: Mapping) -> dict[str, float]:
    """Return the completion latency in seconds: mean, p50, p99, those that are there."""
    for key, factor in (("clat_ns", 1e-9), ("clat", 1e-6)):
        times = side.get(key)
        if not isinstance(times, dict):
            continue
        found = {"mean": number(times.get("mean"))}
        percentiles = times.get("percentile")
        for name, percent in _PERCENTILES.items():
            values = percentiles.items() if isinstance(percentiles, dict) else ()
            found[name] = next((number(value) for at, value in values if number(at) == percent), None)
        return {name: value * factor for name, value in found.items() if value is not None}
    return {}


def run(directory: Path, seconds: float, size_bytes: int) -> Disk | None:
    """Write a file of so many bytes into the folder, then read it, for at most so long in all; None without fio.

    Past the page cache where the filesystem allows it (``direct``). The file is removed again. A disk that cannot be
    measured has a ``problem``, for instance that it is full.
    """
    fio = shutil.which("fio")
    if fio is None:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="fio-", dir=directory) as folder:
            for way in _WAYS:
                measured = replace(_measure(fio, Path(folder), seconds, size_bytes, way), direct=way.direct)
                if not any(sign in measured.problem for sign in _NOT_THIS_WAY):
                    break
            return measured
    except OSError as error:
        return Disk(problem=f"{directory}: {error.strerror or error}")


def _measure(fio: str, folder: Path, seconds: float, size_bytes: int, way: _Way) -> Disk:
    disks = []
    for name in _NAMES:
        # Written once through and flushed; read again and again for its half of the time.
        how = ["--end_fsync=1"] if name == "write" else ["--invalidate=1", "--time_based=1"]
        arguments = [
            fio, "--name=gpuval", f"--filename={folder / 'data'}", f"--rw={name}", f"--bs={BLOCK}",
            f"--size={size_bytes}", f"--runtime={max(1, round(seconds / 2))}", f"--direct={int(way.direct)}",
            f"--ioengine={way.engine}", f"--iodepth={way.depth}",
            "--fallocate=none", "--output-format=json", *how,
        ]  # fmt: skip
        ended = command.run(arguments, seconds / 2 + GRACE_SECONDS, cwd=folder)
        disk = parse(ended.output)
        if ended.code != 0 or getattr(disk, name) is None:
            return replace(_both(disks), problem=_why(ended, disk))
        disks.append(disk)
    return _both(disks)


def _both(disks: list[Disk]) -> Disk:
    write = next((disk.write for disk in disks if disk.write), None)
    read = next((disk.read for disk in disks if disk.read), None)
    return Disk(write, read, disks[0].version if disks else "")


def _why(ended: command.Ended, disk: Disk) -> str:
    said = [line for line in plain(ended.output).splitlines() if line.startswith("fio:") or "error=" in line]
    reason = shortened(said[0], 160) if said else disk.problem or "fio moved no data"
    return (
        reason if ended.code in (0, 1) and not ended.timed_out and not ended.problem else f"fio {ended.how()}: {reason}"
    )
