"""Reads RDMA devices, InfiniBand and RoCE, from /sys/class/infiniband
(Documentation/ABI/stable/sysfs-class-infiniband); the counters in ``hw_counters`` are those of mlx5."""

from __future__ import annotations

import os
import re
import resource
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuval_node.hardware.cpu import cpu_list
from gpuval_node.hardware.link_counters import LINK_ERRORS
from gpuval_node.hardware.nics import ETHERNET, RDMA, rdma_device
from gpuval_node.hardware.pci import DEVICES, numa_node
from gpuval_node.hardware.tree import Tree

FOLDER, VERBS = RDMA, "/sys/class/infiniband_verbs"
#: Smallest sufficient limit of locked memory in bytes: NCCL's registered buffers may not fit into less.
LOCKED_BYTES = 2**30
_IPC_LOCK = 1 << 14
#: PCI class of InfiniBand controllers. NICs with RoCE have the class of Ethernet, like NICs without.
CONTROLLER = 0x0207
#: Maximum entries to read of a GID table: hosts use the first few of hundreds.
MOST_GIDS = 64
MOST_PKEYS, NO_PKEY = 128, "0x0000"
ACTIVE = "ACTIVE"
ROCE_V2 = "RoCE v2"
#: Counters of lost or late packets. (``out_of_sequence`` also counts reordering by adaptive routing.)
RETRANSMISSIONS = (
    "local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err", "rnr_nak_retry_err",
    "req_transport_retries_exceeded", "req_rnr_retries_exceeded", "roce_adp_retrans",
)  # fmt: skip
#: Counters of congestion, which the record shows, but which are no fault of a node.
CONGESTION = (
    "out_of_sequence", "np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "roce_slow_restart",
    "port_xmit_wait",
)  # fmt: skip
_PORT_COUNTERS = (*LINK_ERRORS, "port_xmit_discards", "port_xmit_wait")
_HARDWARE_COUNTERS = (*RETRANSMISSIONS, *(name for name in CONGESTION if name != "port_xmit_wait"), "out_of_buffer")
_NO_GID = re.compile(r"[0:]*|fe80(:0000){7}")
_IPV4 = "0000:0000:0000:0000:0000:ffff:"


@dataclass(frozen=True)
class Gid:
    """An address (GID) of a port: applications select it by its index (``NCCL_IB_GID_INDEX``)."""

    index: int
    value: str
    type: str

    @property
    def is_ipv4(self) -> bool:
        return self.value.startswith(_IPV4)


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device; ``rate_bits_per_second`` is meaningless while the port is not active."""

    device: str
    number: int
    state: str | None
    physical_state: str | None
    link_layer: str | None
    rate_bits_per_second: float | None
    gids: tuple[Gid, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.device}:{self.number}"

    @property
    def is_active(self) -> bool:
        return self.state == ACTIVE

    @property
    def folder(self) -> str:
        return f"{FOLDER}/{self.device}/ports/{self.number}"

    @property
    def roce_v2(self) -> Gid | None:
        """Return the GID for RoCE v2: the first with IPv4, else the first with IPv6 that is not link-local."""
        second = [gid for gid in self.gids if gid.type == ROCE_V2]
        wider = [gid for gid in second if not gid.value.startswith("fe80:")]
        return next((gid for gid in second if gid.is_ipv4), wider[0] if wider else None)


@dataclass(frozen=True)
class Device:
    """An RDMA device; ``interfaces`` are the network interfaces of the same PCI function."""

    name: str
    firmware: str | None
    board: str | None
    model: str | None
    pci_address: str | None
    interfaces: tuple[str, ...]
    ports: tuple[Port, ...]


def devices(tree: Tree) -> list[Device]:
    return [_device(tree, name) for name in tree.entries(FOLDER)]


def ports(tree: Tree) -> list[Port]:
    """Return all RDMA ports, also those that are down: a node is meant to use its ports."""
    return [port for device in devices(tree) for port in device.ports]


def without_driver(tree: Tree) -> list[str]:
    """Return the PCI addresses of InfiniBand controllers without an RDMA driver."""
    kinds = {address: tree.number(f"{DEVICES}/{address}/class") for address in tree.entries(DEVICES)}
    controllers = [address for address, kind in kinds.items() if kind is not None and kind >> 8 == CONTROLLER]
    return [address for address in controllers if not tree.entries(f"{DEVICES}/{address}/infiniband")]


def pkeys(tree: Tree, port: Port) -> tuple[str, ...]:
    """Return the P_Keys of a port in the order of its table: applications use index 0 by default."""
    table = f"{port.folder}/pkeys"
    keys = (tree.read(f"{table}/{index}") for index in tree.entries(table)[:MOST_PKEYS])
    return tuple(key for key in keys if key and key != NO_PKEY)


def place(tree: Tree, device: str) -> tuple[int | None, frozenset[int]]:
    """Return NUMA node and local CPUs of an RDMA device; None and no CPUs if the host does not report them."""
    folder = f"{FOLDER}/{device}/device"
    return numa_node(tree, folder), frozenset(cpu_list(tree.read(f"{folder}/local_cpulist") or ""))


def _device(tree: Tree, name: str) -> Device:
    facts = rdma_device(tree, name)
    return Device(
        name=name,
        firmware=facts["firmware_version"],
        board=facts["board_id"],
        model=facts["model"],
        pci_address=facts["pci_address"],
        interfaces=tuple(tree.entries(f"{FOLDER}/{name}/device/net")),
        ports=tuple(_port(tree, name, port) for port in facts["ports"] if port["port"] is not None),
    )


def _port(tree: Tree, device: str, facts: Mapping[str, Any]) -> Port:
    number, link_layer = facts["port"], facts["link_layer"]
    return Port(
        device=device,
        number=number,
        state=facts["state"],
        physical_state=facts["physical_state"],
        link_layer=link_layer,
        rate_bits_per_second=facts["rate_bits_per_second"],
        gids=tuple(_gids(tree, f"{FOLDER}/{device}/ports/{number}", link_layer)),
    )


def _gids(tree: Tree, folder: str, link_layer: str | None) -> list[Gid]:
    """Return the used GIDs in a port's table; unused entries hold zeros, or only a link's prefix."""
    gids = []
    for index in tree.entries(f"{folder}/gids")[:MOST_GIDS]:
        value = tree.read(f"{folder}/gids/{index}")
        if not index.isdigit() or not value or _NO_GID.fullmatch(value):
            continue
        kind = tree.read(f"{folder}/gid_attrs/types/{index}") or ""
        if kind != ROCE_V2:  # the kernel has one name, IB/RoCE v1, for two things
            kind = "RoCE v1" if link_layer == ETHERNET else "IB"
        gids.append(Gid(int(index), value, kind))
    return gids


def counters(tree: Tree, ports: Sequence[Port]) -> dict[str, dict[str, int]]:
    """Return ``{port: {counter: value}}`` of the error and congestion counters that the ports' drivers have."""
    values_by_port = {}
    for port in ports:
        read = {name: tree.number(f"{port.folder}/counters/{name}") for name in _PORT_COUNTERS}
        read.update({name: tree.number(f"{port.folder}/hw_counters/{name}") for name in _HARDWARE_COUNTERS})
        values = {name: value for name, value in read.items() if value is not None}
        if values:
            values_by_port[port.name] = values
    return values_by_port


@dataclass(frozen=True)
class Moved:
    """Changes of an RDMA port's counters during the work."""

    counts: dict[str, int]
    #: Counters at their maximum, which show nothing.
    full: tuple[str, ...] = ()

    @property
    def link_errors(self) -> int:
        return sum(self.counts.get(name, 0) for name in LINK_ERRORS)

    @property
    def retransmissions(self) -> int:
        return sum(self.counts.get(name, 0) for name in RETRANSMISSIONS)

    def words(self, names: Sequence[str]) -> str:
        return ", ".join(f"{name} +{self.counts[name]}" for name in names if self.counts.get(name))


def moved(before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]) -> dict[str, Moved]:
    """Return the changes between two readings of ``{port: {counter: value}}``, for each port in both."""
    changes = {}
    for port in before.keys() & after.keys():
        names = before[port].keys() & after[port].keys()
        change = {name: after[port][name] - before[port][name] for name in sorted(names)}
        full = tuple(n for n in change if not change[n] and before[port][n] == LINK_ERRORS.get(n))
        # A counter that fell was reset meanwhile.
        changes[port] = Moved({n: c for n, c in change.items() if c >= 0 and n not in full}, full)
    return dict(sorted(changes.items()))


def closed_devices(tree: Tree, dev: Path = Path("/dev/infiniband")) -> list[str]:
    """Return the RDMA devices whose device file is missing, or may not be opened for reading and writing."""
    names = {name: tree.read(f"{VERBS}/{name}/ibdev") for name in tree.entries(VERBS)}
    return sorted(device for name, device in names.items() if device and not os.access(dev / name, os.R_OK | os.W_OK))


def locked_limit(status: Path = Path("/proc/self/status")) -> int | None:
    """Return how many bytes of memory this process may lock; None for no limit."""
    limit, lines = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], []
    with suppress(OSError):
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return None if limit == resource.RLIM_INFINITY or int(effective, 16) & _IPC_LOCK else limit


def describe_ports(ports: Sequence[Port]) -> str:
    """Return a line on all RDMA ports that is equal on nodes of the same kind: ``8 x InfiniBand ACTIVE 400 Gb/s``."""
    return grouped(
        f"{port.link_layer or 'unknown'} {port.state or 'unknown'}"
        + (f" {port.rate_bits_per_second / 1e9:g} Gb/s" if port.is_active and port.rate_bits_per_second else "")
        for port in ports
    )


def describe_firmware(rdma_devices: Sequence[Device]) -> str:
    """Return a line on the boards of RDMA devices and their firmware: ``8 x MT_0000000838 28.39.1002``."""
    return grouped(f"{d.board or d.model or 'unknown'} {d.firmware or 'unknown'}" for d in rdma_devices)


def describe_gids(ports: Sequence[Port]) -> str:
    """Return a line on the active RDMA ports' types of GIDs, with the index of the GID for RoCE v2."""
    return grouped(
        "+".join(sorted({gid.type for gid in port.gids})) + (f" (v2 at {port.roce_v2.index})" if port.roce_v2 else "")
        for port in ports
        if port.is_active and port.gids
    )


def describe_pkeys(tables: Iterable[Sequence[str]]) -> str:
    """Return a line on the P_Key tables of several ports, equal tables once with their count."""
    return grouped(" ".join(table) or "empty" for table in tables)


def grouped(texts: Iterable[str]) -> str:
    """Return a line that counts equal texts, ``2 x this, 1 x that``, sorted by text."""
    return ", ".join(f"{count} x {text}" for text, count in sorted(Counter(texts).items()))
