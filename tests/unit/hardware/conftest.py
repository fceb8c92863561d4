"""Fake machines: a file tree with PCI devices, and vendor tools as small scripts in its own bin directory."""

from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


class Machine:
    """A file tree that `collect(root)` can read as if it were a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return str(self.root)

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def pci(self, address, vendor, device_class, *, device="0x1234", driver=None, physfn=False) -> None:
        folder = f"sys/bus/pci/devices/{address}"
        for name, value in (("vendor", vendor), ("class", device_class), ("device", device), ("numa_node", "-1")):
            self.write(f"{folder}/{name}", f"{value}\n")
        if driver:
            (self.root / folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        if physfn:
            (self.root / folder / "physfn").symlink_to("../0000:00:00.0")

    def network_port(
        self, name="ens1f0np0", *, rdma="mlx5_0", driver="mlx5_core", speed=400_000, downs=1, is_up=True
    ) -> None:
        """A physical Ethernet port; ``rdma`` is its RDMA device, if it has one."""
        folder = f"sys/class/net/{name}"
        for file, value in (
            ("type", 1),
            ("speed", speed),
            ("operstate", "up" if is_up else "down"),
            ("carrier_down_count", downs),
            ("statistics/rx_crc_errors", 0),
        ):
            self.write(f"{folder}/{file}", f"{value}\n")
        device = self._network_device(folder, driver)
        if rdma:
            (device / "infiniband" / rdma).mkdir(parents=True)

    def infiniband_port(self, name="mlx5_1", interface=None, **files) -> None:
        folder = f"sys/class/infiniband/{name}"
        usual = {"link_layer": "InfiniBand", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
        for file, value in {**usual, "counters/link_downed": 0, **files}.items():
            self.write(f"{folder}/ports/1/{file}", f"{value}\n")
        device = self._network_device(folder, "mlx5_core")
        if interface:
            (device / "net" / interface).mkdir(parents=True)

    def _network_device(self, folder: str, driver: str) -> Path:
        pci = self.root / "sys/bus/pci/devices"
        device = pci / f"0000:{len(list(pci.glob('0000:e?:*'))) + 0xE0:02x}:00.0"
        device.mkdir(parents=True)
        (device / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        (self.root / folder / "device").symlink_to(device)
        return device

    def tool(self, name: str, script: str) -> None:
        self.write(f"usr/bin/{name}", f"#!/bin/sh\n{script}\n")
        (self.root / "usr/bin" / name).chmod(0o755)

    def answers(self, name: str, golden: str, status: int = 0) -> None:
        """A tool that prints a golden file whatever it is asked."""
        self.tool(name, f"cat '{DATA / golden}'; exit {status}")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def golden():
    return lambda name: (DATA / name).read_text()
