"""RDMA devices as the kernel shows them in /sys/class/infiniband: InfiniBand and RoCE alike.

The files are those of Documentation/ABI/stable/sysfs-class-infiniband; the counters in ``hw_counters`` those of mlx5
and, where they are called the same, of other drivers.
"""

from __future__ import annotations

import os
import re
import resource
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .pcie import DEVICES, is_address
from .sysfs import Sysfs, cpu_list

FOLDER, VERBS = "class/infiniband", "class/infiniband_verbs"
#: What NCCL registers for its buffers is more than a limit below this allows.
LOCKED_BYTES = 2**30
_IPC_LOCK = 1 << 14
#: PCI's class of InfiniBand controllers. A NIC that could do RoCE has that of Ethernet, like those that never will.
CONTROLLER = 0x0207
#: Of tables with hundreds of places, of which hosts use the first few.
MOST_GIDS = 64
MOST_PKEYS, NO_PKEY = 128, "0x0000"
ACTIVE, LINK_UP = "ACTIVE", "LinkUp"
ETHERNET, INFINIBAND = "Ethernet", "InfiniBand"
ROCE_V2 = "RoCE v2"
#: What comes of cables, transceivers and ports. Value: the most that the counter can tell; it stays there.
LINK_ERRORS = {
    "symbol_error": 2**16 - 1,
    "link_error_recovery": 2**8 - 1,
    "link_downed": 2**8 - 1,
    "port_rcv_errors": 2**16 - 1,
    "port_rcv_remote_physical_errors": 2**16 - 1,
    "local_link_integrity_errors": 2**4 - 1,
    "excessive_buffer_overrun_errors": 2**4 - 1,
}
#: Packets that were lost on the way or came too late. (``out_of_sequence`` also counts what adaptive routing reorders.)
RETRANSMISSIONS = (
    "local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err", "rnr_nak_retry_err",
    "req_transport_retries_exceeded", "req_rnr_retries_exceeded", "roce_adp_retrans",
)  # fmt: skip
#: Signs of congestion: shown, and no fault of a node.
CONGESTION = (
    "out_of_sequence", "np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "roce_slow_restart",
    "port_xmit_wait",
)  # fmt: skip
_PORT_COUNTERS = (*LINK_ERRORS, "port_xmit_discards", "port_xmit_wait")
_HARDWARE_COUNTERS = (*RETRANSMISSIONS, *(name for name in CONGESTION if name != "port_xmit_wait"), "out_of_buffer")
_RATE = re.compile(r"([\d.]+) Gb/sec")
_NO_GID = re.compile(r"[0:]*|fe80(:0000){7}")
_IPV4 = "0000:0000:0000:0000:0000:ffff:"


@dataclass(frozen=True)
class Gid:
    """An address of a port: by its index applications ask for it (``NCCL_IB_GID_INDEX``)."""

    index: int
    value: str
    type: str

    @property
    def is_ipv4(self) -> bool:
        return self.value.startswith(_IPV4)


@dataclass(frozen=True)
class Port:
    """A port of a device; ``rate_bits_per_second`` is meaningless while it is not active."""

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
        """The address that RoCE v2 goes by: the first of IPv4, else the first of IPv6 that is not of the link alone."""
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


def devices(sysfs: Sysfs) -> list[Device]:
    return [_device(sysfs, name) for name in sysfs.entries(FOLDER)]


def ports(sysfs: Sysfs) -> list[Port]:
    """All ports; one that is down counts as well: a node that has it is meant to use it."""
    return [port for device in devices(sysfs) for port in device.ports]


def without_driver(sysfs: Sysfs) -> list[str]:
    """The addresses of InfiniBand controllers on PCI that no RDMA driver uses."""
    kinds = {address: sysfs.number(f"{DEVICES}/{address}/class") for address in sysfs.entries(DEVICES)}
    controllers = [address for address, kind in kinds.items() if kind is not None and kind >> 8 == CONTROLLER]
    return [address for address in controllers if not sysfs.entries(f"{DEVICES}/{address}/infiniband")]


def pkeys(sysfs: Sysfs, port: Port) -> tuple[str, ...]:
    """The P_Keys of a port in the order of its table: applications take that at index 0 unless they ask for another."""
    table = f"{port.folder}/pkeys"
    keys = (sysfs.read(f"{table}/{index}") for index in sysfs.entries(table)[:MOST_PKEYS])
    return tuple(key for key in keys if key and key != NO_PKEY)


def place(sysfs: Sysfs, device: str) -> tuple[int | None, frozenset[int]]:
    """The NUMA node of a device, and the CPUs beside it; None and no CPU where the host tells none."""
    node = sysfs.number(f"{FOLDER}/{device}/device/numa_node")
    cpus = frozenset(cpu_list(sysfs.read(f"{FOLDER}/{device}/device/local_cpulist") or ""))
    return (node if node is not None and node >= 0 else None), cpus


def _device(sysfs: Sysfs, name: str) -> Device:
    folder = f"{FOLDER}/{name}"
    device_path = sysfs.way(f"{folder}/device")
    return Device(
        name=name,
        firmware=sysfs.read(f"{folder}/fw_ver"),
        board=sysfs.read(f"{folder}/board_id"),
        model=sysfs.read(f"{folder}/hca_type"),
        pci_address=device_path[-1] if device_path and is_address(device_path[-1]) else None,
        interfaces=tuple(sysfs.entries(f"{folder}/device/net")),
        ports=tuple(_port(sysfs, name, number) for number in sysfs.entries(f"{folder}/ports") if number.isdigit()),
    )


def _port(sysfs: Sysfs, device: str, number: str) -> Port:
    folder = f"{FOLDER}/{device}/ports/{number}"
    rate = _RATE.match(sysfs.read(f"{folder}/rate") or "")
    link_layer = sysfs.read(f"{folder}/link_layer")
    return Port(
        device=device,
        number=int(number),
        state=_word(sysfs.read(f"{folder}/state")),
        physical_state=_word(sysfs.read(f"{folder}/phys_state")),
        link_layer=link_layer,
        rate_bits_per_second=float(rate[1]) * 1e9 if rate else None,
        gids=tuple(_gids(sysfs, folder, link_layer)),
    )


def _word(state: str | None) -> str | None:
    """``ACTIVE`` of ``4: ACTIVE``."""
    return state.partition(":")[2].strip() or state if state else None


def _gids(sysfs: Sysfs, folder: str, link_layer: str | None) -> list[Gid]:
    """The addresses in the port's table; its other places hold zeros, or the prefix of a link without an address."""
    gids = []
    for index in sysfs.entries(f"{folder}/gids")[:MOST_GIDS]:
        value = sysfs.read(f"{folder}/gids/{index}")
        if not index.isdigit() or not value or _NO_GID.fullmatch(value):
            continue
        kind = sysfs.read(f"{folder}/gid_attrs/types/{index}") or ""
        if kind != ROCE_V2:  # the kernel has one name, IB/RoCE v1, for two things
            kind = "RoCE v1" if link_layer == ETHERNET else "IB"
        gids.append(Gid(int(index), value, kind))
    return gids


def counters(sysfs: Sysfs, ports: Sequence[Port]) -> dict[str, dict[str, int]]:
    """By port the counters that its driver has, of those that tell of errors and congestion."""
    values_by_port = {}
    for port in ports:
        read = {name: sysfs.number(f"{port.folder}/counters/{name}") for name in _PORT_COUNTERS}
        read.update({name: sysfs.number(f"{port.folder}/hw_counters/{name}") for name in _HARDWARE_COUNTERS})
        values = {name: value for name, value in read.items() if value is not None}
        if values:
            values_by_port[port.name] = values
    return values_by_port


@dataclass(frozen=True)
class Moved:
    """What a port's counters did while the gang worked."""

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
    """What changed, for each port that was read both times."""
    changes = {}
    for port in before.keys() & after.keys():
        names = before[port].keys() & after[port].keys()
        change = {name: after[port][name] - before[port][name] for name in sorted(names)}
        full = tuple(n for n in change if not change[n] and before[port][n] == LINK_ERRORS.get(n))
        # A counter that fell was reset meanwhile.
        changes[port] = Moved({n: c for n, c in change.items() if c >= 0 and n not in full}, full)
    return dict(sorted(changes.items()))


def closed_devices(sysfs: Sysfs, dev: Path = Path("/dev/infiniband")) -> list[str]:
    """The RDMA devices whose file is not there, or may not be opened for reading and writing."""
    names = {name: sysfs.read(f"{VERBS}/{name}/ibdev") for name in sysfs.entries(VERBS)}
    return sorted(device for name, device in names.items() if device and not os.access(dev / name, os.R_OK | os.W_OK))


def locked_limit(status: Path = Path("/proc/self/status")) -> int | None:
    """How many bytes this process may lock; None where it may lock all there is."""
    limit, lines = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], []
    with suppress(OSError):
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return None if limit == resource.RLIM_INFINITY or int(effective, 16) & _IPC_LOCK else limit


def describe_ports(ports: Sequence[Port]) -> str:
    """All ports in one line that is the same on nodes that are alike: ``8 x InfiniBand ACTIVE 400 Gb/s``."""
    return grouped(
        f"{port.link_layer or 'unknown'} {port.state or 'unknown'}"
        + (f" {port.rate_bits_per_second / 1e9:g} Gb/s" if port.is_active and port.rate_bits_per_second else "")
        for port in ports
    )


def describe_firmware(rdma_devices: Sequence[Device]) -> str:
    """Boards with their firmware, as ``describe_ports``."""
    return grouped(f"{d.board or d.model or 'unknown'} {d.firmware or 'unknown'}" for d in rdma_devices)


def describe_gids(ports: Sequence[Port]) -> str:
    """What the active ports can be addressed by, with the index for RoCE v2."""
    return grouped(
        "+".join(sorted({gid.type for gid in port.gids})) + (f" (v2 at {port.roce_v2.index})" if port.roce_v2 else "")
        for port in ports
        if port.is_active and port.gids
    )


def describe_pkeys(tables: Iterable[Sequence[str]]) -> str:
    """The tables of P_Keys of several ports, as ``describe_ports``."""
    return grouped(" ".join(table) or "empty" for table in tables)


def grouped(texts: Iterable[str]) -> str:
    """``2 x this, 1 x that``, whatever order they come in."""
    return ", ".join(f"{count} x {text}" for text, count in sorted(Counter(texts).items()))
