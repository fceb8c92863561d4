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
