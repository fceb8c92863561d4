"""Processors: model, topology and frequency governor."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any

from .tree import Tree

CPUS = "/sys/devices/system/cpu"


def facts(tree: Tree) -> dict[str, Any]:
    blocks = processors(tree.read("/proc/cpuinfo") or "")
    names = [name for name in tree.entries(CPUS) if re.fullmatch(r"cpu\d+", name)]
    keys = ("physical_package_id", "core_id")
    shown = {tuple(tree.read(f"{CPUS}/{name}/topology/{key}") for key in keys) for name in names}
    cores = {core for core in shown if None not in core} or {
        (block["physical id"], block["core id"]) for block in blocks if {"physical id", "core id"} <= set(block)
    }
    governor_of = {name: tree.read(f"{CPUS}/{name}/cpufreq/scaling_governor") for name in names}
    governors = Counter(filter(None, governor_of.values()))
    # processors that raise their clock late, by governor, or by energy preference if the hardware sets the clock
    slow = sum(
        governor not in (None, "performance")
        and tree.read(f"{CPUS}/{name}/cpufreq/energy_performance_preference") != "performance"
        for name, governor in governor_of.items()
    )
    kilohertz = tree.number(f"{CPUS}/cpu0/cpufreq/cpuinfo_max_freq")
    first = blocks[0] if blocks else {}
    numa_nodes = [name for name in tree.entries("/sys/devices/system/node") if re.fullmatch(r"node\d+", name)]
    return {
        "model": first.get("model name") or first.get("Processor") or first.get("CPU part"),
        "vendor": first.get("vendor_id") or first.get("CPU implementer"),
        "microcode": first.get("microcode"),
        "logical_count": len(blocks) or None,
        "usable_count": len(os.sched_getaffinity(0)) if tree.is_real else None,
        "core_count": len(cores) or None,
        "socket_count": len({socket for socket, _core in cores}) or None,
        "numa_node_count": len(numa_nodes) or None,
        "governor": "mixed" if len(governors) > 1 else next(iter(governors), None),
        "governors": dict(governors),
        "slow_governor_count": slow if governors else None,
        "frequency_max_hertz": None if kilohertz is None else kilohertz * 1000,
    }


def cpu_list(text: str) -> list[int]:
    """Return a CPU list such as ``0-2,8`` as numbers; malformed parts are left out."""
    ranges = (re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part) for part in text.strip().split(","))
    return [cpu for match in ranges if match for cpu in range(int(match[1]), int(match[2] or match[1]) + 1)]


def processors(cpuinfo: str) -> list[dict[str, str]]:
    """Return a mapping per logical processor in /proc/cpuinfo; lines before or after these (ARM) are ignored."""
    blocks = []
    for paragraph in cpuinfo.split("\n\n"):
        pairs = (line.partition(":") for line in paragraph.splitlines())
        block = {key.strip(): value.strip() for key, colon, value in pairs if colon}
        if "processor" in block:
            blocks.append(block)
    return blocks
