"""Facts on kernel and firmware settings that affect speed: clock source, idle states, pages, IOMMU."""

from __future__ import annotations

import re
from typing import Any, Optional

from .tree import Tree

CLOCK = "/sys/devices/system/clocksource/clocksource0"
IDLE = "/sys/devices/system/cpu/cpu0/cpuidle"
PAGES = "/sys/kernel/mm"
GROUPS = "/sys/kernel/iommu_groups"
#: Clock sources that programs read without a system call; the second to fourth are of virtual machines and ARM.
FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "tsc-early")


def facts(tree: Tree) -> dict[str, Any]:
    """Return kernel settings by name; None for those that are hidden, as in many containers and virtual machines."""
    kinds = {tree.read(f"{GROUPS}/{group}/type") for group in tree.entries(GROUPS)}
    return {
        "clock_source": tree.read(f"{CLOCK}/current_clocksource"),
        "transparent_huge_pages": chosen(tree.read(f"{PAGES}/transparent_hugepage/enabled") or ""),
        "huge_pages": _huge_pages(tree),
        "idle_latency_max_seconds": _idle_latency(tree),
        # types of the devices' IOMMU groups: `identity` is passthrough; empty with the IOMMU off
        "iommu": sorted(kinds - {None}) if tree.exists(GROUPS) else None,
    }


def clock_is_fast(settings: dict[str, Any]) -> Optional[bool]:
    return None if settings["clock_source"] is None else settings["clock_source"] in FAST_CLOCKS


def chosen(text: str) -> Optional[str]:
    """Return the selected word of a kernel setting, in brackets: `madvise` of `always [madvise] never`."""
    match = re.search(r"\[([\w+-]+)\]", text)
    return match[1] if match else None


def _huge_pages(tree: Tree) -> Optional[dict[str, int]]:
    """Return the numbers of reserved huge pages by size (`2048kB`), without zeros; None without huge pages."""
    names = [name for name in tree.entries(f"{PAGES}/hugepages") if name.startswith("hugepages-")]
    counts = {name.partition("-")[2]: tree.number(f"{PAGES}/hugepages/{name}/nr_hugepages") for name in names}
    return {size: count for size, count in counts.items() if count} if names else None


def _idle_latency(tree: Tree) -> Optional[float]:
    """Return the exit latency of the deepest enabled idle state, in seconds; None without idle states."""
    latencies = []
    for name in tree.entries(IDLE):
        latency = tree.number(f"{IDLE}/{name}/latency") if re.fullmatch(r"state\d+", name) else None
        if latency is not None and not tree.number(f"{IDLE}/{name}/disable"):
            latencies.append(latency)  # microseconds (Documentation/admin-guide/pm/cpuidle.rst)
    return max(latencies) / 1e6 if latencies else None
