"""Statistics to compare a GPU, link or node with its peers: distance from their median, noise, tails and modes.

Tails longer than normal noise are measured on the side of good figures, where no fault hides them. Two modes, as of two
hardware revisions, are found by the gap between them. The functions are pure.
"""

import heapq
import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..core import units
from ..core.grouping import values_by_key

#: Fewer parts than this are not compared: of two that differ, either may be wrong.
MIN_PARTS = 3
#: Factor from the median absolute deviation to the standard deviation of normal noise (Rousseeuw, Croux 1993).
MAD_TO_DEVIATION = 1.4826
#: The spread of few nodes is uncertain: among n nodes, 1 + this/n times as many deviations make an outlier. Simulated:
#: of 8 to 40 healthy nodes at most about 1 in 1,000 fails, also where nodes differ as Student's t with 3 degrees.
FEW_NODES = 24
#: Like FEW_NODES, for parts (GPUs, links) compared with the other parts of their node.
FEW_NODES_OF_PARTS = 8
#: Like FEW_NODES, where the n parts of a single node are the only peers.
FEW_PARTS = 8
#: A warning needs this share of a failure's deviations; FEW_NODES_TO_WARN is for a warning what FEW_NODES is for FAIL.
FEW_NODES_TO_WARN, SHARE_TO_WARN = 4, 0.8
#: The standard error of a median of n normal values is this times their deviation, over the root of n.
MEDIAN_ERROR = 1.2533
#: With fewer nodes, the limit beyond which a value is left out of median and spread is also widened by FEW_NODES.
FEW_TO_LEAVE_OUT = 24
#: A part this many deviations off the median is faulty, also in a single node: normal noise does this once in 100,000.
#: The deviation is one that other machines of the SKU showed.
KNOWN = 4.265
#: Assumed number of measurements behind a published spread that does not say how many it is from.
FEWEST_MEASUREMENTS = 4


def widened(deviations: float, nodes: int, few: float = FEW_NODES) -> float:
    """How many deviations from the median are normal if the spread comes from this number of nodes. ``deviations``: the
    number for very many nodes; ``few``: see FEW_NODES."""
    return deviations * (1 + few / nodes)


def borrowed_deviation(value: float, count: int | None = None, between_sites: float | None = None) -> float:
    """The relative standard deviation to assume for parts whose spread ``value`` was measured on other machines.
    ``count``: the number of nodes (or passes on one) behind it, each a degree of freedom of Student's t (Wallace 1959).
    ``between_sites``: relative deviation between sites; if None, as large as ``value``."""
    freedom = count or FEWEST_MEASUREMENTS
    reach = (KNOWN * (8 * freedom + 3) / (8 * freedom + 1)) ** 2
    of_student = math.sqrt(freedom * math.expm1(reach / freedom)) / KNOWN
    return of_student * math.hypot(value, value if between_sites is None else between_sites)


@dataclass(frozen=True)
class Peers:
    """Statistics of the figures of peers. ``deviation``: scaled median absolute deviation, in the figures' unit."""

    median: float
    deviation: float
    count: int

    @classmethod
    def around(cls, values: Sequence[float]) -> "Peers":
        """Median, deviation and count of the values, of which there is at least one."""
        median = statistics.median(values)
        return cls(median, MAD_TO_DEVIATION * statistics.median([abs(value - median) for value in values]), len(values))

    @classmethod
    def of(cls, values: Sequence[float], *, floor_ratio: float = 0.0) -> "Peers | None":
        """The statistics of the values; None if there are too few, or their median is 0. ``floor_ratio``: smallest
        deviation, relative to the median: that of repeats, as peers may agree better by chance."""
        peers = cls.around(values) if len(values) >= MIN_PARTS else None
        if peers is None or peers.median == 0:
            return None
        return replace(peers, deviation=max(peers.deviation, floor_ratio * abs(peers.median)))

    @classmethod
    def without_the_far(
        cls, values: Sequence[float], margin: float, deviations: float, *, floor_ratio: float = 0.0
    ) -> "Peers | None":
        """Median and deviation of the values without outliers, since a bad third moves a median and widens a spread.
        Values farther off than both ``margin`` (relative) and ``deviations`` are left out, repeatedly, until none is or
        half of the values are left out."""
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
        """The values that are at most ``margin`` (relative) or ``deviations`` away from the median."""
        far = self.far(margin, deviations)
        return [value for value in values if abs(value - self.median) <= far]

    def change(self, value: float) -> float:
        """The value's relative distance from the median: -0.05 is 5 % below."""
        return (value - self.median) / abs(self.median)

    def is_outlier(self, value: float, max_below: float | None, max_above: float | None, deviations: float) -> bool:
        """Whether the value is outside the allowed relative changes from the median (None: no limit on that side), and
        farther from the median than ``deviations`` times the peers' deviation."""
        return self.is_beyond(value, max_below, max_above, deviations * self.deviation)

    def is_beyond(self, value: float, max_below: float | None, max_above: float | None, distance: float) -> bool:
        """Whether the value is outside the allowed relative changes from the median (None: no limit on that side), and
        farther from the median than ``distance``, in the unit of the figures."""
        if abs(value - self.median) <= distance:
            return False
        change = self.change(value)
        return (max_below is not None and change < -max_below) or (max_above is not None and change > max_above)

    def badness(self, value: float, max_below: float | None, max_above: float | None) -> float:
        """The value's change from the median relative to the allowed one: of parts that pass, 1 is nearest to
        failing."""
        change = self.change(value)
        return max(off / most for most, off in ((max_below, -change), (max_above, change)) if most is not None)


def deviation_text(change: float) -> str:
    """A relative change as text: "5 % under"."""
    return f"{units.number_text(abs(change) * 100)} % {'under' if change < 0 else 'over'}"


def majority(values: Sequence[str]) -> str | None:
    """The value that more than half of ``values`` have, None if there is none."""
    return next((value for value, count in Counter(values).most_common(1) if 2 * count > len(values)), None)


#: Fewer nodes than MODE_NODES, or than MODE_SHARE of all, are outliers and no mode. A certain mode has CERTAIN_NODES.
MODE_NODES, CERTAIN_NODES, MODE_SHARE = 2, 3, 0.15
#: Means of two modes are at least APART deviations (within the modes) apart. Two modes among n nodes are certain beyond
#: APART + APART_OF_FEW/n**2 deviations: chance splits about 1 in 2,000 healthy fleets of 8 to 24 nodes so (simulated).
APART, APART_OF_FEW = 5.0, 400.0
#: No node lies in the gap between two modes, which is at least this many deviations (within the modes) wide.
GAP = 1.5
#: The mean deviation of normal noise over the standard one (Geary 1935); of Student's t with 3 degrees it is 0.64.
GEARY = math.sqrt(2 / math.pi)
#: Chance lowers Geary's ratio of n values by LIKELY (CERTAIN) over the root of n in 1 of 20 (1 of 100) fleets.
LIKELY, CERTAIN = 0.28, 0.48
#: Where so many values of a fleet with normal noise are expected beyond a bound, 1 of 6 fleets has two there.
USUAL_COUNT = 0.7
#: Cap on a tail's length in deviations: beyond it the deviation itself is too narrow by chance.
MOST_DEVIATIONS = 6.0
#: With long tails (Student's t with 3 degrees), an outlier among n nodes is the cube root of TAIL/n times as far off as
#: the second best node, and at least ``LEAST_TIMES`` as far. About 1 of 1,000 healthy nodes is beyond.
TAIL, LEAST_TIMES = 3000.0, 2.0
#: Only 1 of 40,000 changes between two measurements with normal noise is larger than so many deviations.
CHANGE = 4.2

#: A node's speed is normal up to NORMAL x (1 + FEW/(n - 4)) deviations of n nodes, and always up to MOST_NORMAL.
NORMAL, FEW, MOST_NORMAL = 3.5, 2.0, 5.5
#: A node beyond DOUBTFUL x (1 + DOUBTFUL_OF_FEW/(n - 3)) deviations is measured again: 1 of 1,000 healthy nodes.
DOUBTFUL, DOUBTFUL_OF_FEW = 3.1, 3.2


@dataclass
class Tails:
    """How the figures of nodes scatter: as normal noise or with longer tails, and how far good figures lie from the
    median. A single node with figures that are too good to be true does not lengthen the tails."""

    #: For each figure ``{node: (count, sum, sum of squares)}`` of the absolute distances from the median that count.
    figures: list[dict[str, tuple[int, float, float]]] = field(default_factory=list)
    #: For each node how much better than the median its best figure is, in deviations of that figure.
    nodes: dict[str, float] = field(default_factory=dict)
    count: int = 0
    #: ``ahead``: ``{stage: {node: lead over the median}}``. ``changes``: ``{node: {metric: difference between two
    #: measurements}}``. Both in deviations of the nodes.
    ahead: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    changes: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    #: ``{node: {metric: relative deviation of the nodes that the node is compared with}}``.
    deviations: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    #: Names of nodes with a bad outlier among their measurements: how these change is no measure for healthy nodes.
    far: set[str] = field(default_factory=set)

    def add(self, values: Iterable[tuple[str, float]], margin: float, deviations: float, sign: int) -> None:
        """Add one figure's values, as (node, value). ``sign``: 1 if greater is better, else -1. Values beyond both
        ``margin`` (relative) and ``deviations`` are left out of the median, which bad nodes would move. Bad values
        farther off than the second best node may be faults and do not count."""
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
        """The standard error of one measurement, in deviations of the nodes, which contain it: it is at most 1."""
        changes = [*itertools.chain(*(its.values() for its in self.changes.values()))]
        return min(1.0, MAD_TO_DEVIATION * statistics.median(changes) / math.sqrt(2)) if changes else 1.0

    def healthy_changes(self, node: str, metric: str) -> tuple[float, float, float]:
        """Three limits for the change of a metric between two measurements of one node, in deviations of the nodes:
        the largest change that healthy nodes showed, the largest expected from their tails, and the largest expected in
        any metric, beyond which the change is a fault. All are 0 if this node or all others were not measured twice."""
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
        """Whether the tails are longer than those of normal noise, whichever single node is left out. ``error``: LIKELY
        or CERTAIN, how much chance lowers Geary's ratio of one value."""
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
        """How many deviations chance explains in a group of so many nodes with long tails; 0 if the noise is normal."""
        if len(self.nodes) < CERTAIN_NODES:
            return 0.0
        usual = statistics.NormalDist().inv_cdf(1 - USUAL_COUNT / self.count) * (1 + 1.5 / nodes)
        _, second = heapq.nlargest(2, self.nodes.values())
        if second <= usual and not self.are_long(LIKELY):
            return 0.0
        return min(second, MOST_DEVIATIONS) * max(LEAST_TIMES, math.pow(TAIL / nodes, 1 / 3))


@dataclass(frozen=True)
class NormalNoise:
    """How the speeds of nodes scatter near their middle, without the nodes that are far from it.

    ``middle``: median of the near speeds. ``deviation``: their standard deviation, in the unit of the speeds.
    ``count``: how many speeds are near, 0 if they are too few to show a deviation. ``least``: the distance that
    matters, relative to the middle; speeds beyond it are not near.
    """

    middle: float
    deviation: float
    count: int
    least: float

    @classmethod
    def of(cls, speeds: Sequence[float], least: float) -> "NormalNoise":
        """The noise of these speeds, of which there may be none."""
        middle, near = statistics.median(speeds) if speeds else 0.0, speeds
        for _ in range(3):
            near = [speed for speed in speeds if abs(speed - middle) <= least * abs(middle)]
            if len(near) <= max(4, len(speeds) // 2):
                return cls(middle, 0.0, 0, least)
            middle = statistics.median(near)
        distances = [speed - middle for speed in near]
        squares = math.fsum(one**2 for one in distances) - math.fsum(distances) ** 2 / len(near)
        return cls(middle, math.sqrt(max(0.0, squares) / (len(near) - 1)), len(near), least)

    @property
    def limit(self) -> float:
        """The distance from the middle, in the unit of the speeds, that normal noise does not exceed; infinite if too
        few speeds are near."""
        if not self.count:
            return math.inf
        deviations = max(MOST_NORMAL, NORMAL * (1 + FEW / (self.count - 4)))
        return max(self.least * abs(self.middle), deviations * self.deviation)

    @property
    def relative_deviation(self) -> float:
        """The standard deviation relative to the middle; 0 if too few speeds are near."""
        return self.deviation / abs(self.middle) if self.count else 0.0

    def doubtful_limit(self, deviation: float) -> float:
        """The distance, relative to the middle, beyond which a node is measured again; infinite if too few speeds are
        near. ``deviation``: the robust deviation of all speeds: if nodes differ by more than ``least``, the near ones
        are no measure."""
        if not self.count:
            return math.inf
        of_near = DOUBTFUL * (1 + DOUBTFUL_OF_FEW / (self.count - 3)) * self.deviation
        return max(self.least, of_near / abs(self.middle), DOUBTFUL * deviation / abs(self.middle))


def two_modes(levels: Sequence[float], least: float) -> tuple[list[int], list[int], bool] | None:
    """Split nodes by their relative figures (``levels``) into two modes: indexes of lower and upper nodes, and whether
    chance is excluded; None for one mode. ``least``: smallest relative difference of the modes' means that matters."""
    count = len(levels)
    side = max(MODE_NODES, math.ceil(MODE_SHARE * count))
    if 2 * side > count:
        return None
    order = sorted(range(count), key=levels.__getitem__)
    ordered = [levels[number] for number in order]
    sums = [0.0, *itertools.accumulate(ordered)]

    def between(at: int) -> float:
        """How much scatter two modes explain that are split at this index of the sorted levels."""
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
    """Properties that most nodes of ``few`` have and most of ``rest`` lack ("rack r3"), the clearest first. Each node
    is given as its properties, ``{name: value}``."""
    having = Counter(pair for node in few for pair in node.items())
    elsewhere = Counter(pair for node in rest for pair in node.items())
    # a property counts only if its share among the other nodes is below a quarter of its share among the few
    pairs = (pair for pair, count in having.most_common() if elsewhere[pair] * len(few) < count * len(rest) / 4)
    of_few = [
        (len(values), name, values)
        for name, values in values_by_key(pairs).items()
        if sum(having[name, value] / len(few) for value in values) >= 0.75 and len(values) <= max(1, len(few) // 2)
    ]
    return [f"{name} {', '.join(values[:4])}" for _, name, values in sorted(of_few)]
