"""Whether a gang went by the network that it was to go by: a fall-back to sockets is slow and silent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

SYSFS = Path("/sys/class/infiniband")
PCI = Path("/sys/bus/pci/devices")
INFINIBAND = "0x0207"
"""The class of InfiniBand controllers. A NIC that could do RoCE is of Ethernet's, as those are that never shall."""
SOCKET = "Socket"
NVLINK = "MNNVL"
IB = ("IB", "IBext*")
"""InfiniBand and RoCE, by the library's own transport or that of HPC-X."""
ACTIVE = "ACTIVE"
_RATE = re.compile(r"([\d.]+) Gb/sec")


def rdma_ports(folder: Path = SYSFS) -> dict[str, str]:
    """The ports of RDMA devices (InfiniBand, RoCE, EFA) by ``device:port``, with their state.

    A port that is down counts as well: who has it is meant to use it.
    """
    found = {}
    for path in sorted(folder.glob("*/ports/*")):
        try:
            state = (path / "state").read_text(encoding="ascii", errors="replace")
        except OSError:
            state = ""
        found[f"{path.parts[-3]}:{path.parts[-1]}"] = state.partition(":")[2].strip() or "unknown"  # "4: ACTIVE"
    return found


def without_driver(folder: Path | None = None) -> list[str]:
    """The addresses of InfiniBand controllers on PCI that no RDMA driver uses."""
    found = []
    for path in sorted((folder or PCI).glob("*/class")):
        with suppress(OSError):
            kind = path.read_text(encoding="ascii", errors="replace")
            if kind.startswith(INFINIBAND) and not (path.parent / "infiniband").is_dir():
                found.append(path.parent.name)
    return found


def active_bytes_per_second(folder: Path | None = None) -> float:
    """What the active ports of RDMA devices carry together, by their rates; 0 where none tells."""
    folder, total = folder or SYSFS, 0.0
    for name, state in rdma_ports(folder).items():
        device, _, port = name.rpartition(":")
        try:
            rate = _RATE.match(
                (folder / device / "ports" / port / "rate").read_text(encoding="ascii", errors="replace")
            )
        except OSError:
            continue
        if state == ACTIVE and rate:
            total += float(rate[1]) * 1e9 / 8
    return total


def is_ib(networks: Sequence[str]) -> bool:
    """Whether everything between the nodes went by InfiniBand or RoCE."""
    return bool(networks) and all(any(fnmatchcase(name, one) for one in IB) for name in networks)


def complaint(
    networks: Sequence[str], expected: Sequence[str], rdma_ports: Mapping[str, str], driverless: Sequence[str] = ()
) -> str | None:
    """Say what is wrong with the networks that were used, empty for nothing; None where the log tells of none.

    ``expected`` are names as NCCL's log has them, ``*`` for any text; without any, sockets are wrong where there is an
    RDMA port, whatever its state, or an InfiniBand controller without its driver (``driverless``): a fabric that is
    down is no reason to go by sockets.
    """
    if not networks:
        return None
    used = " and ".join(networks)
    if expected:
        others = [name for name in networks if not any(fnmatchcase(name.lower(), one.lower()) for one in expected)]
        if len(others) < len(networks):  # NVLink between the nodes of a rack beside what joins the racks
            others = [name for name in others if name != NVLINK]
        return f"the collectives went by {used}, not by {' or '.join(expected)} as declared" if others else ""
    if SOCKET in networks and rdma_ports:
        listed = ", ".join(f"{name} {state}" for name, state in list(rdma_ports.items())[:8])
        return (
            f"the collectives went by {used} although {len(rdma_ports)} RDMA ports are here ({listed}): bring them up, "
            "or declare gpuval_network: tcp where sockets are meant"
        )
    if SOCKET in networks and driverless:
        return (
            f"the collectives went by {used} although {len(driverless)} InfiniBand controllers are here without a "
            f"driver ({', '.join(driverless[:8])}): load it (mlx5_ib), or declare gpuval_network: tcp where "
            "sockets are meant"
        )
    return ""
