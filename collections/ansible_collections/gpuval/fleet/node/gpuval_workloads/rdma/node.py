"""Finds the RDMA ports of a node and the GPU near each, and selects the perftest measurements of ports and pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from gpuval_node.hardware import nics
from gpuval_node.hardware.pci import ADDRESS, DEVICES, accelerators
from gpuval_node.hardware.tree import Tree

from ..gang.host import pcie, rdma
from .perftest import SEND, TOOLS, WRITE, PerftestEnd, PerftestMeasurement

#: Share of PCIe bandwidth for data, beside the headers of packets (256 bytes of 280).
PCIE_PAYLOAD = 0.9
#: Options for GPU memory that a tool may be built with, and whether each selects the GPU by address or index.
GPU_OPTIONS = (("--use_cuda_bus_id", "address"), ("--use_cuda", "index"), ("--use_rocm", "index"))


@dataclass(frozen=True)
class Rail:
    """An active RDMA port, with a GPU below the same PCIe switch (PCI address, index in their order). ``slot``: the
    NIC's PCI address without function: the ports of a card share the bandwidth of its slot."""

    port: rdma.Port
    gpu_address: str | None = None
    gpu_index: int = 0
    most_bytes_per_second: float | None = None
    slot: str | None = None
    slot_bytes_per_second: float | None = None

    @property
    def end(self) -> PerftestEnd:
        gid = self.port.roce_v2 if self.port.link_layer == nics.ETHERNET else None
        return PerftestEnd(self.port.device, self.port.number, gid.index if gid else None)


@dataclass
class RdmaNode:
    """The RDMA devices of a node; ``links``, ``cpus`` and ``numa`` are by device name."""

    devices: list[rdma.Device]
    rails: list[Rail]
    down: list[rdma.Port]
    #: Ports of other kinds, such as EFA, which the tools test only with special options.
    other: list[rdma.Port]
    links: dict[str, pcie.Link]
    cpus: dict[str, frozenset[int]]
    numa: dict[str, int | None]
    pkeys: list[tuple[str, ...]] = field(default_factory=list)

    def described(self) -> list[dict[str, Any]]:
        """Return the RDMA devices with PCIe link and NUMA node, for the record."""
        gpus = {rail.port.device: rail.gpu_address for rail in self.rails}
        return [
            {
                "name": device.name, "firmware_version": device.firmware, "board_id": device.board,
                "pci_address": device.pci_address, "numa_node": self.numa[device.name],
                "pcie": str(self.links[device.name].now) if device.name in self.links else None,
                "gpu": gpus.get(device.name),
                "ports": [f"{port.name} {port.state} ({port.physical_state})" for port in device.ports[:4]],
            }
            for device in self.devices[:64]
        ]  # fmt: skip


def look(tree: Tree, patterns: Sequence[str]) -> RdmaNode:
    """Return the node's RDMA devices whose names match one of the patterns."""
    devices = [d for d in rdma.devices(tree) if any(fnmatchcase(d.name, pattern) for pattern in patterns)]
    links = {d.name: link for d in devices if d.pci_address and (link := pcie.link(tree, d.pci_address))}
    places = {device.name: rdma.place(tree, device.name) for device in devices}
    ports = [port for device in devices for port in device.ports]
    addresses = {device.name: device.pci_address for device in devices}
    gpus = [gpu.address for gpu in accelerators(tree)]
    active = [port for port in ports if port.is_active and port.link_layer in (nics.INFINIBAND, nics.ETHERNET)]
    return RdmaNode(
        devices=devices,
        rails=[_rail(tree, port, addresses[port.device], gpus, links.get(port.device)) for port in active],
        down=[port for port in ports if not port.is_active],
        other=[port for port in ports if port.is_active and port not in active],
        links=links,
        cpus={name: cpus for name, (_, cpus) in places.items()},
        numa={name: numa for name, (numa, _) in places.items()},
        pkeys=[rdma.pkeys(tree, port) for port in active if port.link_layer == nics.INFINIBAND],
    )


def absent(tree: Tree, patterns: Sequence[str]) -> list[str]:
    """Return the patterns that no RDMA device matches; those with wildcards only if no other pattern matches either."""
    names = [device.name for device in rdma.devices(tree)]
    unfit = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    some_fit = len(unfit) < len(patterns)
    return [pattern for pattern in unfit if pattern != "*" and not (some_fit and set(pattern) & set("*?["))]


def _rail(tree: Tree, port: rdma.Port, address: str | None, gpus: Sequence[str], link: pcie.Link | None) -> Rail:
    most = port.rate_bits_per_second / 8 if port.rate_bits_per_second else None
    # maximum of both ends of the link: a slower link is a fault, not a limit
    slot = link.most.bytes_per_second * PCIE_PAYLOAD if link else None
    if most and slot:
        most = min(most, slot)
    gpu = _nearest(tree, address, gpus) if address else None
    return Rail(port, gpu, gpus.index(gpu) if gpu else 0, most, address.rpartition(".")[0] if address else None, slot)


def _nearest(tree: Tree, nic: str, gpus: Sequence[str]) -> str | None:
    """Return the GPU that shares the most bridges with a NIC; None if all paths go through the CPU."""
    nic_path = tree.way(f"{DEVICES}/{nic}")

    def shared(gpu: str) -> int:
        steps = zip(nic_path[:-1], tree.way(f"{DEVICES}/{gpu}")[:-1])
        return sum(bool(ADDRESS.fullmatch(nic_step)) for nic_step, gpu_step in steps if nic_step == gpu_step)

    best = max(gpus, key=shared, default=None)
    return best if best and shared(best) else None


def most_of(client: Rail, server: Rail, both_ways: bool) -> float | None:
    """Return the maximum speed of a measurement between two ports, in bytes/s; None if a port's rate is unknown."""
    if not client.most_bytes_per_second or not server.most_bytes_per_second:
        return None
    most = (2 if both_ways else 1) * min(client.most_bytes_per_second, server.most_bytes_per_second)
    if client.slot is None or client.slot != server.slot:
        return most
    # a shared slot carries the traffic of both ports
    return min(most, *(rail.slot_bytes_per_second or most for rail in (client, server)))


def memory_of(rail: Rail, options: frozenset[str]) -> tuple[str, ...]:
    """Return perftest's options for memory of the rail's GPU; empty without a GPU, or if ``options`` has none."""
    if rail.gpu_address is None:
        return ()
    values = {"address": rail.gpu_address, "index": str(rail.gpu_index)}
    return next(((f"{name}={values[option_key]}",) for name, option_key in GPU_OPTIONS if name in options), ())


def tests(rails: Sequence[Rail], options: frozenset[str], seconds: float, pairs: bool) -> list[PerftestMeasurement]:
    """Return the measurements, with ``seconds`` for bandwidth altogether: each port alone and, with ``pairs``,
    neighbours in a ring of like ports: a slow port shows in two pairs."""
    chosen: list[PerftestMeasurement] = []
    rings: dict[tuple[str | None, float | None], list[PerftestEnd]] = defaultdict(list)
    for rail in rails:
        end, memory = rail.end, memory_of(rail, options)
        chosen += [PerftestMeasurement(tool, end, end) for tool in TOOLS]
        chosen += [PerftestMeasurement(WRITE, end, end, memory=memory)] if memory else []
        # Ports in one network have equal link layer and rate.
        rings[rail.port.link_layer, rail.port.rate_bits_per_second].append(end)
    for ends in rings.values() if pairs else ():
        for client, server in zip(ends, ends[1:] + (ends[:1] if len(ends) > 2 else [])):
            chosen += [PerftestMeasurement(WRITE, server, client, both_ways=True)]
    count = sum(test.tool in (WRITE, SEND) for test in chosen)
    test_seconds = int(seconds / count) if count else 0
    return [replace(test, seconds=test_seconds) for test in chosen]
