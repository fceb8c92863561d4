"""One part beside its peers: how far it is from their median, and whether that exceeds their own noise. Whether nodes
are one population, and have longer tails than normal noise: modes by the gap between them, tails on the side of good
figures, where no fault hides them. Pure."""

import heapq
import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..core import units
from ..core.grouping import values_by_key

#: The least number of parts to compare: of two that differ either may be wrong.
MIN_PARTS = 3
#: Factor from the median absolute deviation to the standard deviation of normal noise (Rousseeuw, Croux 1993).
MAD_TO_DEVIATION = 1.4826
#: The spread of few nodes is uncertain: of n nodes, 1 + this/n times as many deviations are needed. From a simulation:
#: of 8 to 40 healthy nodes at most about 1 in 1,000 fails, also where nodes differ as Student's t with 3 degrees.
FEW_NODES = 24
#: As FEW_NODES, for parts compared within their own node: there are many of them.
FEW_NODES_OF_PARTS = 8
#: As FEW_NODES, for the n parts of a single node.
FEW_PARTS = 8
#: As FEW_NODES, for a warning, which needs this share of the deviations.
FEW_NODES_TO_WARN, SHARE_TO_WARN = 4, 0.8
#: The standard error of a median of n normal values is this times their deviation, over the root of n.
MEDIAN_ERROR = 1.2533
#: Below this number of nodes, FEW_NODES also applies to values left out of the centre and the spread.
FEW_TO_LEAVE_OUT = 24
#: A part that is this many borrowed deviations off is no chance, in a single node too: 1 of 100,000 of normal noise.
KNOWN = 4.265
#: Assumed number of measurements behind a spread whose count is unknown: with fewer it would be useless.
FEWEST_MEASUREMENTS = 4


def widened(deviations: float, nodes: int, few: float = FEW_NODES) -> float:
    """How many deviations to allow for a spread from few nodes, if ``deviations`` are right for very many nodes."""
    return deviations * (1 + few / nodes)


def borrowed_deviation(value: float, count: int | None = None, between_sites: float | None = None) -> float:
    """The relative deviation to use for a spread that other machines showed: normal noise that reaches as far.
    ``count``: the number of nodes (or passes on one) behind it, each a degree of freedom of Student's t (Wallace 1959).
    ``between_sites``: how much sites differ; if unknown, as much as parts."""
    freedom = count or FEWEST_MEASUREMENTS
    reach = (KNOWN * (8 * freedom + 3) / (8 * freedom + 1)) ** 2
    of_student = math.sqrt(freedom * math.expm1(reach / freedom)) / KNOWN
    return of_student * math.hypot(value, value if between_sites is None else between_sites)


@dataclass(frozen=True)
class Peers:
    """Statistics of the figures of all parts. ``deviation``: scaled median absolute deviation, in the figures' unit."""

    median: float
    deviation: float
    count: int

    @classmethod
    def around(cls, values: Sequence[float]) -> "Peers":
        """The statistics of at least one value."""
        median = statistics.median(values)
        return cls(median, MAD_TO_DEVIATION * statistics.median([abs(value - median) for value in values]), len(values))

    @classmethod
    def of(cls, values: Sequence[float], *, floor_ratio: float = 0.0) -> "Peers | None":
        """None where there are too few, or where their median is 0 and so nothing is relative to it. ``floor_ratio`` is
        the least deviation, relative to the median: parts that agree by chance know no better than their repeats do."""
        peers = cls.around(values) if len(values) >= MIN_PARTS else None
        if peers is None or peers.median == 0:
            return None
        return replace(peers, deviation=max(peers.deviation, floor_ratio * abs(peers.median)))

    @classmethod
    def without_the_far(
        cls, values: Sequence[float], margin: float, deviations: float, *, floor_ratio: float = 0.0
    ) -> "Peers | None":
        """The median and deviation without outliers, since a bad third moves a median and widens a spread. Values
        beyond both ``margin`` and ``deviations`` are left out, repeatedly, until none is far off or half of the values
        are left out."""
        group = cls.of(values, floor_ratio=floor_ratio)
        near_before: Sequence[float] = values
        while group is not None:
            near = group.near(values, margin, deviations)
            if len(near) == len(near_before) or 2 * len(near) <= len(values):
                break
            closer = cls.of(near, floor_ratio=floor_ratio)
            if closer is None:
                break
            if 2 * len(closer.near(values, margin, deviations)) <= len(values) or len(near) > len(near_before):
                break
            near_before, group = near, closer
        return group

    def far(self, margin: float, deviations: float) -> float:
        """The distance from the median, in the unit of the figures, beyond which a value is an outlier."""
        return max(margin * abs(self.median), deviations * self.deviation)

    def near(self, values: Iterable[float], margin: float, deviations: float) -> list[float]:
        """The values that are no outliers."""
        far = self.far(margin, deviations)
        return [value for value in values if abs(value - self.median) <= far]

    def change(self, value: float) -> float:
        """The value's relative distance from the median: -0.05 is 5 % below."""
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
        """Sort key for parts that pass: the greatest is nearest to failing."""
        change = self.change(value)
        return max(off / most for most, off in ((max_below, -change), (max_above, change)) if most is not None)


def deviation_text(change: float) -> str:
    """A relative change as text: "5 % under"."""
    return f"{units.number_text(abs(change) * 100)} % {'under' if change < 0 else 'over'}"


def majority(values: Sequence[str]) -> str | None:
    """The value of more than half, None without one."""
    return next((value for value, count in Counter(values).most_common(1) if 2 * count > len(values)), None)


#: Least nodes of a mode, least nodes of a certain mode, and least share of all nodes; fewer are outliers.
MODE_NODES, CERTAIN_NODES, MODE_SHARE = 2, 3, 0.15
#: Two modes are this many of the deviations within them apart; they are certain if of n nodes it is so many more over n
#: squared: of 100,000 healthy fleets of 8 to 24 nodes about 1 in 2,000 is split so, whatever its spread.
APART, APART_OF_FEW = 5.0, 400.0
#: The gap between two modes is at least this many of the deviations within them.
GAP = 1.5
#: The mean deviation of normal noise over the standard one (Geary 1935); of Student's t with 3 degrees it is 0.64.
GEARY = math.sqrt(2 / math.pi)
#: Of n values that ratio is smaller by this over the root of n in about 1 of 20, and 1 of 100, fleets of normal noise.
LIKELY, CERTAIN = 0.28, 0.48
#: Two values of normal noise lie beyond the bound where so many are expected in 1 of 6 fleets.
USUAL_COUNT = 0.7
#: Cap on a tail's length in deviations: beyond it the deviation itself is too narrow by chance.
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
    """How the figures of nodes scatter: as normal noise or with longer tails, and how far good figures lie from the
    median. A single node with figures too good to be true makes no long tails, and widens nothing."""

    #: For each figure and node: number of values that show tails, sum of their deviations, sum of the squares.
    figures: list[dict[str, tuple[int, float, float]]] = field(default_factory=list)
    #: For each node how far its best figure is above the median, in that figure's deviations.
    nodes: dict[str, float] = field(default_factory=dict)
    count: int = 0
    #: In deviations of the nodes. ``ahead``: by stage and node, how far the node is ahead. ``changes``: by node and
    #: metric, how far two measurements differ.
    ahead: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    changes: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    #: By node and metric, the relative deviation of the nodes that it is compared with.
    deviations: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    #: Nodes with a measurement that was far off: their changes are not those of healthy nodes.
    far: set[str] = field(default_factory=set)

    def add(self, values: Iterable[tuple[str, float]], margin: float, deviations: float, sign: int) -> None:
        """Add one figure's values, as (node, value). ``sign``: 1 if greater is better, else -1. Values beyond margin
        and deviations are left out of the centre, which bad nodes would move. Bad values count only as far as the good
        values of two nodes reach: beyond may be faults."""
        pairs = list(values)
        peers = Peers.without_the_far([value for _, value in pairs], margin, deviations)
        if peers is None or not peers.deviation:
            return
        self.count += len(pairs)
        most = peers.far(margin, deviations)
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
        """The standard error of one measurement, in deviations of the nodes, at most 1: these include it."""
        changes = [*itertools.chain(*(its.values() for its in self.changes.values()))]
        return min(1.0, MAD_TO_DEVIATION * statistics.median(changes) / math.sqrt(2)) if changes else 1.0

    def healthy_changes(self, node: str, metric: str) -> tuple[float, float, float]:
        """Three limits for the change between two measurements of the node, in deviations of its nodes: the largest
        change that good nodes showed; what tails beyond so few changes reach; and the same reach over all figures,
        beyond which the change is a fault. For the first two, one other figure alone is no measure."""
        good = [its for name, its in self.changes.items() if its and name != node and name not in self.far]
        if not good or not self.changes.get(node):
            return 0.0, 0.0, 0.0
        of_figures: dict[str, float] = defaultdict(float)
        for name, change in itertools.chain(*(its.items() for its in good)):
            of_figures[name] = max(of_figures[name], change)
        *_, second = heapq.nlargest(2, of_figures.values())
        most, count = max(second, of_figures.get(metric, 0.0)), sum(map(len, good))
        of_normal = statistics.NormalDist().inv_cdf(1 - (1 - 0.5 ** (1 / count)) / 2)  # median of the largest change
        usual, reach = 1.0, CHANGE / of_normal
        if self.reach(len(self.nodes)):
            usual, reach = reach, max(reach, math.pow(TAIL / count, 1 / 3))
        return usual * most, reach * most, reach * max(of_figures.values())

    def are_long(self, error: float) -> bool:
        """Whether the tails exceed those of normal noise, with all nodes and without any one. ``error``: chance of one
        value lowers Geary's ratio by this."""
        all_nodes = [
            (near, [math.fsum(column) for column in zip(*near.values(), strict=True)]) for near in self.figures
        ]
        for node in (None, *self.nodes):
            count, pooled = 0.0, 0.0
            for near, sums in all_nodes:
                node_near = near.get(node, (0, 0.0, 0.0)) if node is not None else (0, 0.0, 0.0)
                values, total, squares = (one - its for one, its in zip(sums, node_near, strict=True))
                if values and squares > 1e-9 * sums[2]:  # else only rounding remains
                    count, pooled = count + values, pooled + total / math.sqrt(squares / values)
            if not count or pooled / count >= GEARY - error / math.sqrt(count):
                return False
        return True

    def reach(self, nodes: int) -> float:
        """How many deviations chance explains, where the tails are long; 0 if they are those of normal noise."""
        if len(self.nodes) < CERTAIN_NODES:
            return 0.0
        usual = statistics.NormalDist().inv_cdf(1 - USUAL_COUNT / self.count) * (1 + 1.5 / nodes)
        _, second = heapq.nlargest(2, self.nodes.values())
        if second <= usual and not self.are_long(LIKELY):
            return 0.0
        return min(second, MOST_DEVIATIONS) * max(LEAST_TIMES, math.pow(TAIL / nodes, 1 / 3))


def normal_limit(levels: Sequence[float], least: float) -> tuple[float, float]:
    """The middle of the nodes' levels, and the distance that normal noise does not exceed. ``least``: the relative
    distance that matters; levels beyond it are left out. The distance is infinite if too few levels remain, or no node
    reports the figure."""
    if not levels:
        return 0.0, math.inf
    middle, near = _near(levels, least)
    if not near:
        return middle, math.inf
    deviations = max(MOST_NORMAL, NORMAL * (1 + FEW / (len(near) - 4)))
    return middle, max(least * abs(middle), deviations * statistics.stdev(near))


def deviation_of(levels: Sequence[float], least: float) -> float:
    """The standard deviation of the levels near the middle, relative to the middle; 0 if these are too few."""
    middle, near = _near(levels, least) if levels else (0.0, [])
    return statistics.stdev(near) / abs(middle) if near else 0.0


def doubtful_limit(levels: Sequence[float], least: float, deviation: float) -> float:
    """The relative distance from the middle beyond which a level is measured again; infinite if it is not known.
    ``deviation``: the robust deviation of all levels. If nodes differ by more than ``least``, those near the middle are
    no measure."""
    middle, near = _near(levels, least) if levels else (0.0, [])
    if not near:
        return math.inf
    of_near = DOUBTFUL * (1 + DOUBTFUL_OF_FEW / (len(near) - 3)) * statistics.stdev(near)
    return max(least, of_near / abs(middle), DOUBTFUL * deviation / abs(middle))


def _near(levels: Sequence[float], least: float) -> tuple[float, Sequence[float]]:
    """The middle of the levels, and the levels within ``least`` of it; none if these are too few to show a spread."""
    middle, near = statistics.median(levels), levels
    for _ in range(3):
        near = [level for level in levels if abs(level - middle) <= least * abs(middle)]
        if len(near) <= max(4, len(levels) // 2):
            return middle, []
        middle = statistics.median(near)
    return middle, near


def two_modes(levels: Sequence[float], least: float) -> tuple[list[int], list[int], bool] | None:
    """Indexes of the lower and of the upper nodes, if the levels have two modes, and whether these are certain; else
    None. ``least``: the difference of the modes' means, relative to the upper one, that matters."""
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
    """Properties that most of a few nodes have and most others lack (``rack r3``), the clearest first."""
    having = Counter(pair for node in few for pair in node.items())
    elsewhere = Counter(pair for node in rest for pair in node.items())
    # those that are rare among the others
    pairs = (pair for pair, count in having.most_common() if elsewhere[pair] * len(few) < count * len(rest) / 4)
    of_few = [
        (len(values), name, values)
        for name, values in values_by_key(pairs).items()
        if sum(having[name, value] / len(few) for value in values) >= 0.75 and len(values) <= max(1, len(few) // 2)
    ]
    return [f"{name} {', '.join(values[:4])}" for _, name, values in sorted(of_few)]
