"""Processors, memory, and settings of kernel and firmware that cost speed where they differ."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any, Optional

from .tree import Tree

CPUS = "/sys/devices/system/cpu"
CONTROLLERS = "/sys/devices/system/edac/mc"
NO_CONTROLLER = "no EDAC driver shows the memory controllers here, as in a virtual machine"
CLOCK = "/sys/devices/system/clocksource/clocksource0"
IDLE = "/sys/devices/system/cpu/cpu0/cpuidle"
PAGES = "/sys/kernel/mm"
GROUPS = "/sys/kernel/iommu_groups"
#: Clocks that a program reads without a call of the kernel; the second to fifth are those of virtual machines and ARM.
FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "tsc-early")


def cpu_facts(tree: Tree) -> dict[str, Any]:
    blocks = processors(tree.read("/proc/cpuinfo") or "")
    names = [name for name in tree.entries(CPUS) if re.fullmatch(r"cpu\d+", name)]
    keys = ("physical_package_id", "core_id")
    shown = {tuple(tree.read(f"{CPUS}/{name}/topology/{key}") for key in keys) for name in names}
    cores = {core for core in shown if None not in core} or {
        (block["physical id"], block["core id"]) for block in blocks if {"physical id", "core id"} <= set(block)
    }
    governor_of = {name: tree.read(f"{CPUS}/{name}/cpufreq/scaling_governor") for name in names}
    governors = Counter(filter(None, governor_of.values()))
    # processors that wait before they raise their clock; where hardware chooses it, by its preference
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


def processors(cpuinfo: str) -> list[dict[str, str]]:
    """One mapping per logical processor of /proc/cpuinfo; what stands before or after them (ARM) belongs to none."""
    blocks = []
    for paragraph in cpuinfo.split("\n\n"):
        pairs = (line.partition(":") for line in paragraph.splitlines())
        block = {key.strip(): value.strip() for key, colon, value in pairs if colon}
        if "processor" in block:
            blocks.append(block)
    return blocks


def memory_facts(tree: Tree) -> dict[str, Any]:
    sizes = meminfo(tree.read("/proc/meminfo") or "")
    limit = tree.read("/sys/fs/cgroup/memory.max")  # in a container: its own limit
    return {
        "total_bytes": sizes.get("MemTotal"),
        "available_bytes": sizes.get("MemAvailable"),
        "swap_bytes": sizes.get("SwapTotal"),
        "huge_page_bytes": sizes.get("Hugetlb"),
        "limit_bytes": int(limit) if limit and limit.isdigit() else None,
        **errors(tree),
        "ecc_problem": None if tree.exists(f"{CONTROLLERS}/mc0") else NO_CONTROLLER,
    }


def errors(tree: Tree) -> dict[str, Optional[int]]:
    """Errors that the memory controllers corrected, and could not correct, since their driver was loaded."""
    controllers = [entry for entry in tree.entries(CONTROLLERS) if re.fullmatch(r"mc\d+", entry)]
    sums: dict[str, Optional[int]] = {}
    for name, file in (("ecc_corrected_count", "ce_count"), ("ecc_uncorrected_count", "ue_count")):
        counts = [tree.number(f"{CONTROLLERS}/{controller}/{file}") for controller in controllers]
        counted = [count for count in counts if count is not None]
        sums[name] = sum(counted) if counted else None
    return sums


def meminfo(text: str) -> dict[str, int]:
    """Sizes of /proc/meminfo in bytes."""
    return {name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def tuning_facts(tree: Tree) -> dict[str, Any]:
    """None for what this kernel does not show, as in many containers and virtual machines."""
    kinds = {tree.read(f"{GROUPS}/{group}/type") for group in tree.entries(GROUPS)}
    return {
        "clock_source": tree.read(f"{CLOCK}/current_clocksource"),
        "transparent_huge_pages": chosen(tree.read(f"{PAGES}/transparent_hugepage/enabled") or ""),
        "huge_pages": _huge_pages(tree),
        "idle_latency_max_seconds": _idle_latency(tree),
        # the kinds of the devices' groups: `identity` is passthrough, none with the IOMMU off
        "iommu": sorted(kinds - {None}) if tree.exists(GROUPS) else None,
    }


def clock_is_fast(settings: dict[str, Any]) -> Optional[bool]:
    return None if settings["clock_source"] is None else settings["clock_source"] in FAST_CLOCKS


def chosen(text: str) -> Optional[str]:
    """The word in brackets: `madvise` of `always [madvise] never`."""
    match = re.search(r"\[([\w+-]+)\]", text)
    return match[1] if match else None


def _huge_pages(tree: Tree) -> Optional[dict[str, int]]:
    """By size as the kernel names it (`2048kB`) the reserved pages, where there are any; None where it has none."""
    names = [name for name in tree.entries(f"{PAGES}/hugepages") if name.startswith("hugepages-")]
    counts = {name.partition("-")[2]: tree.number(f"{PAGES}/hugepages/{name}/nr_hugepages") for name in names}
    return {size: count for size, count in counts.items() if count} if names else None


def _idle_latency(tree: Tree) -> Optional[float]:
    """How long the deepest idle state that is not disabled takes to leave; None without idle states."""
    latencies = []
    for name in tree.entries(IDLE):
        latency = tree.number(f"{IDLE}/{name}/latency") if re.fullmatch(r"state\d+", name) else None
        if latency is not None and not tree.number(f"{IDLE}/{name}/disable"):
            latencies.append(latency)  # microseconds (Documentation/admin-guide/pm/cpuidle.rst)
    return max(latencies) / 1e6 if latencies else None
