"""fio 3, where the node or the image has it: how fast a folder's disk takes and gives data."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from . import command
from .tool_output import dicts, json_object, number, plain, shortened, whole

BLOCK = "1M"
GRACE_SECONDS = 30.0  # beyond the time asked for: to lay out the file, to flush, to end

_NAMES = ("write", "read")


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
class Disk:
    """What fio measured. ``direct``: past the page cache; ``problem``: why a direction is missing, empty if none is."""

    write_bytes_per_second: float | None = None
    read_bytes_per_second: float | None = None
    direct: bool = True
    problem: str = ""


def parse(text: str) -> Disk:
    """Read ``fio --output-format=json``, notes before and after it allowed. Never raises."""
    document = json_object(plain(text), key="jobs")
    if document is None:
        return Disk(problem="fio's JSON is missing or cut short")
    jobs = dicts(document.get("jobs"))
    errors = [code for code in (whole(job.get("error")) for job in jobs) if code]
    if errors:
        return Disk(problem=f"fio: {os.strerror(errors[0])}")
    write, read = (_rate([job[name] for job in jobs if isinstance(job.get(name), dict)]) for name in _NAMES)
    return Disk(write, read, problem="fio moved no data" if write is None and read is None else "")


def _rate(sides: list[dict]) -> float | None:
    """Return the bytes per second of one direction of all jobs together; None when none of them moved data."""
    rates = [number(side.get("bw_bytes")) for side in sides if (number(side.get("io_bytes")) or 0) > 0]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


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
    measured: dict[str, float | None] = {}
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
        rate = disk.write_bytes_per_second if name == "write" else disk.read_bytes_per_second
        if ended.code != 0 or rate is None:
            return Disk(measured.get("write"), problem=_why(ended, disk))
        measured[name] = rate
    return Disk(measured["write"], measured["read"])


def _why(ended: command.Ended, disk: Disk) -> str:
    errors = [line for line in plain(ended.output).splitlines() if line.startswith("fio:") or "error=" in line]
    reason = shortened(errors[0], 160) if errors else disk.problem or "fio moved no data"
    return (
        reason if ended.code in (0, 1) and not ended.timed_out and not ended.problem else f"fio {ended.how()}: {reason}"
    )
