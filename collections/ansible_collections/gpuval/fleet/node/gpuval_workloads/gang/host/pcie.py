"""A NIC's PCIe link: present and maximum speed, and bridges that redirect peer traffic.

Between a NIC and a GPU below the same switch, data pass through the switch, unless access control (ACS) in its ports
redirects them to the root complex: then GPUDirect RDMA is slow, or does not work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuval_node.hardware.acs import redirects
from gpuval_node.hardware.pci import ADDRESS, DEVICES, accelerators
from gpuval_node.hardware.tree import Tree

FULL_SPEED = 0.99


@dataclass(frozen=True)
class Lanes:
    """Width and speed of a PCIe link: lanes, and gigatransfers per second."""

    width: int
    speed: float

    @property
    def bytes_per_second(self) -> float:
        """Return the bandwidth in each direction, headers included."""
        encoding = 0.8 if self.speed < 8 else 128 / 130 if self.speed < 64 else 242 / 256
        return self.speed * 1e9 * self.width * encoding / 8

    def __str__(self) -> str:
        return f"{self.speed:g} GT/s x{self.width}"


@dataclass(frozen=True)
class Link:
    """PCIe link of the device at a PCI address: as it runs now, and the most that both its ends support."""

    address: str
    now: Lanes
    most: Lanes

    @property
    def ratio(self) -> float:
        return self.now.bytes_per_second / self.most.bytes_per_second

    @property
    def is_slow(self) -> bool:
        return self.ratio < FULL_SPEED


def link(tree: Tree, address: str) -> Link | None:
    """Return the PCIe link of the device at a PCI address; None if unknown, as for virtual functions."""
    own_lanes = _lanes(tree, f"{DEVICES}/{address}")
    if own_lanes is None:
        return None
    now, most = own_lanes
    device_path = tree.way(f"{DEVICES}/{address}")
    bridge = ADDRESS.fullmatch(device_path[-2]) if len(device_path) > 1 else None
    above = _lanes(tree, "/".join(device_path[:-1])) if bridge else None
    if above:
        most = Lanes(min(most.width, above[1].width), min(most.speed, above[1].speed))
    return Link(address, now, most)


def _lanes(tree: Tree, folder: str) -> tuple[Lanes, Lanes] | None:
    lanes = []
    for state in ("current", "max"):
        width = tree.number(f"{folder}/{state}_link_width")
        speed = re.match(r"([\d.]+) GT/s", tree.read(f"{folder}/{state}_link_speed") or "")
        if not speed or not width or width > 32:  # 0 and 255 mean unknown
            return None
        lanes.append(Lanes(width, float(speed[1])))
    return lanes[0], lanes[1]


def bridges_between(first_path: Sequence[str], second_path: Sequence[str]) -> list[str]:
    """Return the PCI addresses of bridges between two devices' sysfs paths below a common switch; none without one."""
    shared = 0
    while shared < min(len(first_path), len(second_path)) and first_path[shared] == second_path[shared]:
        shared += 1
    if not any(ADDRESS.fullmatch(name) for name in first_path[:shared]):
        return []
    return [name for path in (first_path, second_path) for name in path[shared:-1] if ADDRESS.fullmatch(name)]


@dataclass(frozen=True)
class Acs:
    """PCI addresses of bridges between NICs and GPUs: all, those that redirect peer traffic (ACS), unreadable ones."""

    looked_at: tuple[str, ...]
    redirecting: tuple[str, ...]
    unknown: tuple[str, ...]


def acs(tree: Tree, nics: Iterable[str]) -> Acs:
    ends = [tree.way(f"{DEVICES}/{gpu.address}") for gpu in accelerators(tree)]
    bridges = {b for nic in nics for end in ends for b in bridges_between(tree.way(f"{DEVICES}/{nic}"), end)}
    states = {bridge: redirects(tree.data(f"{DEVICES}/{bridge}/config")) for bridge in sorted(bridges)}
    return Acs(
        tuple(states),
        tuple(bridge for bridge, state in states.items() if state),
        tuple(bridge for bridge, state in states.items() if state is None),
    )
