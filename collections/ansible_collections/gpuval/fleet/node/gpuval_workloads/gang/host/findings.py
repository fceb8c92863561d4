"""Findings of a gang's host checks: sentences for the operator, figures, and entries of the record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from gpuval_node.hardware import nics
from gpuval_node.network.packets import LARGEST
from gpuval_node.network.routes import is_ip

from ...common.result import WorkloadResult, link_scope
from ..members import Gang
from . import mesh, rdma
from .local import Local

CLOCK_SECONDS = 1.0
#: Names of fingerprints that are compared between members, in the order in which differences are reported.
ALIKE = ("rdma_ports", "gang_mtu", "rdma_gids", "gang_nic_pcie", "rdma_firmware")
MOST_NAMES, MOST_IN_A_SENTENCE, MOST_LETTERS = 4, 3, 240


def of_ports(local: Local) -> list[str]:
    """Return problems of this host's RDMA ports: a link without an active port, no active port, no RoCE v2 address."""
    if not local.ports:
        return []
    waiting = [p for p in local.ports if p.physical_state == nics.LINK_UP and p.state in ("INIT", "ARMED")]
    if waiting:
        names = _names(f"{port.name} is {port.state}" for port in waiting)
        return [f"{names}: the link is up, but the port is not active: check that a subnet manager runs"]
    if not any(port.is_active for port in local.ports):
        names = _names(f"{p.name} is {p.state} ({p.physical_state})" for p in local.ports)
        return [f"no RDMA port is active: {names}"]
    ethernet = [port for port in local.ports if port.is_active and port.link_layer == nics.ETHERNET]
    if ethernet and not any(port.roce_v2 for port in ethernet):
        names = _names(port.name for port in ethernet)
        return [f"{names}: no address for RoCE v2; give the network interface behind it an IP address"]
    return []


def of_access(local: Local, expects_rdma: bool) -> list[str]:
    """Return what keeps ranks on this host from RDMA devices; a missing device counts if the gang expects RDMA."""
    if not local.devices:
        if expects_rdma and "rdma" in local.looked:
            return ["no RDMA device is seen here: see whether its driver is loaded, and whether a container has it"]
        return []
    used = {port.device for port in local.ports if port.is_active} or {device.name for device in local.devices}
    odd = []
    if used <= set(local.closed):
        names = _names(sorted(used))
        odd.append(f"/dev/infiniband has no file here that opens {names}: give the devices to the container")
    limit = local.locked_limit_bytes
    if limit is not None and limit < rdma.LOCKED_BYTES:
        odd.append(f"{limit} bytes of memory may be locked, RDMA needs more: set the limit memlock to unlimited")
    return odd


def of_pcie(local: Local) -> list[str]:
    slow = {name: link for name, link in local.links.items() if link.is_slow}
    return [
        f"{name} ({link.address}) runs at {link.now} on PCIe, it and its slot can {link.most}"
        for name, link in sorted(slow.items(), key=lambda item: item[1].ratio)
    ]


def of_acs(local: Local) -> list[str]:
    if not local.acs or not local.acs.redirecting:
        return []
    names = _names(local.acs.redirecting)
    return [f"access control (ACS) of {names} sends data between NICs and GPUs up to the CPU: GPUDirect RDMA is slow"]


def of_members(gang: Gang, fingerprints: Sequence[Mapping[str, str]]) -> list[str]:
    """Return sentences on fingerprints that differ between members, from the ``{fingerprint: text}`` of each member."""
    differences: list[str] = []
    silent: dict[str, list[str]] = {}
    names_reported = {name for values_of_node in fingerprints for name in values_of_node}
    for fingerprint in (name for name in ALIKE if name in names_reported):
        values = {
            m.node: values_of_node[fingerprint]
            for m, values_of_node in zip(gang.members, fingerprints)
            if fingerprint in values_of_node
        }
        for member in gang.members[: len(fingerprints)]:
            if member.node not in values:
                silent.setdefault(member.node, []).append(fingerprint)
        common, count = Counter(values.values()).most_common(1)[0]
        if count == len(values):
            continue
        most = 2 * count > len(values)
        names = _names(f"{node} has {value}" for node, value in values.items() if not most or value != common)
        differences.append(f"{fingerprint}: {names}" + (f", the other {count} have {common}" if most else ""))
    return differences + [
        f"{node} did not report {', '.join(fingerprint)}" for node, fingerprint in list(silent.items())[:MOST_NAMES]
    ]


def of_peers(gang: Gang, answers: Mapping[int, mesh.PeerAnswer]) -> list[str]:
    """Return sentences on the members that this host cannot connect to. ``answers``: measurements by member index."""
    timely = {index: answer for index, answer in answers.items() if answer.state != mesh.LATE}
    lost = {index: answer.state for index, answer in timely.items() if answer.state != mesh.OK}
    closed = {index: answer.ssh for index, answer in timely.items() if answer.ssh not in (None, mesh.OK)}
    problems = []
    if lost:
        names = _names(f"{gang.members[i].node} ({gang.members[i].address}): {why}" for i, why in lost.items())
        problems.append(
            f"{gang.own.node} reaches {len(timely) - len(lost)} of {len(timely)} others by TCP; not {names}"
        )
    if closed:
        names = _names(f"{gang.members[i].node}: {why}" for i, why in closed.items())
        problems.append(f"port {gang.ssh_port}, for DeepSpeed's launcher, cannot be reached of {names}")
    return problems


def of_paths(gang: Gang, local: Local, answers: Mapping[int, mesh.PeerAnswer]) -> list[str]:
    tight = narrow(gang, local, answers)
    names = _names(f"{node} ({size} of {own_mtu} bytes)" for node, (size, own_mtu) in tight.items())
    odd = [f"packets of the interface's MTU do not get through to {names}"] if tight else []
    unroutable = {node: route.problem for node, route in local.ways.items() if route.problem}
    if unroutable:
        odd.append("no route to " + _names(f"{node}: {why}" for node, why in unroutable.items()))
    nodes_elsewhere = by_other_interface(local)
    if nodes_elsewhere:
        names = _names(f"{node} by {local.ways[node].interface}" for node in nodes_elsewhere)
        odd.append(f"most members are reached by {local.interface}, {names}")
    return odd


def of_routes(gang: Gang, local: Local) -> list[str]:
    """Return sentences on members behind a gateway if others are not, and on other source addresses of this host."""
    odd = []
    behind = [node for node, route in local.ways.items() if route.gateway]
    if 0 < len(behind) < len(local.ways):
        odd.append(f"{_names(behind)} can be reached through a gateway only, unlike the others")
    own_address = gang.own.address
    if is_ip(own_address):
        source_by_node = {
            n: w.source for n, w in local.ways.items() if w.source not in (None, own_address) and not w.is_local
        }
        if source_by_node:
            names = _names(f"{source} to {node}" for node, source in source_by_node.items())
            odd.append(f"{gang.own.node} sends from another address than {own_address}: {names}")
    return odd


def of_clock(gang: Gang, answers: Mapping[int, mesh.PeerAnswer]) -> list[str]:
    skew = clock_skew(answers)
    if not skew or abs(skew[0]) - skew[1] <= CLOCK_SECONDS:
        return []
    than = "the other member's" if len(gang.members) == 2 else "the members' median"
    direction = "ahead of" if skew[0] > 0 else "behind"
    return [
        f"the clock of {gang.own.node} is {abs(skew[0]):.1f} s {direction} {than}: logs of the nodes do not compare"
    ]


def of_counters(moved: Mapping[str, rdma.Moved]) -> list[str]:
    """Return sentences on link errors and retransmissions of RDMA ports during the work. ``moved``: changes by port."""
    errors = {port: change.words(tuple(rdma.LINK_ERRORS)) for port, change in moved.items()}
    retransmissions = {port: change.words(rdma.RETRANSMISSIONS) for port, change in moved.items()}
    problems = []
    if any(errors.values()):
        names = _names(f"{port} {words}" for port, words in errors.items() if words)
        problems.append(f"errors on the link while the gang worked: {names}; see its cable and transceiver")
    if any(retransmissions.values()):
        names = _names(f"{port} {words}" for port, words in retransmissions.items() if words)
        problems.append(f"packets were lost or late while the gang worked: {names}")
    return problems


def of_unknown(local: Local) -> list[str]:
    late = [name for name, why in local.unknown.items() if "within" in why]
    odd = []
    if "routes" in late:
        late.remove("routes")
        odd.append("the routes to the others were not found in time: check that their names resolve here")
    if late:
        odd.append(f"this host did not report {_names(late)} in time: check whether a driver hangs (dmesg)")
    return odd


def sentence(problems: Sequence[str]) -> str:
    """Return the worst problems in one sentence; empty without problems."""
    if not problems:
        return ""
    sentences = [p if len(p) <= MOST_LETTERS else f"{p[: MOST_LETTERS - 3]}..." for p in problems[:MOST_IN_A_SENTENCE]]
    more = len(problems) - len(sentences)
    return "host checks: " + "; ".join(sentences) + (f"; {more} more in host_checks" if more else "")


def _names(texts) -> str:
    texts = list(texts)
    return ", ".join(texts[:MOST_NAMES]) + (f" and {len(texts) - MOST_NAMES} more" if len(texts) > MOST_NAMES else "")


#: Maximum numbers of peers and devices in a record; of more peers, only those with problems are listed.
MOST_PEERS, MOST_DEVICES = 32, 64


def add_own(result: WorkloadResult, local: Local, moved: Mapping[str, rdma.Moved]) -> None:
    """Add figures of this host's RDMA ports and PCIe links to a result. ``moved``: counters' changes by port."""
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
    """Add figures of this host's paths to other members to a result. ``answers``: measurements by member index."""
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
    """Return the names of members to which this host sends by another interface than to most members."""
    return [name for name, route in local.ways.items() if route.interface not in (None, local.interface)]


def narrow(gang: Gang, local: Local, answers: Mapping[int, mesh.PeerAnswer]) -> dict[str, tuple[int, int]]:
    """Return ``{node: (path MTU, interface's MTU)}`` in bytes for members that packets of the latter do not reach."""
    odd = {}
    for index, answer in answers.items():
        node = gang.members[index].node
        route = local.ways.get(node)
        own_mtu = min(route.mtu_bytes, LARGEST) if route and route.mtu_bytes else None
        if answer.path_mtu_bytes and own_mtu and answer.path_mtu_bytes < own_mtu:
            odd[node] = (answer.path_mtu_bytes, own_mtu)
    return odd


def clock_skew(answers: Mapping[int, mesh.PeerAnswer]) -> tuple[float, float] | None:
    """Return by how many seconds this host's clock is ahead of the members' median, and the uncertainty in seconds.
    With three or more members this finds the wrong clock; with two, either may be wrong."""
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
    """Return this host's RDMA devices, NICs and paths to peers for the stage's record."""
    odd = [index for index, answer in answers.items() if answer.state != mesh.OK or answer.ssh not in (None, mesh.OK)]
    indices = list(range(len(gang.members))) if len(gang.members) <= MOST_PEERS else odd[:MOST_PEERS]
    bridges = len(local.acs.unknown) if local.acs else 0
    needed = f"the configuration of {bridges} bridges can be read with CAP_SYS_ADMIN only"
    unreadable = {"acs": needed} if bridges else {}
    return {
        "rdma": [_device(device) for device in local.devices[:MOST_DEVICES]],
        "nics": [
            {"name": name, "pci_address": link.address, "now": str(link.now), "most": str(link.most)}
            for name, link in sorted(local.links.items())[:MOST_DEVICES]
        ],
        "closed": local.closed[:MOST_DEVICES],
        "locked_limit_bytes": local.locked_limit_bytes,
        "acs": {name: list(names[:32]) for name, names in vars(local.acs).items()} if local.acs else "unknown",
        "interface": local.interface,
        "peers": {gang.members[i].node: _peer(gang, local, answers, i) for i in indices if i != gang.index},
        "unknown": {**local.unknown, **unreadable},
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
