"""The longest time that Slurm gives a job where it is submitted: by its partition, its QOS and its reservation."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from typing import NamedTuple

from . import nodes
from .commands import Slurm, SlurmError
from .script import Settings

#: A job begins later than it is submitted, and must end before its reservation does.
START_SECONDS = 60.0
_TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)")


class WallLimit(NamedTuple):
    """``source``: what sets it, with name and value."""

    seconds: float = math.inf
    source: str = ""


def seconds_of(text: str) -> float:
    """Of a limit as Slurm prints it, ``DAYS-HOURS:MINUTES:SECONDS``; infinite for none."""
    found = _TIME.fullmatch(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0, math.inf)
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def wall_limit(slurm: Slurm, settings: Settings) -> WallLimit:
    """The limit of a job with these settings, without any where Slurm does not say it: sbatch names what is wrong.
    Raises SlurmError while slurmctld is away."""
    try:
        return min(_of_partition(slurm, settings), _of_reservation(slurm, _chosen(settings, "reservation")))
    except SlurmError as error:
        if error.away:
            raise
        return WallLimit()


def _chosen(settings: Settings, name: str) -> str:
    """An option of sbatch: the setting, among the arguments, or as sbatch reads it from the environment."""
    listed = (one.partition("=")[2] for one in settings.arguments if one.startswith(f"--{name}="))
    return getattr(settings, name) or next(listed, os.environ.get(f"SBATCH_{name.upper()}", ""))


def _of_partition(slurm: Slurm, settings: Settings) -> WallLimit:
    """Of several partitions Slurm takes any, so that the longest time counts."""
    shown = slurm.run("scontrol", "show", "partition", "-o")
    described = [nodes.fields(line) for line in shown.splitlines() if line.startswith("PartitionName=")]
    named, qos = _chosen(settings, "partition"), _chosen(settings, "qos")
    chosen = [one for one in described if one["PartitionName"] in named.split(",")]
    chosen = chosen or [one for one in described if not named and one.get("Default") == "YES"]
    known = _of_qos(slurm) if qos or any(one.get("QoS", "N/A") != "N/A" for one in chosen) else {}
    return max((_shortest(one, qos, known) for one in chosen), default=WallLimit())


def _shortest(partition: Mapping[str, str], qos: str, known: Mapping[str, tuple[WallLimit, str]]) -> WallLimit:
    """The QOS of the partition comes before the job's, unless that has the flag to say otherwise."""
    own, flags = known.get(qos, (WallLimit(), ""))
    others, _flags = known.get(partition.get("QoS", ""), (WallLimit(), ""))
    first, second = (own, others) if "OverPartQOS" in flags else (others, own)
    limit, text = first if first.source else second, partition.get("MaxTime", "")
    if "PartitionTimeLimit" in flags:
        return limit
    return min(limit, WallLimit(seconds_of(text), f"MaxTime={text} of partition {partition['PartitionName']}"))


def _of_qos(slurm: Slurm) -> dict[str, tuple[WallLimit, str]]:
    """By name its limit and its flags; none where there is no accounting, or it does not answer."""
    try:
        shown = slurm.run("sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name,maxwall,flags", tries=1)
    except SlurmError:
        return {}
    rows = [line.split("|") for line in shown.splitlines() if line.count("|") == 2]
    return {
        name: (WallLimit(seconds_of(text), f"MaxWall={text} of QOS {name}") if text else WallLimit(), flags)
        for name, text, flags in rows
    }


def _of_reservation(slurm: Slurm, name: str) -> WallLimit:
    shown = nodes.fields(slurm.run("scontrol", "show", "reservation", name, "-o")) if name else {}
    text = shown.get("EndTime", "")
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text) or "FLEX" in shown.get("Flags", ""):
        return WallLimit()
    left = time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")) - time.time() - START_SECONDS
    return WallLimit(left // 60 * 60, f"EndTime={text} of reservation {name}")
