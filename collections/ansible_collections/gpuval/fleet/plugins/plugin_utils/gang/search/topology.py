"""Where nodes are in the cluster (racks, switches, rails; any may be unknown), and which pairs of them run together.

Rounds of disjoint pairs without repetition are those of the circle method, ordered by topology. Two consecutive rounds
make one ring through all nodes. Nodes are placed so that it is the ring of the gang: the first two rounds measure every
link of that ring, mostly within a group of the outermost level (a rack). The next rounds pair nodes of different
groups.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ...core.text import natural_order

#: Levels of topology, outermost first: the one place to add a level. Each is also the inventory label that declares it.
LEVELS = ("rack", "switch", "rail")


@dataclass(frozen=True)
class Topology:
    """`places[node][level]`: the group of that level that contains the node; a level may be missing."""

    places: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of_labels(cls, labels: Mapping[str, Mapping[str, object]]) -> "Topology":
        """Read the topology from the labels of each node; other labels are ignored."""
        levels = {node: {level: str(own[level]) for level in LEVELS if own.get(level)} for node, own in labels.items()}
        return cls({node: groups for node, groups in levels.items() if groups})

    def place(self, node: str, level: str) -> str:
        return self.places.get(node, {}).get(level, "")

    def path(self, node: str) -> tuple[str, ...]:
        """The node's group at every level, outermost first; empty for an unknown one."""
        return tuple(self.place(node, level) for level in LEVELS)

    def line(self, nodes: Iterable[str]) -> list[str]:
        """Nodes in the order of the gang's ring: neighbours share as many levels as possible."""
        return sorted(nodes, key=lambda node: (*map(natural_order, self.path(node)), natural_order(node)))

    def groups(self, level: str, nodes: Iterable[str]) -> dict[str, list[str]]:
        """The nodes of each group of one level; a node with an unknown group is in none."""
        by_name: dict[str, list[str]] = {}
        for node in nodes:
            name = self.place(node, level)
            if name:
                by_name.setdefault(name, []).append(node)
        return dict(sorted(by_name.items(), key=lambda item: natural_order(item[0])))


def pair_rounds(line: Sequence[str], topology: Topology, count: int) -> list[list[tuple[str, str]]]:
    """The pairs of the first `count` rounds, fewer if all pairs have run; of an odd number of nodes, one rests."""
    places = tuple(map(topology.path, line))
    order = _order(len(line), places, min(count, count_pair_rounds(len(line))))
    return [[(line[one], line[two]) for one, two in _matching(len(line), number)] for number in order]


def count_pair_rounds(count: int) -> int:
    """Number of rounds in which each of `count` nodes is paired with every other node."""
    return 0 if count < 2 else count - 1 + count % 2


@lru_cache(maxsize=64)
def _order(count: int, places: tuple[tuple[str, ...], ...], total: int) -> tuple[int, ...]:
    """Numbers of the rounds to run: the ring's, then those that cross most boundaries, far from rounds before."""
    rounds_in_all = count_pair_rounds(count)
    chosen = list(range(min(2, total)))
    crossing = {
        number: sum(
            sum(a != b for a, b in zip(places[one], places[two], strict=True)) for one, two in _matching(count, number)
        )
        for number in range(len(chosen), rounds_in_all)
    }
    while len(chosen) < total:
        distance = {
            number: min(min((number - ran) % rounds_in_all, (ran - number) % rounds_in_all) for ran in chosen)
            for number in crossing
        }
        chosen.append(max(crossing, key=lambda number: (crossing[number], distance[number], number)))
        del crossing[chosen[-1]]
    return tuple(chosen)


@lru_cache(maxsize=2048)
def _matching(count: int, number: int) -> tuple[tuple[int, int], ...]:
    """Pairs of nodes, as positions in a line of `count` nodes, that meet in the round `number`: seats of a circle whose
    sum is `number` modulo the seats. The seat without a partner meets the hub, or rests if `count` is odd. Seats are
    placed so that rounds 0 and 1 together make a ring of all nodes."""
    seats, offset = count_pair_rounds(count), count % 2
    position = [1, *(2 * min(seat, seats - seat) + (2 * seat > seats) for seat in range(1, seats))]
    pairs = []
    for seat in range(seats):
        partner = (number - seat) % seats
        if seat <= partner:
            first, second = sorted((position[seat], 0 if seat == partner else position[partner]))
            pairs += [(first - offset, second - offset)] if first >= offset else []
    return tuple(sorted(pairs))
