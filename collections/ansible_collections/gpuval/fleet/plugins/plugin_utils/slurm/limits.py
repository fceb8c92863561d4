"""The time limit that Slurm sets for a job, by its partition, its QOS and its reservation."""

import functools
import math
import os
import re
import time
from collections.abc import Mapping
from typing import NamedTuple

from .commands import Slurm, SlurmError
from .nodes import fields
from .script import JobSettings

#: Seconds that a job is expected to wait: a job in a reservation must end before the reservation does.
START_SECONDS = 60.0
_TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)")
_EXEMPTIONS = re.compile("OverPartQOS|PartitionTimeLimit")
_DATE = "%Y-%m-%dT%H:%M:%S"


class WallLimit(NamedTuple):
    """A time limit of jobs. ``source``: its setting, with name and value. ``holds``: False if a QOS may lift it."""

    seconds: float = math.inf
    source: str = ""
    holds: bool = True


def wall_limit(slurm: Slurm, settings: JobSettings) -> WallLimit:
    """The shortest time limit that Slurm sets for a job with these settings; infinite if none. Raises SlurmError."""
    named, qos, reservation = (chosen_option(settings, name) for name in ("partition", "qos", "reservation"))
    partitions = [fields(line) for line in slurm.run("scontrol", "show", "partition", "-o").splitlines()]
    is_listed = reservation and "," not in reservation  # of several reservations Slurm may use any
    reserved = fields(slurm.run("scontrol", "show", "reservation", reservation, "-o")) if is_listed else {}
    chosen = [partition for partition in partitions if partition.get("PartitionName") in named.split(",")]
    chosen = chosen or [partition for partition in partitions if not named and partition.get("Default") == "YES"]
    is_limited = any((partition.get("QoS"), partition.get("MaxTime")) != ("N/A", "UNLIMITED") for partition in chosen)
    walls = _read_qos(slurm) if qos or is_limited else {}
    of_partitions = [_of_partition(partition, qos, walls) for partition in chosen]
    limits = [max(of_partitions, default=WallLimit())]  # of several partitions Slurm may use any
    end = reserved.get("EndTime", "Unknown")
    if end[:1].isdigit() and "FLEX" not in reserved.get("Flags", ""):
        begins, ends = (time.mktime(time.strptime(reserved[name], _DATE)) for name in ("StartTime", "EndTime"))
        seconds = ends - max(begins, time.time()) - START_SECONDS
        limits.append(WallLimit(seconds // 60 * 60, f"EndTime={end} of reservation {reservation}"))
    return min(limits)


def chosen_option(settings: JobSettings, name: str) -> str:
    """The value of the sbatch option `name`: the last in gpuval_slurm_arguments, else of the setting, else of sbatch's
    own environment variable."""
    listed = [word.partition("=")[2] for word in settings.arguments if word.startswith(f"--{name}=")]
    return [getattr(settings, name) or os.environ.get(f"SBATCH_{name.upper()}", ""), *listed][-1]


def _of_partition(partition: Mapping[str, str], qos: str, walls: Mapping[str, tuple[str, str]]) -> WallLimit:
    """The time limit of a job in a partition. `qos`: the job's, if it is named; `walls`: {QOS: (MaxWall, flags)}. The
    partition's QOS comes before the job's, unless that has OverPartQOS. A QOS may exempt jobs from the partition's
    limit; which QOS a job gets by default is unknown."""
    flags = walls.get(qos, ("", ""))[1]
    holds = qos in walls or not (qos or any(_EXEMPTIONS.search(others) for _wall, others in walls.values()))
    names = (partition.get("QoS", ""), qos)[:: -1 if "OverPartQOS" in flags else 1]
    name = next((name for name in names if walls.get(name, ("", ""))[0]), "")
    texts = [(walls[name][0], f"MaxWall={walls[name][0]} of QOS {name}")] if name else []
    if "PartitionTimeLimit" not in flags:
        text = partition.get("MaxTime", "")
        texts.append((text, f"MaxTime={text} of partition {partition['PartitionName']}"))
    return min((WallLimit(_seconds(text), source, holds) for text, source in texts), default=WallLimit())


@functools.lru_cache(maxsize=1)
def _read_qos(slurm: Slurm) -> dict[str, tuple[str, str]]:
    """MaxWall and flags of each QOS, by its name; empty if accounting is missing or does not answer."""
    try:
        text = slurm.run("sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name,maxwall,flags", tries=1)
    except SlurmError:
        return {}
    rows = (line.split("|") for line in text.splitlines() if line.count("|") == 2)
    return {name: (wall, flags) for name, wall, flags in rows}


def _seconds(text: str) -> float:
    """Seconds of a time ``DAYS-HOURS:MINUTES:SECONDS``; infinite for anything else, such as UNLIMITED."""
    match = _TIME.fullmatch(text)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, math.inf)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
