"""Main memory, its limit for this process, and errors that the memory controllers counted."""

from __future__ import annotations

import re
from typing import Any, Optional

from .tree import Tree

CONTROLLERS = "/sys/devices/system/edac/mc"
NO_CONTROLLER = "no EDAC driver shows the memory controllers here, as in a virtual machine"


def facts(tree: Tree) -> dict[str, Any]:
    sizes = meminfo(tree.read("/proc/meminfo") or "")
    limit = tree.read("/sys/fs/cgroup/memory.max")  # in a container, the container's limit
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
    """Return the corrected and uncorrected errors that the memory controllers counted since their driver was loaded."""
    controllers = [entry for entry in tree.entries(CONTROLLERS) if re.fullmatch(r"mc\d+", entry)]
    sums: dict[str, Optional[int]] = {}
    for name, file in (("ecc_corrected_count", "ce_count"), ("ecc_uncorrected_count", "ue_count")):
        counts = [tree.number(f"{CONTROLLERS}/{controller}/{file}") for controller in controllers]
        counted = [count for count in counts if count is not None]
        sums[name] = sum(counted) if counted else None
    return sums


def meminfo(text: str) -> dict[str, int]:
    """Return the sizes in bytes, by name, from the text of /proc/meminfo."""
    return {name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
