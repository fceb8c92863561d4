"""Whether nodes are one population: two modes among them, and tails that are longer than those of normal noise. Pure.

Both are looked for where a fault cannot hide them: modes by the gap between them, tails on the side of good figures,
which a slow node does not touch.
"""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .peer_statistics import Peers

#: The least nodes of a mode, of one that is certain, and its least share of all; fewer are outliers.
MODE_NODES, CERTAIN_NODES, MODE_SHARE = 2, 3, 0.15
#: Two modes are this many of the deviations within them apart; they are certain if of n nodes it is so many more over n
#: squared: of 100,000 healthy fleets of 8 to 24 nodes about 1 in 2,000 is split so, whatever its spread.
APART, APART_OF_FEW = 5.0, 400.0
#: The gap between the two is this many of the deviations.
GAP = 1.5
#: Two values of normal noise lie beyond the bound where so many are expected in 1 of 6 fleets.
USUAL_COUNT = 0.7
#: More deviations than this are no tail, but a deviation that is narrow by chance.
MOST_DEVIATIONS = 6.0
#: Of n nodes the limit is the cube root of this over n times as far as the second furthest node: where tails fall as
#: those of Student's t with 3 degrees, about 1 of 1,000 healthy nodes lies beyond. Never less than ``LEAST_TIMES``.
TAIL, LEAST_TIMES = 3000.0, 2.0


@dataclass
class Tails:
    """How far the good figures of each node lie from the median, in deviations of their own.

    The second furthest counts: a single node that reports a figure too good to be true widens nothing.
    """

    count: int = 0
    nodes: dict[str, float] = field(default_factory=dict)

    def add(self, values: Iterable[tuple[str, float]], margin: float, deviations: float, sign: int) -> None:
        """All values of a figure, by node; ``sign`` is 1 where the greater is the better, else -1.

        Values beyond margin and deviations are no part of the centre: bad nodes would move it.
        """
        known = list(values)
        peers = Peers.without_the_far([value for _, value in known], margin, deviations)
        if peers is None or not peers.deviation:
            return
        self.count += len(known)
        for node, value in known:
            self.nodes[node] = max(self.nodes.get(node, 0.0), sign * (value - peers.median) / peers.deviation)

    def reach(self, nodes: int) -> float:
        """Beyond how many deviations a figure is no chance; 0 where the tails are those of normal noise."""
        if len(self.nodes) < CERTAIN_NODES:
            return 0.0
        usual = statistics.NormalDist().inv_cdf(1 - USUAL_COUNT / self.count) * (1 + 1.5 / nodes)
        _, second = heapq.nlargest(2, self.nodes.values())
        times = max(LEAST_TIMES, (TAIL / nodes) ** (1 / 3))
        return min(second, MOST_DEVIATIONS) * times if second > usual else 0.0


def two_modes(levels: Sequence[float], least: float) -> tuple[list[int], list[int], bool] | None:
    """The numbers of the lower and of the upper nodes, where these are two modes, and whether that is certain.

    None where they are one.

    ``least``: the difference of their means, relative to the upper one, that matters.
    """
    count = len(levels)
    side = max(MODE_NODES, math.ceil(MODE_SHARE * count))
    if 2 * side > count:
        return None
    order = sorted(range(count), key=levels.__getitem__)
    ordered = [levels[number] for number in order]
    sums = [0.0, *itertools.accumulate(ordered)]

    def between(at: int) -> float:
        """The part of the scatter that two modes would explain."""
        return sums[at] ** 2 / at + (sums[-1] - sums[at]) ** 2 / (count - at)

    best = max(range(side, count - side + 1), key=between)
    low, high = statistics.fmean(ordered[:best]), statistics.fmean(ordered[best:])
    within = [value - low for value in ordered[:best]] + [value - high for value in ordered[best:]]
    deviation = math.sqrt(math.fsum(one**2 for one in within) / (count - 2))
    near = high - low < least * abs(high) or high - low <= APART * deviation
    if near or ordered[best] - ordered[best - 1] <= GAP * deviation:
        return None
    enough = min(best, count - best) >= CERTAIN_NODES
    certain = enough and high - low > (APART + APART_OF_FEW / count**2) * deviation
    return sorted(order[:best]), sorted(order[best:]), certain


def shared(few: Iterable[Mapping[str, str]], others: Iterable[Mapping[str, str]]) -> list[str]:
    """What most of a few nodes have and most others do not (``rack r3``), the clearest first."""
    few, others = list(few), list(others)
    having = Counter(pair for node in few for pair in node.items())
    elsewhere = Counter(pair for node in others for pair in node.items())
    by_name: dict[str, list[str]] = {}
    share: dict[str, float] = {}
    for (name, value), count in having.most_common():
        if elsewhere[name, value] * len(few) < count * len(others) / 4:  # rare among the others
            by_name.setdefault(name, []).append(value)
            share[name] = share.get(name, 0.0) + count / len(few)
    covering = sorted((name for name in by_name if share[name] >= 0.75), key=lambda name: (len(by_name[name]), name))
    return [
        f"{name} {', '.join(by_name[name][:4])}" for name in covering if len(by_name[name]) <= max(1, len(few) // 2)
    ]
