"""Facts on what prevents direct traffic between PCIe devices: IOMMU translation and redirection by switches (ACS)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .acs import redirects
from .pci import ADDRESS, DEVICES
from .tree import Tree
from .tuning import GROUPS


def facts(tree: Tree, gpus: Iterable[str]) -> dict[str, Any]:
    """Return PCI addresses of GPUs whose traffic the IOMMU translates, and of switch ports that redirect it (ACS); None
    for a list that is not readable. `gpus`: PCI addresses of the node's GPUs."""
    gpus = list(gpus)
    kinds = {gpu: tree.read(f"{DEVICES}/{gpu}/iommu_group/type") for gpu in gpus}
    # PCI addresses from the processor's port to each GPU; empty if sysfs shows no bus.
    paths = [[name for name in tree.way(f"{DEVICES}/{gpu}") if ADDRESS.fullmatch(name)] for gpu in gpus]
    ports = {port for way in paths for port in way[1:-1]}  # ports of switches, between the processor's port and the GPU
    states = {port: redirects(tree.data(f"{DEVICES}/{port}/config")) for port in ports}
    is_complete = gpus and all(paths) and None not in states.values()
    has_groups = gpus and tree.exists(GROUPS)  # an empty folder without IOMMU, or with the IOMMU off
    return {
        "iommu_translated": [gpu for gpu, kind in kinds.items() if kind and kind != "identity"] if has_groups else None,
        "acs_redirecting": sorted(port for port, state in states.items() if state) if is_complete else None,
    }
