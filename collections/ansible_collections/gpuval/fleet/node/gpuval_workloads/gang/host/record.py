"""The host checks as a record has them: figures with their units, and what a reader wants to see, of bounded size."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from ...common.result import WorkloadResult, link_scope
from ..members import Gang
from . import mesh, pcie, rdma
from .local import Local

#: Of more peers only those are shown that have something odd.
MOST_PEERS, MOST_DEVICES = 32, 64


def add_own(result: WorkloadResult, local: Local, moved: Mapping[str, rdma.Moved]) -> None:
    """The figures of this host alone."""
    add = result.add_metric
    if "rdma" in local.looked:
        active = [port for port in local.ports if port.is_active]
        add("rdma_devices_count", len(local.devices), "count")
        add("rdma_closed_devices_count", len(local.closed), "count")
        add("rdma_ports_count", len(local.ports), "count")
        add("rdma_active_ports_count", len(active), "count")
        for link in active:
            if link.rate_bits_per_second:
                add("rdma_rate_bytes_per_second", link.rate_bits_per_second / 8, "bytes/s", link_scope(link.name))
    if moved or ("counters" in local.looked and not local.ports):
        add("rdma_link_error_count", sum(change.link_errors for change in moved.values()), "count")
        add("rdma_retransmission_count", sum(change.retransmissions for change in moved.values()), "count")
        add("rdma_full_counters_count", sum(len(change.full) for change in moved.values()), "count")
    for port, change in moved.items():
        add("rdma_link_error_count", change.link_errors, "count", link_scope(port))
        add("rdma_retransmission_count", change.retransmissions, "count", link_scope(port))
    if "pcie" in local.looked:
        add("gang_nics_count", len(local.links), "count")
        add("gang_nics_slow_count", sum(link.is_slow for link in local.links.values()), "count")
    for name, nic in local.links.items():
        add("gang_nic_pcie_bytes_per_second", nic.now.bytes_per_second, "bytes/s", link_scope(name))
        add("gang_nic_pcie_ratio", nic.ratio, "ratio", link_scope(name))
    if local.acs and not local.acs.unknown:
        add("gang_acs_redirecting_count", len(local.acs.redirecting), "count")
    if local.mtu_bytes:
        add("gang_mtu_bytes", local.mtu_bytes, "bytes")


def add_others(result: WorkloadResult, gang: Gang, local: Local, answers: Mapping[int, mesh.PeerAnswer]) -> None:
    """The figures of this host's way to the others."""
    add = result.add_metric
    timely = {index: answer for index, answer in answers.items() if answer.state != mesh.LATE}
    reached = {index: answer for index, answer in timely.items() if answer.state == mesh.OK}
    add("gang_peers_count", len(gang.members) - 1, "count")
    add("gang_peers_asked_count", len(timely), "count")
    add("gang_peers_unreached_count", len(timely) - len(reached), "count")
    add("gang_peers_by_other_interface_count", len(by_other_interface(local)), "count")
    add("gang_peers_by_gateway_count", sum(route.gateway is not None for route in local.ways.values()), "count")
    trips = [a.round_trip_seconds for a in reached.values() if a.round_trip_seconds is not None]
    if trips:
        add("gang_peers_round_trip_p50_seconds", median(trips), "seconds")
        add("gang_peers_round_trip_max_seconds", max(trips), "seconds")
    sizes = [a.path_mtu_bytes for a in reached.values() if a.path_mtu_bytes]
    if sizes:
        add("gang_path_mtu_bytes", min(sizes), "bytes")
        add("gang_peers_narrow_count", len(narrow(gang, local, answers)), "count")
    skew = clock_skew(answers)
    if skew:
        add("gang_clock_skew_seconds", abs(skew[0]), "seconds")
        add("gang_clock_skew_error_seconds", skew[1], "seconds")


def by_other_interface(local: Local) -> list[str]:
    """The members that this host sends to by another interface than to most."""
    return [name for name, route in local.ways.items() if route.interface not in (None, local.interface)]


def narrow(gang: Gang, local: Local, answers: Mapping[int, mesh.PeerAnswer]) -> dict[str, tuple[int, int]]:
    """The members that packets of the interface's size do not reach: the size that does, and the interface's."""
    odd = {}
    for index, answer in answers.items():
        node = gang.members[index].node
        route = local.ways.get(node)
        own_mtu = min(route.mtu_bytes, mesh.LARGEST) if route and route.mtu_bytes else None
        if answer.path_mtu_bytes and own_mtu and answer.path_mtu_bytes < own_mtu:
            odd[node] = (answer.path_mtu_bytes, own_mtu)
    return odd


def clock_skew(answers: Mapping[int, mesh.PeerAnswer]) -> tuple[float, float] | None:
    """By how much this host's clock is ahead of the members' median, and how wrong that can be, in seconds.

    Of three members and more, the one whose clock is off is so; of two, it cannot be decided.
    """
    timed = [
        (answer.clock_offset_seconds, answer.clock_error_seconds)
        for answer in answers.values()
        if answer.clock_offset_seconds is not None and answer.clock_error_seconds is not None
    ]
    if not timed:
        return None
    offsets = [offset for offset, _error in timed]
    middle = offsets[0] if len(timed) == 1 else median([0.0, *offsets])
    return -middle, median([error for _offset, error in timed])


def described(gang: Gang, local: Local, answers: Mapping[int, mesh.PeerAnswer]) -> dict[str, Any]:
    """What is shown: this host's devices, and its peers."""
    odd = [index for index, answer in answers.items() if answer.state != mesh.OK or answer.ssh not in (None, mesh.OK)]
    indices = list(range(len(gang.members))) if len(gang.members) <= MOST_PEERS else odd[:MOST_PEERS]
    return {
        "rdma": [_device(device) for device in local.devices[:MOST_DEVICES]],
        "nics": [
            {"name": name, "pci_address": link.address, "now": str(link.now), "most": str(link.most)}
            for name, link in sorted(local.links.items())[:MOST_DEVICES]
        ],
        "closed": local.closed[:MOST_DEVICES],
        "locked_limit_bytes": local.locked_limit_bytes,
        "acs": _acs(local.acs),
        "interface": local.interface,
        "peers": {gang.members[i].node: _peer(gang, local, answers, i) for i in indices if i != gang.index},
        "unknown": {**local.unknown, **_unreadable(local.acs)},
    }


def _peer(gang: Gang, local: Local, answers: Mapping[int, mesh.PeerAnswer], index: int) -> dict[str, Any]:
    answer = vars(answers.get(index, mesh.PeerAnswer()))
    route = local.ways.get(gang.members[index].node)
    return {
        key: value for key, value in {**answer, **(vars(route) if route else {})}.items() if value not in (None, "")
    }


def _device(device: rdma.Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "firmware_version": device.firmware,
        "board_id": device.board,
        "pci_address": device.pci_address,
        "interfaces": list(device.interfaces[:4]),
        "ports": [
            {
                "port": port.number,
                "state": port.state,
                "physical_state": port.physical_state,
                "link_layer": port.link_layer,
                "gid_types": sorted({gid.type for gid in port.gids}),
                "roce_v2_index": port.roce_v2.index if port.roce_v2 else None,
            }
            for port in device.ports[:4]
        ],
    }


def _acs(acs: pcie.Acs | None) -> Any:
    if acs is None:
        return "unknown"
    return {name: list(getattr(acs, name)[:32]) for name in ("looked_at", "redirecting", "unknown")}


def _unreadable(acs: pcie.Acs | None) -> dict[str, str]:
    if not acs or not acs.unknown:
        return {}
    return {"acs": f"the configuration of {len(acs.unknown)} bridges can be read with CAP_SYS_ADMIN only"}
