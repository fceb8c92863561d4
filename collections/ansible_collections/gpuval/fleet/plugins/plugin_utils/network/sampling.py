"""The pairs of nodes whose network is measured. Pure.

Up to `mesh` nodes, each node measures all others. With more, each measures `degree` others and they measure it, so that
a link that is good in one direction only is seen; and each pair of zones has a link of its own.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

MESH = 32
DEGREE = 8
#: Number of links between zones that a node may have beyond its degree.
EXTRA = 8


def plan(
    nodes: Sequence[str], zones: Mapping[str, str], mesh: int = MESH, degree: int = DEGREE
) -> dict[str, list[str]]:
    """Return the peers that each node measures, in the order of `nodes`. Up to `mesh` nodes measure all others, more
    measure `degree` peers each. `zones`: zone by node."""
    names = list(dict.fromkeys(nodes))
    if len(names) <= mesh:
        return {name: [other for other in names if other != name] for name in names}
    links: dict[str, set[str]] = {name: set() for name in names}
    for offset in _offsets(len(names), degree):
        for position, name in enumerate(names):
            _join(links, name, names[(position + offset) % len(names)])
    _cover(names, zones, links, degree)
    order = {name: position for position, name in enumerate(names)}
    return {name: sorted(links[name], key=order.__getitem__) for name in names}


def uncovered(peers: Mapping[str, Collection[str]], zones: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return pairs of zones without a measured link, since their nodes have the maximum number of links."""
    linked = {
        tuple(sorted((zones.get(name, ""), zones.get(other, "")))) for name, others in peers.items() for other in others
    }
    counts = Counter(zones.get(name, "") for name in peers)
    pairs = itertools.combinations_with_replacement(sorted(counts), 2)
    return [pair for pair in pairs if pair not in linked and (pair[0] != pair[1] or counts[pair[0]] > 1)]


def _offsets(count: int, degree: int) -> list[int]:
    """Return steps from a node to its peers on the circle of `count` nodes, from neighbours to across. Each step leads
    to two peers."""
    count_wanted = max(1, degree // 2)
    half = count // 2
    steps = [max(1, round(half ** (step / max(1, count_wanted - 1)))) for step in range(count_wanted)]
    result: list[int] = []
    for step in steps:
        result += [offset for offset in range(step, half + 1) if offset not in result][:1]
    # The step exactly across the circle gives one peer, not two.
    return [
        offset - 1 if 2 * offset == count and offset - 1 > 0 and offset - 1 not in result else offset
        for offset in result
    ]


def _cover(names: Sequence[str], zones: Mapping[str, str], links: dict[str, set[str]], degree: int) -> None:
    """Add a link for each pair of zones without one, between the nodes of the two zones with the fewest links."""
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(zones.get(name, ""), []).append(name)
    for zone, other_zone in uncovered(links, zones):
        first = min(members[zone], key=lambda name: len(links[name]))
        peers = [name for name in members[other_zone] if name != first]
        second = min(peers, key=lambda name: len(links[name]))
        if max(len(links[first]), len(links[second])) < degree + EXTRA:
            _join(links, first, second)


def _join(links: dict[str, set[str]], node: str, peer: str) -> None:
    if node != peer:
        links[node].add(peer)
        links[peer].add(node)
