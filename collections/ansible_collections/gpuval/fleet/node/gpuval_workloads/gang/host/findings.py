"""What is wrong with a host, or between it and the others, as sentences for the operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..members import Gang
from . import mesh, rdma
from .local import Local
from .record import by_other_interface, clock_skew, narrow
from .routes import is_ip

CLOCK_SECONDS = 1.0
#: What is compared between members, in the order of what it explains.
ALIKE = ("rdma_ports", "gang_mtu", "rdma_gids", "gang_nic_pcie", "rdma_firmware")
MOST_NAMES, MOST_IN_A_SENTENCE, MOST_LETTERS = 4, 3, 240


def of_ports(found: Local) -> list[str]:
    """Ports that have a link and are not used, and hosts where none is."""
    if not found.ports:
        return []
    waiting = [p for p in found.ports if p.physical_state == rdma.LINK_UP and p.state in ("INIT", "ARMED")]
    if waiting:
        names = _names(f"{port.name} is {port.state}" for port in waiting)
        return [f"{names}: the link is up, but the port is not active: check that a subnet manager runs"]
    if not any(port.is_active for port in found.ports):
        names = _names(f"{p.name} is {p.state} ({p.physical_state})" for p in found.ports)
        return [f"no RDMA port is active: {names}"]
    ethernet = [port for port in found.ports if port.is_active and port.link_layer == rdma.ETHERNET]
    if ethernet and not any(port.roce_v2 for port in ethernet):
        names = _names(port.name for port in ethernet)
        return [f"{names}: no address for RoCE v2; give the network interface behind it an IP address"]
    return []


def of_access(found: Local, expects_rdma: bool) -> list[str]:
    """What keeps the ranks from the devices; missing devices are reported where they are required."""
    if not found.devices:
        if expects_rdma and "rdma" in found.looked:
            return ["no RDMA device is seen here: see whether its driver is loaded, and whether a container has it"]
        return []
    used = {port.device for port in found.ports if port.is_active} or {device.name for device in found.devices}
    odd = []
    if used <= set(found.closed):
        names = _names(sorted(used))
        odd.append(f"/dev/infiniband has no file here that opens {names}: give the devices to the container")
    limit = found.locked_limit_bytes
    if limit is not None and limit < rdma.LOCKED_BYTES:
        odd.append(f"{limit} bytes of memory may be locked, RDMA needs more: set the limit memlock to unlimited")
    return odd


def of_pcie(found: Local) -> list[str]:
    slow = {name: link for name, link in found.links.items() if link.is_slow}
    return [
        f"{name} ({link.address}) runs at {link.now} on PCIe, it and its slot can {link.most}"
        for name, link in sorted(slow.items(), key=lambda item: item[1].ratio)
    ]


def of_acs(found: Local) -> list[str]:
    if not found.acs or not found.acs.redirecting:
        return []
    names = _names(found.acs.redirecting)
    return [f"access control (ACS) of {names} sends data between NICs and GPUs up to the CPU: GPUDirect RDMA is slow"]


def of_members(gang: Gang, fingerprints: Sequence[Mapping[str, str]]) -> list[str]:
    """What is not the same on all that tell it; where most agree, who differs."""
    found: list[str] = []
    silent: dict[str, list[str]] = {}
    known = {name for each in fingerprints for name in each}
    for what in (name for name in ALIKE if name in known):
        values = {m.node: each[what] for m, each in zip(gang.members, fingerprints) if what in each}
        for member in gang.members[: len(fingerprints)]:
            if member.node not in values:
                silent.setdefault(member.node, []).append(what)
        common, count = Counter(values.values()).most_common(1)[0]
        if count == len(values):
            continue
        most = 2 * count > len(values)
        names = _names(f"{node} has {value}" for node, value in values.items() if not most or value != common)
        found.append(f"{what}: {names}" + (f", the other {count} have {common}" if most else ""))
    return found + [f"{node} did not report {', '.join(what)}" for node, what in list(silent.items())[:MOST_NAMES]]


def of_peers(gang: Gang, answers: Mapping[int, mesh.PeerAnswer]) -> list[str]:
    """Who is not reached, each with what was in the way."""
    asked = {index: answer for index, answer in answers.items() if answer.state != mesh.LATE}
    lost = {index: answer.state for index, answer in asked.items() if answer.state != mesh.OK}
    closed = {index: answer.ssh for index, answer in asked.items() if answer.ssh not in (None, mesh.OK)}
    found = []
    if lost:
        names = _names(f"{gang.members[i].node} ({gang.members[i].address}): {why}" for i, why in lost.items())
        found.append(f"{gang.own.node} reaches {len(asked) - len(lost)} of {len(asked)} others by TCP; not {names}")
    if closed:
        names = _names(f"{gang.members[i].node}: {why}" for i, why in closed.items())
        found.append(f"port {gang.ssh_port}, for DeepSpeed's launcher, cannot be reached of {names}")
    return found


def of_paths(gang: Gang, found: Local, answers: Mapping[int, mesh.PeerAnswer]) -> list[str]:
    tight = narrow(gang, found, answers)
    names = _names(f"{node} ({size} of {own} bytes)" for node, (size, own) in tight.items())
    odd = [f"packets of the interface's MTU do not get through to {names}"] if tight else []
    none = {node: way.problem for node, way in found.ways.items() if way.problem}
    if none:
        odd.append("no route to " + _names(f"{node}: {why}" for node, why in none.items()))
    other = by_other_interface(found)
    if other:
        names = _names(f"{node} by {found.ways[node].interface}" for node in other)
        odd.append(f"most members are reached by {found.interface}, {names}")
    return odd


def of_routes(gang: Gang, found: Local) -> list[str]:
    """Members behind a gateway, where others are not; and those who see this host at another address."""
    odd = []
    behind = [node for node, way in found.ways.items() if way.gateway]
    if 0 < len(behind) < len(found.ways):
        odd.append(f"{_names(behind)} can be reached through a gateway only, unlike the others")
    own = gang.own.address
    if is_ip(own):
        other = {n: w.source for n, w in found.ways.items() if w.source not in (None, own) and not w.is_local}
        if other:
            names = _names(f"{source} to {node}" for node, source in other.items())
            odd.append(f"{gang.own.node} sends from another address than {own}: {names}")
    return odd


def of_clock(gang: Gang, answers: Mapping[int, mesh.PeerAnswer]) -> list[str]:
    skew = clock_skew(answers)
    if not skew or abs(skew[0]) - skew[1] <= CLOCK_SECONDS:
        return []
    than = "the other member's" if len(gang.members) == 2 else "the members' median"
    way = "ahead of" if skew[0] > 0 else "behind"
    return [f"the clock of {gang.own.node} is {abs(skew[0]):.1f} s {way} {than}: logs of the nodes do not compare"]


def of_counters(moved: Mapping[str, rdma.Moved]) -> list[str]:
    """Errors and packets sent again while the gang worked."""
    errors = {port: one.words(tuple(rdma.LINK_ERRORS)) for port, one in moved.items()}
    again = {port: one.words(rdma.RETRANSMISSIONS) for port, one in moved.items()}
    found = []
    if any(errors.values()):
        names = _names(f"{port} {words}" for port, words in errors.items() if words)
        found.append(f"errors on the link while the gang worked: {names}; see its cable and transceiver")
    if any(again.values()):
        names = _names(f"{port} {words}" for port, words in again.items() if words)
        found.append(f"packets were lost or late while the gang worked: {names}")
    return found


def of_unknown(found: Local) -> list[str]:
    late = [name for name, why in found.unknown.items() if "within" in why]
    odd = []
    if "routes" in late:
        late.remove("routes")
        odd.append("the routes to the others were not found in time: check that their names resolve here")
    if late:
        odd.append(f"this host did not report {_names(late)} in time: check whether a driver hangs (dmesg)")
    return odd


def sentence(problems: Sequence[str]) -> str:
    """The worst of them in one sentence; empty without any."""
    if not problems:
        return ""
    shown = [p if len(p) <= MOST_LETTERS else f"{p[: MOST_LETTERS - 3]}..." for p in problems[:MOST_IN_A_SENTENCE]]
    more = len(problems) - len(shown)
    return "host checks: " + "; ".join(shown) + (f"; {more} more in host_checks" if more else "")


def _names(texts) -> str:
    texts = list(texts)
    return ", ".join(texts[:MOST_NAMES]) + (f" and {len(texts) - MOST_NAMES} more" if len(texts) > MOST_NAMES else "")
