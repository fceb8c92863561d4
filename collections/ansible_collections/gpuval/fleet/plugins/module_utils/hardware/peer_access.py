"""Facts on what prevents direct traffic between PCIe devices: IOMMU translation and redirection by switches (ACS)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .acs import redirects
from .pci import ADDRESS, DEVICES
from .tree import Tree
from .tuning import GROUPS

CONFIG_BYTES = 4096


def facts(tree: Tree, gpus: Iterable[str]) -> dict[str, Any]:
    """Return the PCI addresses of what prevents peer access between `gpus`; None for lists that may not be read."""
    gpus = list(gpus)
    kinds = {gpu: tree.read(f"{DEVICES}/{gpu}/iommu_group/type") for gpu in gpus}
    paths = [_way(tree, gpu) for gpu in gpus]
    ports = {port for way in paths for port in way[1:-1]}  # ports of switches, between the processor's port and the GPU
    states = {port: redirects(_read_config_space(tree, port)) for port in ports}
    is_complete = gpus and all(paths) and None not in states.values()
    has_groups = gpus and tree.exists(GROUPS)  # empty with the IOMMU off, and in a virtual machine without one
    return {
        "iommu_translated": [gpu for gpu, kind in kinds.items() if kind and kind != "identity"] if has_groups else None,
        "acs_redirecting": sorted(port for port, state in states.items() if state) if is_complete else None,
    }


def _way(tree: Tree, gpu: str) -> list[str]:
    """Return the PCI addresses on the path from the processor's port to the GPU; empty if sysfs shows no bus."""
    try:
        parts = tree.path(f"{DEVICES}/{gpu}").resolve(strict=True).parts
    except (OSError, RuntimeError):
        return []
    return [part for part in parts if ADDRESS.fullmatch(part)]


def _read_config_space(tree: Tree, address: str) -> bytes:
    """Return the PCI config space of a device; empty if it may not be read."""
    try:
        with tree.path(f"{DEVICES}/{address}/config").open("rb") as file:
            return file.read(CONFIG_BYTES)
    except OSError:
        return b""
