"""Findings on a fleet's network from all nodes' answers: the node, link or service at fault, and a remedy. Pure."""

import contextlib
import ipaddress
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...module_utils.network.peers import LinkAnswer
from ..core.text import some_of
from .answers import Answers
from .blame import ImplicatedNode, Pair, blame, both_ways

#: A link is slow if its time exceeds the usual time by this factor and by these seconds: in a rack times are near zero.
SLOW_FACTOR = 3.0
SLOW_SECONDS = 0.002
#: A link is slow if its rate is below the usual rate by this factor: many nodes receive and share the network.
SLOW_RATE_FACTOR = 4.0
#: Minimum number of links between two zones; with fewer, a link is compared with all links.
MIN_LINKS = 4
#: If this share of all links failed, the cause is the network and not a node.
NEARLY_ALL = 0.9
LISTED = 6
#: Message and remedy of a finding about a node, by the side on which its pairs fail: as target (`to`), source, or both.
Words = Mapping[str, tuple[str, str]]
SIDES = ("to", "from", "both")
REACH: Words = {
    "to": ("{bad} of {tried} node(s) do not reach it", "Check its firewall, address and cable."),
    "from": ("it does not reach {bad} of {tried} node(s)", "Check its routes and the outgoing rules of its firewall."),
    "both": ("cut off from the other nodes: {bad} of {tried} tries fail", "Check its cable, port, address and routes."),
}
PORT: Words = {
    "to": ("{bad} of {tried} node(s) cannot connect ({worst})", "Open the port in its firewall."),
    "from": ("it cannot connect to {bad} of {tried} ({worst})", "Check the outgoing rules of its firewall."),
    "both": ("{bad} of {tried} tries fail ({worst})", "Check its firewall."),
}
SAME_MTU = "Set the same MTU on all interfaces and switch ports of the path."
MTU: Words = dict.fromkeys(SIDES, ("{worst} ({bad} of {tried} links)", SAME_MTU))
SLOW: Words = dict.fromkeys(
    SIDES, ("slow with {bad} of {tried}, {worst}", "Check its cable, port, errors (ethtool -S) and load.")
)
#: Figures of links that are compared: kind of finding, name in messages, field of LinkAnswer, whether more is better.
MEASURES = (
    ("latency", "a TCP handshake", "tcp_minimum_seconds", False),
    ("large_packets", "a round trip of full packets", "large_packet_seconds", False),
    ("bandwidth", "receiving", "bytes_per_second", True),
)
#: Interfaces that are not compared: those of container engines have the same name and address on every machine.
NOT_COMPARED = re.compile(r"lo|docker|br-|veth|cni|flannel|cali|virbr|podman|tunl|kube|ovs|tap|tun|vnet")


@dataclass(frozen=True)
class Finding:
    """A finding about the network of nodes. Level `fail`: certainly wrong, or against the settings; `warn`: unusual.

    `only`: those of `nodes` that fail because of the finding; None: all. A report on another node fails the reporter.
    """

    level: str
    kind: str
    nodes: tuple[str, ...]
    message: str
    remedy: str
    only: tuple[str, ...] | None = None

    @property
    def failed(self) -> tuple[str, ...]:
        return self.nodes if self.only is None else self.only

    def to_json(self) -> dict[str, object]:
        return {"level": self.level, "kind": self.kind, "nodes": list(self.nodes), "message": self.message,
                "remedy": self.remedy}  # fmt: skip


@dataclass(frozen=True)
class Fleet:
    """All evidence of one measurement of a fleet's network. `answers`, `zones`: by node; `ports`: that must be open."""

    answers: Mapping[str, Answers]
    zones: Mapping[str, str]
    ports: tuple[int, ...] = ()
    owners: Mapping[str, str] = field(default_factory=dict)  # node by its address in the inventory

    def pairs(self) -> dict[Pair, LinkAnswer]:
        return {
            (name, other): asked
            for name, answers in self.answers.items()
            for other, asked in answers.peers.items()
            if asked.state != "not_asked"
        }


def find(fleet: Fleet) -> list[Finding]:
    """Return all findings about a fleet's network, failures first."""
    pairs = fleet.pairs()
    findings = [
        *_silent(fleet, pairs),
        *_reach(fleet, pairs),
        *_sizes(pairs),
        *_ports(fleet, pairs),
        *_slow(fleet, pairs),
        *_services(fleet),
        *_same_address(fleet),
        *_unlike(fleet),
    ]
    return sorted(findings, key=lambda finding: finding.level != "fail")


def _silent(fleet: Fleet, pairs: Mapping[Pair, LinkAnswer]) -> Iterator[Finding]:
    for name, answers in fleet.answers.items():
        if answers.is_rejected:
            message = f"{name}: its answer is rejected: {answers.reason}"
            yield Finding("fail", "answer", (name,), message, "Check what the node runs instead of gpuval's code.")
        elif answers.reason:
            tried = [asked.reached for (_asker, other), asked in pairs.items() if other == name]
            reached = f"{sum(tried)} of {len(tried)} node(s) reach it" if tried else "no other node could test it"
            remedy = "Check power, cable and address of the machine."
            if any(tried):
                remedy = "The machine is up: check SSH, the user and the route from the controller."
            message = f"{name} measured nothing: {answers.reason}; {reached}"
            yield Finding("fail", "silent", (name,), message, remedy)
            continue
        # Peers that measured nothing have their own finding, and took the time of others.
        answering = {peer: asked for peer, asked in answers.peers.items() if not fleet.answers[peer].reason}
        if late := sorted(peer for peer, asked in answering.items() if asked.state == "not_asked"):
            text = f"{len(late)} of {len(answers.peers)} node(s) were not measured in time: {some_of(late, LISTED)}"
            level = "fail" if len(answering) == len(answers.peers) else "warn"
            yield Finding(level, "silent", (name,), f"{name}: {text}", "Increase network_probe_seconds.")


def _reach(fleet: Fleet, pairs: Mapping[Pair, LinkAnswer]) -> Iterable[Finding]:
    tried = {pair: not asked.reached for pair, asked in pairs.items() if not fleet.answers[pair[1]].reason}
    bad = sum(tried.values())
    if len(fleet.answers) > 2 and tried and bad / len(tried) >= NEARLY_ALL:
        nodes = tuple(sorted({name for pair in tried for name in pair}))
        states = _counted(pairs[pair].state for pair in tried if tried[pair])
        message = f"nodes do not reach each other: {bad} of {len(tried)} links fail ({states})"
        remedy = "Check that nodes reach each other at network_address without a firewall in between."
        return [Finding("fail", "reach", nodes, message, remedy)]
    remedy = "Check the routes between the two, and both firewalls."
    return _findings("fail", "reach", tried, REACH, remedy, link=lambda pair: f"fails ({pairs[pair].state})")


def _sizes(pairs: Mapping[Pair, LinkAnswer]) -> Iterator[Finding]:
    tried = {
        pair: asked.path_mtu_bytes is None or asked.path_mtu_bytes < asked.mtu_bytes
        for pair, asked in pairs.items()
        if asked.reached and asked.size_tried and asked.mtu_bytes
    }

    def largest(pair: Pair) -> str:
        measured = pairs[pair]
        largest_bytes = measured.path_mtu_bytes or "smaller ones"
        return f"packets of {measured.mtu_bytes} bytes do not pass unfragmented, at most {largest_bytes}"

    sample = "; ".join(sorted({largest(pair) for pair, bad in tried.items() if bad})[:2])
    return _findings("fail", "mtu", tried, MTU, SAME_MTU, link=largest, worst=lambda _odd: sample)


def _ports(fleet: Fleet, pairs: Mapping[Pair, LinkAnswer]) -> Iterator[Finding]:
    for name, answers in fleet.answers.items():
        for port, reason in answers.not_listening.items():
            message = f"{name}: port {port} was not tested: the node cannot listen there: {reason}"
            remedy = "Run as root (ansible_become) for ports below 1024."
            yield Finding("fail", "port", (name,), message, remedy)
    remedy = "Open the port in the firewalls between the two. other_node: a shared address, or NAT in between."
    for port in fleet.ports:
        states = {
            pair: asked.ports.get(str(port), "not tried")
            for pair, asked in pairs.items()
            if asked.reached and not fleet.answers[pair[1]].reason and port not in fleet.answers[pair[1]].not_listening
        }
        tried = {pair: state != "open" for pair, state in states.items()}
        counts = _counted(state for state in states.values() if state != "open")
        words = {side: (f"port {port}: {text.replace('{worst}', counts)}", then) for side, (text, then) in PORT.items()}
        link = {pair: f"port {port} is {state}" for pair, state in states.items()}.__getitem__
        yield from _findings("fail", "port", tried, words, remedy, link=link)


def _slow(fleet: Fleet, pairs: Mapping[Pair, LinkAnswer]) -> Iterator[Finding]:
    for kind, noun, key, is_rate in MEASURES:
        figures = {pair: getattr(asked, key) for pair, asked in pairs.items() if asked.reached}
        values = {pair: value for pair, value in figures.items() if value is not None}
        yield from _slow_findings(kind, noun, values, _usual(values, fleet.zones, high=is_rate), is_rate=is_rate)


def _slow_findings(
    kind: str, noun: str, values: Mapping[Pair, float], usual: Mapping[Pair, float], *, is_rate: bool
) -> Iterator[Finding]:
    """Warn of nodes whose pairs are slower than usual. ``noun``: what was measured; ``values``, ``usual``: of each pair
    of nodes, bytes/s of a rate, else seconds."""
    tried = {pair: _is_slow(value, usual[pair], is_rate=is_rate) for pair, value in values.items()}

    def compared(pair: Pair) -> str:
        return f"{noun}: {_shown(values[pair], is_rate)}, usual is {_shown(usual[pair], is_rate)}"

    def worst(odd: ImplicatedNode) -> str:
        pairs = [pair for pair, bad in tried.items() if bad and odd.node in pair]
        return compared((min if is_rate else max)(pairs, key=values.__getitem__))

    return _findings("warn", kind, tried, SLOW, "Check the path between the two.", link=compared, worst=worst)


def _is_slow(value: float, usual: float, *, is_rate: bool) -> bool:
    """Whether a measured value is much worse than the usual one. Both are bytes/s if `is_rate`, else seconds."""
    return value * SLOW_RATE_FACTOR < usual if is_rate else value > max(SLOW_FACTOR * usual, usual + SLOW_SECONDS)


def _services(fleet: Fleet) -> Iterator[Finding]:
    measured_by: dict[str, dict[str, dict[str, Any]]] = {}
    for node, answers in fleet.answers.items():
        for name, service in answers.services.items():
            measured_by.setdefault(name, {})[node] = service
    for name, measured in measured_by.items():
        bad = {node: service for node, service in measured.items() if service["state"] != "ok"}
        if bad:
            reason = next(iter(bad.values()))["message"]
            nodes_text = f"{some_of(sorted(bad), LISTED)} ({len(bad)} of {len(measured)}) do not reach it"
            if len(bad) == len(measured):
                nodes_text = "no node reaches it"
            remedy = "Check name servers, routes, proxies and firewalls of the path."
            yield Finding("fail", "endpoint", tuple(bad), f"{name}: {nodes_text}: {reason}", remedy)
        for key, is_rate in (("tcp_seconds", False), ("bytes_per_second", True)):
            values = {node: service[key] for node, service in measured.items() if node not in bad and service[key]}
            if len(values) < MIN_LINKS:
                continue
            usual = statistics.median(values.values())
            for node, value in values.items():
                if _is_slow(value, usual, is_rate=is_rate):
                    figure = f"{key} {_shown(value, is_rate)}, usual is {_shown(usual, is_rate)}"
                    message = f"{node}: {name} is slow from here: {figure}"
                    yield Finding("warn", "endpoint", (node,), message, "Check its path to the service.")


def _same_address(fleet: Fleet) -> Iterator[Finding]:
    claims: dict[str, set[str]] = {}
    for name, _interface_name, interface in _interfaces(fleet):
        for text in interface["addresses"]:
            with contextlib.suppress(ValueError):
                address = ipaddress.ip_interface(text).ip
                if not (address.is_link_local or address.is_loopback):
                    claims.setdefault(str(address), set()).add(name)
    shared = {address: nodes for address, nodes in claims.items() if len(nodes) > 1}
    rivals = {name: {other for nodes in shared.values() if name in nodes for other in nodes} for name in fleet.answers}
    for shared_address, nodes in shared.items():
        message = f"{' and '.join(sorted(nodes))} both have the address {shared_address}"
        most = max(len(rivals[name]) for name in nodes)
        # Not at fault: the node that is reached at the address, and nodes that share fewer addresses than another does.
        guilty = nodes - {fleet.owners.get(shared_address, "")}
        guilty = {name for name in guilty if len(rivals[name]) == most} or guilty
        remedy = "Give each node its own address."
        yield Finding("fail", "address", tuple(sorted(nodes)), message, remedy, only=tuple(sorted(guilty)))


def _unlike(fleet: Fleet) -> Iterator[Finding]:
    """Yield warnings of interfaces whose MTU or state differs from that of the same interface on most nodes."""
    values_of: dict[tuple[str, str], dict[str, object]] = {}
    for node, name, interface in _interfaces(fleet):
        link = "down" if interface["state"] == "down" else ("up" if interface["carrier"] else "without carrier")
        for kind, value in (("MTU", interface["mtu"]), ("state", link)):
            values_of.setdefault((name, kind), {})[node] = value
    for (name, kind), values in values_of.items():
        counts = Counter(values.values())
        usual, count = counts.most_common(1)[0]
        remedy = f"Set the same {kind} of {name} on all nodes."
        if count * 2 <= len(values) and len(counts) > 1:
            values_text = ", ".join(f"{value} on {number}" for value, number in counts.most_common(LISTED))
            yield Finding("warn", "unlike", tuple(values), f"{name}: {kind} differs: {values_text}", remedy)
            continue
        for unusual in (value for value in counts if value != usual):
            odd = [node for node, own in values.items() if own == unusual]
            named = some_of(sorted(odd), LISTED)
            message = f"{named}: {name} has {kind} {unusual}, {usual} on {count} of {len(values)}"
            yield Finding("warn", "unlike", tuple(odd), message, remedy)


def _interfaces(fleet: Fleet) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield node, interface name and interface of all interfaces that are compared between nodes."""
    for node, answers in fleet.answers.items():
        for name, interface in answers.interfaces.items():
            if not NOT_COMPARED.match(name):
                yield node, name, interface


def _findings(
    level: str,
    kind: str,
    tried: Mapping[Pair, bool],
    words: Words,
    remedy: str,
    *,
    link: Callable[[Pair], str],
    worst: Callable[[ImplicatedNode], str] = lambda _odd: "",
) -> Iterator[Finding]:
    """Yield findings about nodes that explain failed pairs, and about other failed links. `tried`: by pair, whether it
    failed; `link`, `worst`: describe a failed link, and a node's worst link."""
    nodes, unexplained = blame(tried)
    for odd in nodes:
        text, what_to_do = words[odd.side]
        message = text.format(bad=odd.bad, tried=odd.tried, worst=worst(odd))
        yield Finding(level, kind, (odd.node,), f"{odd.node}: {message}", what_to_do)
    mutual, single = both_ways(unexplained)
    for pair in mutual:
        yield Finding(level, kind, pair, f"{pair[0]} <-> {pair[1]}: {link(pair)}", remedy)
    for source, target in single:
        back = "" if (target, source) not in tried else "; the other direction is fine"
        message = f"{source} -> {target}: {link((source, target))}{back}"
        yield Finding(level, kind, (source, target), message, remedy, only=(source,))


def _usual(values: Mapping[Pair, float], zones: Mapping[str, str], high: bool = False) -> dict[Pair, float]:
    """Return the usual value for each pair: of all pairs between the same zones, or of all pairs if these are few.

    The usual value is the good quartile (`high` values are good, else low): with one slow node of three, four of six
    links are slow."""
    zones_of = {pair: tuple(sorted(zones.get(name, "") for name in pair)) for pair in values}
    classes: dict[tuple[str, ...], list[float]] = {}
    for pair, value in values.items():
        classes.setdefault(zones_of[pair], []).append(value)
    usual = {}
    for key, members in classes.items():
        ordered = sorted(members if len(members) >= MIN_LINKS else values.values(), reverse=high)
        usual[key] = ordered[(len(ordered) - 1) // 4]
    return {pair: usual[zones_of[pair]] for pair in values}


def _counted(states: Iterable[str]) -> str:
    return ", ".join(f"{state} {count}x" for state, count in Counter(states).most_common())


def _shown(value: float, is_rate: bool) -> str:
    """Return a value (bytes/s if `is_rate`, else seconds) as text with a unit."""
    if not is_rate:
        return f"{value * 1000:.3g} ms"
    for size, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} B/s"
