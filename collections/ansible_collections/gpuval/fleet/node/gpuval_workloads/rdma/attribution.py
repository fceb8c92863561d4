"""Selects pairs of nodes for RDMA measurements, and decides which end of a slow rail (pair of ports) is at fault.

A port that reaches its rate with one partner is good. A port that is slow with two partners, both good with others, is
bad; if many nodes have bad ports of one name, they are shared: a switch may be at fault. A slow rail without a bad end
accuses no node: the path between two good ends may be slow, or there were too few partners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import cycle, islice
from typing import NamedTuple, Optional

#: Number of good partners that are needed to call a slow end bad.
PARTNERS = 2
#: Maximum rounds that measure slow ends again; slow ends that do not fit into these stay unexplained.
MAX_ROUNDS = 4
#: Ports of one name are bad by a shared cause if more than ALIKE nodes, and more than one in ALIKE_OF, have a bad one.
ALIKE, ALIKE_OF = 2, 32
#: One end of a rail: index of the node in its gang, and name of the port.
End = tuple[int, str]
Rounds = list[list[tuple[int, int]]]


class RailPair(NamedTuple):
    """A rail between ports of two nodes: ``rail`` of the client, ``other`` of the server. ``share``: measured speed
    divided by twice the rate. ``tested`` is False for a problem of the setup, not of ports."""

    client: int
    rail: str
    server: int
    other: str
    share: Optional[float] = None
    problem: str = ""
    tested: bool = True

    @property
    def ends(self) -> tuple[End, End]:
        return (self.client, self.rail), (self.server, self.other)


class RdmaFindings(NamedTuple):
    """Good ports, bad ports, ports bad by a ``shared`` cause such as a switch; slow rails without a bad end."""

    good: set[End]
    bad: set[End]
    shared: set[End]
    unexplained: list[RailPair]


def ring(members: Sequence[int]) -> Rounds:
    """Return rounds of pairs (client, server) in which each node meets both neighbours in a ring, one at a time."""
    count = len(members)
    pairs = list(zip(members, members[1:])) + ([(members[-1], members[0])] if count > 2 else [])
    odd_pair = [pairs.pop()] if count > 2 and count % 2 else []
    return [group for group in (pairs[0::2], pairs[1::2], odd_pair) if group]


def second_look(pairs: Sequence[RailPair], least: float) -> Rounds:
    """Return further rounds of (client, server): nodes with undecided slow rails meet two whose rails are all good."""
    attribution = attribute(pairs, least)
    open_ends = {end for pair in attribution.unexplained for end in pair.ends} - attribution.good
    open_nodes = sorted({node for node, _rail in open_ends})
    slow = {node for pair in pairs if _is_slow(pair, least) for node, _rail in set(pair.ends) - attribution.good}
    good = sorted({node for node, _rail in attribution.good} - slow)
    rounds: Rounds = []
    for position, node in enumerate(open_nodes):
        met = {index for pair in pairs for index in (pair.client, pair.server) if node in (pair.client, pair.server)}
        fresh = [index for index in good if index not in met]
        for partner in islice(cycle(fresh), position, position + min(PARTNERS, len(fresh))):
            free = (
                round_pairs
                for round_pairs in rounds
                if not {node, partner} & {index for pair in round_pairs for index in pair}
            )
            chosen: Optional[list[tuple[int, int]]] = next(free, None)
            if chosen is None and len(rounds) < MAX_ROUNDS:
                rounds.append(chosen := [])
            if chosen is not None:
                chosen.append((node, partner))
    return rounds


def attribute(pairs: Iterable[RailPair], least: float) -> RdmaFindings:
    tested = [pair for pair in pairs if pair.tested]
    slow = [pair for pair in tested if _is_slow(pair, least)]
    good = {end for pair in tested if not _is_slow(pair, least) for end in pair.ends}
    accusers: dict[End, set[int]] = {}
    for pair in slow:
        for end, partner in (pair.ends, pair.ends[::-1]):
            if partner in good:
                accusers.setdefault(end, set()).add(partner[0])
    accused = {end for end, partners in accusers.items() if end not in good and len(partners) >= PARTNERS}
    most = max(ALIKE, len({node for pair in tested for node, _port in pair.ends}) // ALIKE_OF)
    alike = Counter(port for _node, port in accused)
    shared = {end for end in accused if alike[end[1]] > most}
    return RdmaFindings(good, accused - shared, shared, [pair for pair in slow if not accused & set(pair.ends)])


def matched(client: Collection[str], server: Collection[str]) -> list[tuple[str, str]]:
    """Return the pairs of ports of two nodes that form rails: by equal name, or by order if no names are equal."""
    shared_names = [name for name in client if name in server]
    return [(name, name) for name in shared_names] if shared_names else list(zip(client, server))


def absent(ports: Mapping[int, Collection[str]], index: int) -> list[str]:
    """Return ports that at least half of the nodes have and node ``index`` lacks, if it has other names in common."""
    counted = Counter(name for names in ports.values() for name in names)
    names_elsewhere = {name for node, names in ports.items() if node != index for name in names}
    is_alike = bool(names_elsewhere & set(ports[index]))
    usual = [name for name, count in counted.items() if 2 * count >= len(ports)]
    return [name for name in usual if is_alike and name not in ports[index]]


def _is_slow(pair: RailPair, least: float) -> bool:
    return pair.tested and (pair.share is None or pair.share < least)
