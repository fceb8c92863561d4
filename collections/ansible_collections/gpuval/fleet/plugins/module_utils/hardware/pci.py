"""Finds accelerators by their PCI ids, with or without a driver.

What counts as GPU hardware:

* NVIDIA: display controllers (class 0x03): 3D controllers and VGA alike, consumer cards too. NVSwitches (0x0680), audio
  (0x0403) and USB functions do not.
* AMD: display controllers that drive no screen (0x0380) and processing accelerators (0x1200), as Instinct parts are.
  A VGA controller (0x0300) is the graphics of a CPU or a workstation card: it counts only when AMD's tool lists it.
* Intel Gaudi (vendor Habana Labs): processing accelerators (0x1200).

A virtual function next to its physical function is not a device of its own; one passed into a virtual machine is.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Optional

from .tree import Tree

DEVICES = "/sys/bus/pci/devices"
#: PCI address with function.
ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: Folder of the GPUs that NVIDIA's kernel driver knows, also if sysfs shows no PCI bus.
NVIDIA_GPUS = "/proc/driver/nvidia/gpus"
SLOTS = "/sys/bus/pci/slots"
VENDORS = {0x10DE: "nvidia", 0x1002: "amd", 0x1DA3: "gaudi"}
#: Counters of PCIe errors (AER) of a device, by file; their last line is the total.
AER_FILES = {
    "pcie_corrected": "aer_dev_correctable",
    "pcie_nonfatal": "aer_dev_nonfatal",
    "pcie_fatal": "aer_dev_fatal",
}
NO_AER = "the kernel counts no PCIe errors here (aer_dev_fatal in sysfs), as in a virtual machine"
GPU_VENDORS = tuple(VENDORS.values())
KERNEL_DRIVERS = {"nvidia": ("nvidia",), "amd": ("amdgpu",), "gaudi": ("habanalabs",)}


def aer_counts(tree: Tree) -> dict[str, dict[str, int]]:
    """Return the PCIe errors that the kernel counted since it found a device: `{kind: {PCI address: count}}`."""
    counts: dict[str, dict[str, int]] = {kind: {} for kind in AER_FILES}
    for address in tree.entries(DEVICES):
        for kind, file in AER_FILES.items():
            total = (tree.read(f"{DEVICES}/{address}/{file}") or "").rpartition(" ")[2]
            if not total.isdecimal():
                break  # a device without AER has none of the files
            counts[kind][address] = int(total)
    return counts


class PciAccelerator(NamedTuple):
    """A PCI device of a GPU vendor. `certain`: False if only the vendor's tool shows whether it is an accelerator."""

    address: str
    vendor: str
    vendor_id: Optional[int] = None
    device_id: Optional[int] = None
    device_class: Optional[int] = None
    kernel_driver: Optional[str] = None
    numa_node: Optional[int] = None
    certain: bool = True

    @property
    def bound(self) -> bool:
        """Whether the device is bound to the vendor's kernel driver."""
        return self.kernel_driver in KERNEL_DRIVERS[self.vendor]

    def facts(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "vendor": self.vendor,
            "vendor_id": _hexadecimal(self.vendor_id, 4),
            "device_id": _hexadecimal(self.device_id, 4),
            "class": _hexadecimal(self.device_class, 6),
            "kernel_driver": self.kernel_driver,
            "numa_node": self.numa_node,
        }


def accelerators(tree: Tree) -> list[PciAccelerator]:
    """Return the accelerators in sysfs by address; empty without a PCI bus, as in some virtual machines."""
    devices = []
    for address in tree.entries(DEVICES):
        folder = f"{DEVICES}/{address}"
        vendor_id = tree.number(f"{folder}/vendor")
        device_class = tree.number(f"{folder}/class")
        certain = counts_as_accelerator(vendor_id, device_class)
        if vendor_id is None or certain is None or tree.exists(f"{folder}/physfn"):
            continue
        devices.append(
            PciAccelerator(
                address=address,
                vendor=VENDORS[vendor_id],
                vendor_id=vendor_id,
                device_id=tree.number(f"{folder}/device"),
                device_class=device_class,
                kernel_driver=tree.link_name(f"{folder}/driver"),
                numa_node=numa_node(tree, folder),
                certain=certain,
            )
        )
    return devices


def numa_node(tree: Tree, folder: str) -> Optional[int]:
    node = tree.number(f"{folder}/numa_node")
    return None if node is None or node < 0 else node


def slots(tree: Tree) -> dict[str, str]:
    """Return the names that the machine's firmware gives PCI slots, by PCI address without function."""
    addresses = {name: tree.read(f"{SLOTS}/{name}/address") for name in tree.entries(SLOTS)}
    return {address: name for name, address in addresses.items() if address}


def has_nvidia_outside_pci(tree: Tree) -> bool:
    """Whether NVIDIA's driver or WSL has GPUs, which a sandbox or virtual machine may show on no PCI bus."""
    devices = (name for name in tree.entries("/dev") if re.fullmatch("nvidia[0-9]+|dxg", name))
    return bool(tree.entries(NVIDIA_GPUS)) or any(devices)


def counts_as_accelerator(vendor_id: Optional[int], device_class: Optional[int]) -> Optional[bool]:
    """Return True for an accelerator, False for one only if the vendor's tool lists it, None for any other device."""
    vendor = VENDORS.get(vendor_id or 0)
    if vendor is None or device_class is None:
        return None
    base_and_sub = device_class >> 8
    if vendor == "nvidia":
        return True if base_and_sub >> 8 == 0x03 else None
    classes = {0x1200: True} if vendor == "gaudi" else {0x1200: True, 0x0380: True, 0x0300: False}
    return classes.get(base_and_sub)


def hidden_from_container(tree: Tree, device: PciAccelerator) -> bool:
    """Whether the device is bound to the vendor's driver on the host, but not available in this container: containers
    see the whole PCI bus of their host, but only their own device files (and NVIDIA's /proc entries)."""
    if not device.bound:
        return False
    if device.vendor == "nvidia":
        visible = tree.entries(NVIDIA_GPUS)
        if visible and device.address not in visible:
            return True
        information = tree.read(f"{NVIDIA_GPUS}/{device.address}/information") or ""
        minor = re.search(r"^[ \t]*Device Minor[ \t]*:[ \t]*(\d+)[ \t]*$", information, re.MULTILINE)
        return minor is not None and not tree.exists(f"/dev/nvidia{minor[1]}")
    kind, device_files = ("drm", "/dev/dri") if device.vendor == "amd" else ("accel", "/dev/accel")
    names = tree.entries(f"{DEVICES}/{device.address}/{kind}")
    files = [f"{device_files}/{name}" for name in names if kind == "accel" or name.startswith("renderD")]
    return bool(files) and not any(tree.exists(file) for file in files)


def _hexadecimal(number: Optional[int], digits: int) -> Optional[str]:
    return None if number is None else f"0x{number:0{digits}x}"
