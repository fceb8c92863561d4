"""One part beside its peers: how far it is from their median, and whether that exceeds their own noise; and whether
nodes are one population: two modes among them, and tails that are longer than those of normal noise. Pure.

The latter are looked for where a fault cannot hide them: modes by the gap between them, tails on the side of good
figures, which a slow node does not touch.
"""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..core import units

#: Of two that differ either may be wrong.
MIN_PARTS = 3
#: Of a normal distribution the median absolute deviation, times this, is the standard one (Rousseeuw, Croux 1993).
MAD_TO_DEVIATION = 1.4826
#: The spread of few nodes is uncertain: of n nodes, 1 + this/n times as many deviations are needed. From a simulation:
#: of 8 to 40 healthy nodes at most about 1 in 1,000 fails, also where nodes differ as Student's t with 3 degrees.
FEW_NODES = 24
#: The same for parts beside those of their own node, of which there are many.
FEW_NODES_OF_PARTS = 8
#: The same for the parts of a single node, of n parts.
FEW_PARTS = 8
#: The same for a warning, which needs this share of the deviations.
FEW_NODES_TO_WARN, SHARE_TO_WARN = 4, 0.8
#: The standard error of a median of n normal values is this times their deviation, over the root of n.
MEDIAN_ERROR = 1.2533
#: Below this number of nodes the same holds for leaving a value out of the centre and the spread.
FEW_TO_LEAVE_OUT = 24
#: A part that is this many borrowed deviations off is no chance, in a single node too: 1 of 100,000 of normal noise.
KNOWN = 4.265
#: Of how many measurements a spread is whose count is not known: with fewer it would be of no use.
FEWEST_MEASUREMENTS = 4


def widened(deviations: float, nodes: int, few: float = FEW_NODES) -> float:
    """How many deviations of so many nodes count as ``deviations`` of a great many."""
    return deviations * (1 + few / nodes)


def borrowed_deviation(value: float, count: int | None = None, between_sites: float | None = None) -> float:
    """The relative deviation of a spread that other machines showed, as that of normal noise which reaches as far.
    ``count``: of how many nodes, or passes of one; each has one degree of freedom of Student's t at least (Wallace
    1959). ``between_sites``: how much sites differ, as much as parts where it is not known."""
    freedom = count or FEWEST_MEASUREMENTS
    reach = (KNOWN * (8 * freedom + 3) / (8 * freedom + 1)) ** 2
    of_student = math.sqrt(freedom * math.expm1(reach / freedom)) / KNOWN
    return of_student * math.hypot(value, value if between_sites is None else between_sites)


@dataclass(frozen=True)
class Peers:
    """The figures of all parts; ``deviation`` is their scaled median absolute deviation, in the unit of the figures."""

    median: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float], *, floor_ratio: float = 0.0) -> Peers | None:
        """None where there are too few, or where their median is 0 and so nothing is relative to it. ``floor_ratio`` is
        the least deviation, relative to the median: parts that agree by chance know no better than their repeats do."""
        median = statistics.median(values) if len(values) >= MIN_PARTS else 0
        if median == 0:
            return None
        deviation = MAD_TO_DEVIATION * statistics.median([abs(value - median) for value in values])
        return cls(median, max(deviation, floor_ratio * abs(median)), len(values))

    @classmethod
    def without_the_far(
        cls, values: Sequence[float], margin: float, deviations: float, *, floor_ratio: float = 0.0
    ) -> Peers | None:
        """The median and deviation without outliers: a third that is bad moves a median and widens the spread. Values
        further off than both ``margin`` and ``deviations`` are left out, again and again, until no more are far off, or
        half of the values were."""
        group = cls.of(values, floor_ratio=floor_ratio)
        near_before: Sequence[float] = values
        while group is not None:
            near = [value for value in values if not group.is_outlier(value, margin, margin, deviations)]
            if len(near) == len(near_before) or 2 * len(near) <= len(values):
                break
            closer = cls.of(near, floor_ratio=floor_ratio)
            if closer is None:
                break
            still = sum(not closer.is_outlier(value, margin, margin, deviations) for value in values)
            if 2 * still <= len(values) or len(near) > len(near_before):
                break
            near_before, group = near, closer
        return group

    def change(self, value: float) -> float:
        """Relative to the median: -0.05 is 5 % under it."""
        return (value - self.median) / abs(self.median)

    def is_outlier(self, value: float, max_below: float | None, max_above: float | None, deviations: float) -> bool:
        """Whether the part is too far off, and by more than ``deviations`` of its peers' own."""
        return self.is_beyond(value, max_below, max_above, deviations * self.deviation)

    def is_beyond(self, value: float, max_below: float | None, max_above: float | None, distance: float) -> bool:
        """Whether the part is too far off, and by more than ``distance``, in the unit of the figures."""
        if abs(value - self.median) <= distance:
            return False
        change = self.change(value)
        return (max_below is not None and change < -max_below) or (max_above is not None and change > max_above)

    def badness(self, value: float, max_below: float | None, max_above: float | None) -> float:
        """Orders parts that pass: the greatest is the nearest to failing."""
        change = self.change(value)
        sides = ((max_below, -change), (max_above, change))
        return max(off / most for most, off in sides if most is not None)


def deviation_text(change: float) -> str:
    """A relative change in words: 5 % under."""
    return f"{units.number_text(abs(change) * 100)} % {'under' if change < 0 else 'over'}"


def majority(values: Sequence[str]) -> str | None:
    """The value of more than half."""
    return next((value for value, count in Counter(values).most_common(1) if 2 * count > len(values)), None)


#: The least nodes of a mode, of one that is certain, and its least share of all; fewer are outliers.
MODE_NODES, CERTAIN_NODES, MODE_SHARE = 2, 3, 0.15
#: Two modes are this many of the deviations within them apart; they are certain if of n nodes it is so many more over n
#: squared: of 100,000 healthy fleets of 8 to 24 nodes about 1 in 2,000 is split so, whatever its spread.
APART, APART_OF_FEW = 5.0, 400.0
#: The gap between the two is this many of the deviations.
GAP = 1.5
#: The mean deviation of normal noise over the standard one (Geary 1935); of Student's t with 3 degrees it is 0.64.
GEARY = math.sqrt(2 / math.pi)
#: Of n values that ratio is smaller by this over the root of n in about 1 of 20, and 1 of 100, fleets of normal noise.
LIKELY, CERTAIN = 0.28, 0.48
#: Two values of normal noise lie beyond the bound where so many are expected in 1 of 6 fleets.
USUAL_COUNT = 0.7
#: More deviations than this are no tail, but a deviation that is narrow by chance.
MOST_DEVIATIONS = 6.0
#: Of n nodes the limit is the cube root of this over n times as far as the second furthest node: where tails fall as
#: those of Student's t with 3 degrees, about 1 of 1,000 healthy nodes lies beyond. Never less than ``LEAST_TIMES``.
TAIL, LEAST_TIMES = 3000.0, 2.0
#: 1 of 40,000 changes of normal noise is larger than so many of its deviations.
CHANGE = 4.2

#: Normal noise of n nodes explains so many deviations, times 1 + ``FEW``/(n - 4), and never fewer than ``MOST_NORMAL``.
NORMAL, FEW, MOST_NORMAL = 3.5, 2.0, 5.5
#: In 1 of 1,000 nodes it explains so many, times 1 + this/(n - 3): the quantiles of Student's t, and of a new value.
DOUBTFUL, DOUBTFUL_OF_FEW = 3.1, 3.2


@dataclass
class Tails:
    """How the figures of nodes scatter: whether as normal noise, and how far the good ones lie from the median. A
    single node that reports figures too good to be true makes no long tails, and widens nothing."""

    #: By figure, of each node: how many values show tails, the sums of their deviations and of the squares.
    figures: list[dict[str, tuple[int, float, float]]] = field(default_factory=list)
    #: How far the best figure of a node lies from the median, in deviations of its own.
    nodes: dict[str, float] = field(default_factory=dict)
    count: int = 0
    #: In deviations of the nodes: by stage and node how far it is ahead; by node and metric how far two measurements of
    #: it differ.
    ahead: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    changes: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    #: By node and metric the relative deviation of its nodes.
    deviations: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    #: Nodes of which a measurement was far off as a whole: what theirs differ by is no measure of healthy ones.
    far: set[str] = field(default_factory=set)

    def add(self, values: Iterable[tuple[str, float]], margin: float, deviations: float, sign: int) -> None:
        """All values of a figure, by node; ``sign`` is 1 where the greater is the better, else -1. Values beyond margin
        and deviations are no part of the centre: bad nodes would move it. Bad values show tails only as far as the good
        ones of two nodes reach: those beyond may be faults."""
        pairs = list(values)
        peers = Peers.without_the_far([value for _, value in pairs], margin, deviations)
        if peers is None or not peers.deviation:
            return
        self.count += len(pairs)
        most = max(margin * abs(peers.median), deviations * peers.deviation)
        better = [(node, sign * (value - peers.median)) for node, value in pairs]
        bests: dict[str, float] = {}
        for node, by in better:
            if by <= most:
                bests[node] = max(bests.get(node, 0.0), by)
        *_, second = 0.0, *heapq.nlargest(2, bests.values())
        near: dict[str, tuple[int, float, float]] = {}
        for node, by in better:
            self.nodes[node] = max(self.nodes.get(node, 0.0), by / peers.deviation)
            if -second <= by <= most:
                count, total, squares = near.get(node, (0, 0.0, 0.0))
                near[node] = count + 1, total + abs(by), squares + by**2
        self.figures.append(near)

    def error(self) -> float:
        """The standard error of one measurement: at most all that nodes differ by, which has it in it."""
        changes = [*itertools.chain(*(its.values() for its in self.changes.values()))]
        return min(1.0, MAD_TO_DEVIATION * statistics.median(changes) / math.sqrt(2)) if changes else 1.0

    def healthy_changes(self, node: str, metric: str) -> tuple[float, float, float]:
        """How far two measurements of the node may differ, in deviations of its nodes: as far as those of good nodes
        were seen to, as far as tails reach beyond few of these, and as far as the latter of any figure, beyond which it
        is a fault. For the first two, one other figure alone is no measure."""
        good = [its for name, its in self.changes.items() if its and name != node and name not in self.far]
        if not good or not self.changes.get(node):
            return 0.0, 0.0, 0.0
        of_figures: dict[str, float] = defaultdict(float)
        for name, change in itertools.chain(*(its.items() for its in good)):
            of_figures[name] = max(of_figures[name], change)
        *_, second = heapq.nlargest(2, of_figures.values())
        most, count = max(second, of_figures.get(metric, 0.0)), sum(map(len, good))
        of_normal = statistics.NormalDist().inv_cdf(1 - (1 - 0.5 ** (1 / count)) / 2)  # the median of their largest
        usual, reach = 1.0, CHANGE / of_normal
        if self.reach(len(self.nodes)):
            usual, reach = reach, max(reach, math.pow(TAIL / count, 1 / 3))
        return usual * most, reach * most, reach * max(of_figures.values())

    def are_long(self, error: float) -> bool:
        """Whether tails are longer than those of normal noise, with and without any one of the nodes. ``error``: how
        much smaller Geary's ratio of one value is by chance."""
        all_nodes = [
            (near, [math.fsum(column) for column in zip(*near.values(), strict=True)]) for near in self.figures
        ]
        for node in (None, *self.nodes):
            count, pooled = 0.0, 0.0
            for near, sums in all_nodes:
                node_near = near.get(node, (0, 0.0, 0.0)) if node is not None else (0, 0.0, 0.0)
                values, total, squares = (one - its for one, its in zip(sums, node_near, strict=True))
                if values and squares > 1e-9 * sums[2]:  # else what is left is rounding
                    count, pooled = count + values, pooled + total / math.sqrt(squares / values)
            if not count or pooled / count >= GEARY - error / math.sqrt(count):
                return False
        return True

    def reach(self, nodes: int) -> float:
        """Beyond how many deviations a figure is no chance; 0 where the tails are those of normal noise."""
        if len(self.nodes) < CERTAIN_NODES:
            return 0.0
        usual = statistics.NormalDist().inv_cdf(1 - USUAL_COUNT / self.count) * (1 + 1.5 / nodes)
        _, second = heapq.nlargest(2, self.nodes.values())
        if second <= usual and not self.are_long(LIKELY):
            return 0.0
        return min(second, MOST_DEVIATIONS) * max(LEAST_TIMES, math.pow(TAIL / nodes, 1 / 3))


def normal_limit(levels: Sequence[float], least: float) -> tuple[float, float]:
    """The middle of nodes' levels, and the distance beyond which normal noise explains none of them. ``least``: the
    distance, relative to the middle, that matters; levels beyond it are left out. The distance is infinite where too
    few are left, and where there are none: no node reports the figure."""
    if not levels:
        return 0.0, math.inf
    middle, near = _near(levels, least)
    if not near:
        return middle, math.inf
    deviations = max(MOST_NORMAL, NORMAL * (1 + FEW / (len(near) - 4)))
    return middle, max(least * abs(middle), deviations * statistics.stdev(near))


def deviation_of(levels: Sequence[float], least: float) -> float:
    """The standard deviation of the levels near the middle, relative to it; 0 where these are too few."""
    middle, near = _near(levels, least) if levels else (0.0, [])
    return statistics.stdev(near) / abs(middle) if near else 0.0


def doubtful_limit(levels: Sequence[float], least: float, deviation: float) -> float:
    """The distance from the middle, relative to it, beyond which a level is to be measured again; infinite where that
    is not known. ``deviation``: the robust one of all levels. Of nodes that differ by more than ``least`` those near
    are no measure."""
    middle, near = _near(levels, least) if levels else (0.0, [])
    if not near:
        return math.inf
    of_near = DOUBTFUL * (1 + DOUBTFUL_OF_FEW / (len(near) - 3)) * statistics.stdev(near)
    return max(least, of_near / abs(middle), DOUBTFUL * deviation / abs(middle))


def _near(levels: Sequence[float], least: float) -> tuple[float, Sequence[float]]:
    """The middle of the levels, and those within ``least`` of it; none where these are too few to show their spread."""
    middle, near = statistics.median(levels), levels
    for _ in range(3):
        near = [level for level in levels if abs(level - middle) <= least * abs(middle)]
        if len(near) <= max(4, len(levels) // 2):
            return middle, []
        middle = statistics.median(near)
    return middle, near


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


def shared(few: Sequence[Mapping[str, str]], rest: Sequence[Mapping[str, str]]) -> list[str]:
    """What most of a few nodes have and most others do not (``rack r3``), the clearest first."""
    having = Counter(pair for node in few for pair in node.items())
    elsewhere = Counter(pair for node in rest for pair in node.items())
    by_name: dict[str, list[str]] = {}
    share: dict[str, float] = {}
    for (name, value), count in having.most_common():
        if elsewhere[name, value] * len(few) < count * len(rest) / 4:  # rare among the others
            by_name.setdefault(name, []).append(value)
            share[name] = share.get(name, 0.0) + count / len(few)
    covering = sorted((name for name in by_name if share[name] >= 0.75), key=lambda name: (len(by_name[name]), name))
    return [
        f"{name} {', '.join(by_name[name][:4])}" for name in covering if len(by_name[name]) <= max(1, len(few) // 2)
    ]
