"""A NIC's PCIe link: present and maximum speed, and bridges that redirect peer traffic.

Between a NIC and a GPU below the same switch, data pass through the switch, unless access control (ACS) in its ports
redirects them to the root complex: then GPUDirect RDMA is slow, or does not work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from .sysfs import Sysfs

FULL_SPEED = 0.99
DEVICES = "bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GPU_VENDORS = {0x10DE, 0x1002, 0x1DA3}
#: PCI classes of GPUs: display controllers, and processing accelerators.
_GPU_CLASSES = {0x0300, 0x0302, 0x0380, 0x1200}


def is_address(name: str) -> bool:
    return bool(_ADDRESS.fullmatch(name))


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
    """A device's present PCIe link, and the maximum of both its ends."""

    address: str
    now: Lanes
    most: Lanes

    @property
    def ratio(self) -> float:
        return self.now.bytes_per_second / self.most.bytes_per_second

    @property
    def is_slow(self) -> bool:
        return self.ratio < FULL_SPEED


def link(sysfs: Sysfs, address: str) -> Link | None:
    """Return a device's PCIe link; None if unknown, as for virtual functions."""
    own_lanes = _lanes(sysfs, f"{DEVICES}/{address}")
    if own_lanes is None:
        return None
    now, most = own_lanes
    device_path = sysfs.way(f"{DEVICES}/{address}")
    above = _lanes(sysfs, "/".join(device_path[:-1])) if len(device_path) > 1 and is_address(device_path[-2]) else None
    if above:
        most = Lanes(min(most.width, above[1].width), min(most.speed, above[1].speed))
    return Link(address, now, most)


def _lanes(sysfs: Sysfs, folder: str) -> tuple[Lanes, Lanes] | None:
    lanes = []
    for state in ("current", "max"):
        width = sysfs.number(f"{folder}/{state}_link_width")
        speed = re.match(r"([\d.]+) GT/s", sysfs.read(f"{folder}/{state}_link_speed") or "")
        if not speed or not width or width > 32:  # 0 and 255 mean unknown
            return None
        lanes.append(Lanes(width, float(speed[1])))
    return lanes[0], lanes[1]


def gpus(sysfs: Sysfs) -> list[str]:
    """Return the PCI addresses of GPUs, by class and vendor."""
    return [address for address in sysfs.entries(DEVICES) if _is_gpu(sysfs, f"{DEVICES}/{address}")]


def _is_gpu(sysfs: Sysfs, folder: str) -> bool:
    kind = sysfs.number(f"{folder}/class")
    return sysfs.number(f"{folder}/vendor") in _GPU_VENDORS and kind is not None and kind >> 8 in _GPU_CLASSES


def bridges_between(first_path: Sequence[str], second_path: Sequence[str]) -> list[str]:
    """Return the bridges between two devices below their common switch; the paths are lists of PCI addresses.

    Empty if the devices share only the root complex, through which data pass anyway.
    """
    shared = 0
    while shared < min(len(first_path), len(second_path)) and first_path[shared] == second_path[shared]:
        shared += 1
    if not any(is_address(name) for name in first_path[:shared]):
        return []
    return [name for device_path in (first_path, second_path) for name in device_path[shared:-1] if is_address(name)]


@dataclass(frozen=True)
class Acs:
    """The bridges between NICs and GPUs: all, those that redirect peer traffic, those that may not be read."""

    looked_at: tuple[str, ...]
    redirecting: tuple[str, ...]
    unknown: tuple[str, ...]


def acs(sysfs: Sysfs, nics: Iterable[str]) -> Acs:
    ends = [sysfs.way(f"{DEVICES}/{gpu}") for gpu in gpus(sysfs)]
    bridges = {b for nic in nics for end in ends for b in bridges_between(sysfs.way(f"{DEVICES}/{nic}"), end)}
    states = {bridge: redirects(sysfs.data(f"{DEVICES}/{bridge}/config")) for bridge in sorted(bridges)}
    return Acs(
        tuple(states),
        tuple(bridge for bridge, state in states.items() if state),
        tuple(bridge for bridge, state in states.items() if state is None),
    )


_EXTENDED, _ACS = 0x100, 0x0D
#: Bits of the ACS control register: redirect requests, redirect completions; pass translated requests directly (ATS).
_REQUESTS, _COMPLETIONS, _DIRECT = 0x04, 0x08, 0x40


def redirects(config: bytes) -> Optional[bool]:
    """Whether a port redirects peer traffic, by its PCI config space; None if only the start of that is readable."""
    if len(config) <= _EXTENDED or config[:4] == b"\xff" * 4:  # 64 bytes without privileges; all ones without a device
        return None
    offset, offsets = _EXTENDED, set()
    while _EXTENDED <= offset <= len(config) - 8 and offset not in offsets:
        offsets.add(offset)
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS:
            control = int.from_bytes(config[offset + 6 : offset + 8], "little")
            return bool(control & (_REQUESTS | _COMPLETIONS)) and not control & _DIRECT
        offset = header >> 20 & 0xFFC
    return False
