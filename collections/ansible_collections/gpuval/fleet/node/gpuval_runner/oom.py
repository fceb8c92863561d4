"""Finds out whether the kernel killed processes for want of memory (OOM kills)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, Optional

from gpuval_node.hardware.tree import read_text
from gpuval_node.process_stat import oom_kills

LOG_SECONDS = 5.0


class OomCounters(NamedTuple):
    """OOM kills so far, in this control group and on the whole machine; None where the kernel does not count them."""

    group: Optional[int]
    machine: Optional[int]


def counters(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> OomCounters:
    """Read the counts of OOM kills in this process's control group (versions 2 and 1) and on the machine."""
    return OomCounters(_kills_in_group(proc, groups), oom_kills(proc / "vmstat"))


def evidence(before: OomCounters, after: OomCounters, killed: bool) -> str:
    """Return the message for OOM kills while a stage ran, between two readings of the counters, else an empty text.
    Kills elsewhere on the machine count only if the stage was `killed` (SIGKILL)."""
    group, machine = _rise_of(before.group, after.group), _rise_of(before.machine, after.machine)
    if group:
        return f"out of memory: the kernel killed {group} of its control group's processes (oom_kill)"
    if machine and killed:
        return f"probably out of memory: the machine's oom_kill counter rose by {machine} meanwhile"
    return ""


def of_runner(pid: int, kills_before: Optional[int]) -> str:
    """Return the message if the kernel OOM-killed the runner `pid`, by kernel log or counter; else empty."""
    from gpuval_node.hardware.tools import toolbox  # the telemetry helper imports this module and needs no tools

    log = toolbox()("dmesg", timeout=LOG_SECONDS)
    if re.search(rf"Killed process {pid} \(", log.stdout):
        return f"out of memory: the kernel killed the runner (pid {pid})"
    rise = _rise_of(kills_before, counters().machine)
    return f"probably out of memory: the machine's oom_kill counter rose by {rise} meanwhile" if rise else ""


def _rise_of(before: Optional[int], after: Optional[int]) -> int:
    return max(0, after - before) if before is not None and after is not None else 0


def _kills_in_group(proc: Path, groups: Path) -> Optional[int]:
    """Return the OOM kills that this process's control group counts, by files of mounted procfs and cgroups."""
    for line in (read_text(proc / "self" / "cgroup") or "").splitlines():
        _, _, fields = line.partition(":")
        controllers, _, path = fields.partition(":")
        path = path.lstrip("/")
        files = []
        if "memory" in controllers.split(","):
            files = [groups / "memory" / path / "memory.oom_control", groups / "memory" / "memory.oom_control"]
        elif not controllers:
            files = [groups / path / "memory.events", groups / "memory.events"]
        for count in map(oom_kills, files):
            if count is not None:
                return count
    return None
