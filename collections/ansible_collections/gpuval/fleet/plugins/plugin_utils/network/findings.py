"""Findings from all nodes' answers: the node, link or service at fault, and its remedy. Pure."""

from __future__ import annotations

import ipaddress
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from ..core.text import some_of
from .answers import Answers, Asked
from .blame import Odd, Pair, blame, both_ways

#: A link is slow beyond this factor of the usual figure and this much above it: within a rack figures are near zero.
SLOW_FACTOR = 3.0
SLOW_SECONDS = 0.002
#: Many nodes receive at the same time and share the network between them.
SLOW_RATE_FACTOR = 4.0
#: A class with fewer links is compared with all links.
MIN_LINKS = 4
#: If this share of all links failed, the cause is the network and not a node.
NEARLY_ALL = 0.9
LISTED = 6
SIDES = ("to", "from", "both")
#: Interfaces of container engines and the like, with the same name and address on every machine.
NOT_COMPARED = re.compile(r"lo|docker|br-|veth|cni|flannel|cali|virbr|podman|tunl|kube|ovs|tap|tun|vnet")


@dataclass(frozen=True)
class Finding:
    """`fail` is certainly wrong or contradicts the settings; `warn` is unusual."""

    level: str
    kind: str
    nodes: tuple[str, ...]
    message: str
    remedy: str

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "nodes": list(self.nodes)}


@dataclass(frozen=True)
class Fleet:
    """All evidence of one measurement."""

    answers: Mapping[str, Answers | None]  # None: no answer
    reasons: Mapping[str, str]  # why there is no answer
    zones: Mapping[str, str]
    ports: tuple[int, ...] = ()

    def pairs(self) -> dict[Pair, Asked]:
        return {
            (name, other): asked
            for name, answers in self.answers.items()
            if answers
            for other, asked in answers.peers.items()
            if asked.state != "not_asked"
        }


def find(fleet: Fleet) -> list[Finding]:
    """All findings, failures first."""
    pairs = fleet.pairs()
    found = [
        *_silent(fleet, pairs),
        *_reach(fleet, pairs),
        *_sizes(pairs),
        *_ports(fleet, pairs),
        *_slow(fleet, pairs),
        *_services(fleet),
        *_same_address(fleet),
        *_unlike(fleet),
    ]
    return sorted(found, key=lambda finding: finding.level != "fail")


def _silent(fleet: Fleet, pairs: Mapping[Pair, Asked]) -> list[Finding]:
    found = []
    for name, answers in fleet.answers.items():
        if answers is not None:
            continue
        tried = [asked.reached for (_asker, other), asked in pairs.items() if other == name]
        reached = f"{sum(tried)} of {len(tried)} node(s) reach it" if tried else "no other node could test it"
        remedy = (
            "The machine is up: check SSH, the user and the route from the controller."
            if any(tried)
            else "Check power, cable and address of the machine."
        )
        reason = fleet.reasons.get(name) or "no answer"
        found.append(Finding("fail", "silent", (name,), f"{name} measured nothing: {reason}; {reached}", remedy))
    return found


def _reach(fleet: Fleet, pairs: Mapping[Pair, Asked]) -> list[Finding]:
    tried = {pair: not asked.reached for pair, asked in pairs.items() if fleet.answers.get(pair[1]) is not None}
    bad = sum(tried.values())
    if len(fleet.answers) > 2 and tried and bad / len(tried) >= NEARLY_ALL:
        nodes = tuple(sorted({name for pair in tried for name in pair}))
        return [
            Finding(
                "fail",
                "reach",
                nodes,
                f"nodes do not reach each other: {bad} of {len(tried)} links fail ({_states(pairs, tried)})",
                "Check that nodes reach each other at network_address without a firewall in between.",
            )
        ]
    words = {
        "to": ("{bad} of {tried} node(s) do not reach it", "Check its firewall, address and cable."),
        "from": (
            "it does not reach {bad} of {tried} node(s)",
            "Check its routes and the outgoing rules of its firewall.",
        ),
        "both": (
            "cut off from the other nodes: {bad} of {tried} tries fail",
            "Check its cable, port, address and routes.",
        ),
    }
    return _findings(
        "fail",
        "reach",
        tried,
        words,
        link=lambda pair: f"fails ({pairs[pair].state})",
        remedy="Check the routes between the two, and both firewalls.",
    )


def _sizes(pairs: Mapping[Pair, Asked]) -> list[Finding]:
    tried = {
        pair: asked.path_mtu_bytes is None or asked.path_mtu_bytes < asked.mtu_bytes
        for pair, asked in pairs.items()
        if asked.reached and asked.size_tried and asked.mtu_bytes
    }

    def largest(pair: Pair) -> str:
        asked = pairs[pair]
        largest_bytes = asked.path_mtu_bytes or "smaller ones"
        return f"packets of {asked.mtu_bytes} bytes do not pass unfragmented, at most {largest_bytes}"

    sample = "; ".join(sorted({largest(pair) for pair, bad in tried.items() if bad})[:2])
    words = dict.fromkeys(
        ("to", "from", "both"),
        (f"{sample} ({{bad}} of {{tried}} links)", "Set the same MTU on all interfaces and switch ports of the path."),
    )
    return _findings(
        "fail",
        "mtu",
        tried,
        words,
        link=largest,
        remedy="Set the same MTU on all interfaces and switch ports of the path.",
    )


def _ports(fleet: Fleet, pairs: Mapping[Pair, Asked]) -> list[Finding]:
    found = []
    for name, answers in fleet.answers.items():
        for port, reason in (answers.not_listening if answers else {}).items():
            message = f"{name}: port {port} was not tested: the node cannot listen there: {reason}"
            found.append(
                Finding("fail", "port", (name,), message, "Run as root (ansible_become) for ports below 1024.")
            )
    for port in fleet.ports:
        tried = {
            pair: asked.ports.get(port, "not tried") != "open"
            for pair, asked in pairs.items()
            if asked.reached and fleet.answers.get(pair[1]) and port not in fleet.answers[pair[1]].not_listening
        }

        def how(pair: Pair, port: int = port) -> str:
            return f"port {port} is {pairs[pair].ports.get(port, 'not tried')}"

        states = Counter(pairs[pair].ports.get(port, "not tried") for pair, bad in tried.items() if bad)
        shown = ", ".join(f"{state} {count}x" for state, count in states.most_common())
        words = {
            "to": (
                f"port {port}: {{bad}} of {{tried}} node(s) cannot connect ({shown})",
                "Open the port in its firewall.",
            ),
            "from": (
                f"port {port}: it cannot connect to {{bad}} of {{tried}} ({shown})",
                "Check the outgoing rules of its firewall.",
            ),
            "both": (f"port {port}: {{bad}} of {{tried}} tries fail ({shown})", "Check its firewall."),
        }
        remedy = "Open the port in the firewalls between the two. other_node: a shared address, or NAT in between."
        found += _findings("fail", "port", tried, words, link=how, remedy=remedy)
    return found


def _slow(fleet: Fleet, pairs: Mapping[Pair, Asked]) -> list[Finding]:
    found = []
    for kind, read, what in (
        ("latency", lambda asked: asked.tcp_minimum_seconds, "a TCP handshake"),
        ("large_packets", lambda asked: asked.large_seconds, "a round trip of full packets"),
    ):
        values = {pair: read(asked) for pair, asked in pairs.items() if asked.reached and read(asked) is not None}
        usual = _usual(values, fleet.zones)
        tried = {
            pair: value > max(SLOW_FACTOR * usual[pair], usual[pair] + SLOW_SECONDS) for pair, value in values.items()
        }
        found += _slow_findings(kind, what, tried, values, usual, _milliseconds)
    rates = {pair: asked.bytes_per_second for pair, asked in pairs.items() if asked.bytes_per_second}
    usual = _usual(rates, fleet.zones, high=True)
    tried = {pair: rate * SLOW_RATE_FACTOR < usual[pair] for pair, rate in rates.items()}
    return found + _slow_findings("bandwidth", "receiving", tried, rates, usual, _rate)


def _slow_findings(
    kind: str,
    what: str,
    tried: Mapping[Pair, bool],
    values: Mapping[Pair, float],
    usual: Mapping[Pair, float],
    show: Callable[[float], str],
) -> list[Finding]:
    def compared(pair: Pair) -> str:
        return f"{what}: {show(values[pair])}, usual is {show(usual[pair])}"

    def worst(odd: Odd) -> str:
        mine = [pair for pair, bad in tried.items() if bad and odd.node in pair]
        pick = min if kind == "bandwidth" else max
        return compared(pick(mine, key=values.__getitem__))

    words = dict.fromkeys(
        SIDES, ("slow with {bad} of {tried}, {worst}", "Check its cable, port, errors (ethtool -S) and load.")
    )
    return _findings("warn", kind, tried, words, link=compared, remedy="Check the path between the two.", worst=worst)


def _services(fleet: Fleet) -> list[Finding]:
    found = []
    names = list(dict.fromkeys(name for answers in fleet.answers.values() if answers for name in answers.services))
    for name in names:
        measured = {
            node: answers.services[name]
            for node, answers in fleet.answers.items()
            if answers and name in answers.services
        }
        bad = {node: service for node, service in measured.items() if service.state != "ok"}
        if bad:
            reason = next(iter(bad.values())).message
            who = (
                "no node reaches it"
                if len(bad) == len(measured)
                else f"{some_of(sorted(bad), LISTED)} ({len(bad)} of {len(measured)}) do not reach it"
            )
            remedy = "Check name servers, routes, proxies and firewalls of the path."
            found.append(Finding("fail", "endpoint", tuple(bad), f"{name}: {who}: {reason}", remedy))
        for kind, read, worse, show in (
            ("tcp_seconds", lambda service: service.tcp_seconds, 1, _milliseconds),
            ("bytes_per_second", lambda service: service.bytes_per_second, -1, _rate),
        ):
            values = {
                node: read(service) for node, service in measured.items() if service.state == "ok" and read(service)
            }
            if len(values) < MIN_LINKS:
                continue
            usual = statistics.median(values.values())
            slow = {
                node: value
                for node, value in values.items()
                if (
                    value > max(SLOW_FACTOR * usual, usual + SLOW_SECONDS)
                    if worse > 0
                    else value * SLOW_RATE_FACTOR < usual
                )
            }
            for node, value in slow.items():
                message = f"{node}: {name} is slow from here: {kind} {show(value)}, usual is {show(usual)}"
                found.append(Finding("warn", "endpoint", (node,), message, "Check its path to the service."))
    return found


def _same_address(fleet: Fleet) -> list[Finding]:
    owners: dict[str, set[str]] = {}
    for name, interface_name, interface in _interfaces(fleet):
        if NOT_COMPARED.match(interface_name):
            continue
        for text in interface.addresses:
            try:
                address = ipaddress.ip_interface(text).ip
            except ValueError:
                continue
            if not (address.is_link_local or address.is_loopback):
                owners.setdefault(str(address), set()).add(name)
    return [
        Finding(
            "fail",
            "address",
            tuple(sorted(nodes)),
            f"{' and '.join(sorted(nodes))} both have the address {address}",
            "Give each node its own address.",
        )
        for address, nodes in owners.items()
        if len(nodes) > 1
    ]


def _unlike(fleet: Fleet) -> list[Finding]:
    """Interfaces that differ from the same interface on most nodes."""
    by_name: dict[str, dict[str, tuple[object, object]]] = {}
    for node, name, interface in _interfaces(fleet):
        if not NOT_COMPARED.match(name):
            by_name.setdefault(name, {})[node] = (interface.mtu, _link(interface))
    found = []
    for name, values in by_name.items():
        if len(values) < 2:
            continue
        for position, what in ((0, "MTU"), (1, "state")):
            counts = Counter(value[position] for value in values.values())
            usual, count = counts.most_common(1)[0]
            if len(counts) == 1:
                continue
            if count * 2 <= len(values):
                shown = ", ".join(f"{value} on {number}" for value, number in counts.most_common(LISTED))
                found.append(
                    Finding(
                        "warn",
                        "unlike",
                        tuple(values),
                        f"{name}: {what} differs: {shown}",
                        f"Set the same {what} of {name} on all nodes.",
                    )
                )
                continue
            for value in counts:
                odd = [node for node, both in values.items() if both[position] == value]
                if value != usual:
                    named = some_of(sorted(odd), LISTED)
                    message = f"{named}: {name} has {what} {value}, {usual} on {count} of {len(values)}"
                    found.append(
                        Finding("warn", "unlike", tuple(odd), message, f"Set the same {what} of {name} on all nodes.")
                    )
    return found


def _interfaces(fleet: Fleet):
    for node, answers in fleet.answers.items():
        for name, interface in (answers.interfaces if answers else {}).items():
            yield node, name, interface


def _link(interface) -> str:
    return interface.state if interface.state == "down" else ("up" if interface.carrier else "without carrier")


def _findings(
    level: str,
    kind: str,
    tried: Mapping[Pair, bool],
    words: Mapping[str, tuple[str, str]],
    *,
    link: Callable[[Pair], str],
    remedy: str,
    worst: Callable[[Odd], str] | None = None,
) -> list[Finding]:
    """Findings about nodes, and about links that no node explains."""
    nodes, rest = blame(tried)
    found = []
    for odd in nodes:
        text, what_to_do = words[odd.side]
        message = text.format(bad=odd.bad, tried=odd.tried, worst=worst(odd) if worst else "")
        found.append(Finding(level, kind, (odd.node,), f"{odd.node}: {message}", what_to_do))
    both, single = both_ways(rest)
    found += [Finding(level, kind, pair, f"{pair[0]} <-> {pair[1]}: {link(pair)}", remedy) for pair in both]
    for one, two in single:
        back = "" if (two, one) not in tried else "; the other direction is fine"
        found.append(Finding(level, kind, (one, two), f"{one} -> {two}: {link((one, two))}{back}", remedy))
    return found


def _usual(values: Mapping[Pair, float], zones: Mapping[str, str], high: bool = False) -> dict[Pair, float]:
    """The usual figure of a pair's class (the zones of the two), or of all pairs if the class is small.

    The good quartile: of three nodes with a slow one, four links of six are slow.
    """
    classes: dict[tuple[str, ...], list[float]] = {}
    for pair, value in values.items():
        classes.setdefault(_class(pair, zones), []).append(value)
    everything = _quartile(values.values(), high)
    usual = {
        key: _quartile(members, high) if len(members) >= MIN_LINKS else everything for key, members in classes.items()
    }
    return {pair: usual[_class(pair, zones)] for pair in values}


def _quartile(values: Iterable[float], high: bool) -> float:
    ordered = sorted(values, reverse=high)
    return ordered[(len(ordered) - 1) // 4] if ordered else 0.0


def _class(pair: Pair, zones: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(zones.get(name, "") for name in pair))


def _states(pairs: Mapping[Pair, Asked], tried: Mapping[Pair, bool]) -> str:
    counts = Counter(pairs[pair].state for pair, bad in tried.items() if bad)
    return ", ".join(f"{state} {count}x" for state, count in counts.most_common())


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _rate(value: float) -> str:
    for size, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} B/s"
