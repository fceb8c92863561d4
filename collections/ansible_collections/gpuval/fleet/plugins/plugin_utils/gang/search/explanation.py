"""What the results of pairs mean: the usual speed, the noise, and what explains each low result; pure.

The usual speed and the good nodes depend on each other: both are found by iteration from several starting points. What
explains most comes first: boundaries with healthy nodes on both sides, links that stay low between good nodes, then
nodes, the worst first. What one cause explains does not count against any other.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from ...core.grouping import values_by_key
from .statistics import FAILED, HARD, Noise, deviation, middle
from .topology import LEVELS, Topology
from .tuning import DEFAULT, Limits, Tuning

Link = tuple[str, str]


class Measurement(NamedTuple):
    """The speed of one pair of nodes in one round. `value`: its logarithm; `tested`: nodes that the group was to test.

    An explanation adds `relative`, the value minus the centre (HARD for a failure), and `margin`, the least deviation
    that counts.
    """

    round: int
    one: str
    two: str
    purpose: str
    state: str
    value: Optional[float]
    culprits: tuple[str, ...]
    tested: tuple[str, ...] = ()
    message: str = ""
    relative: float = 0.0
    margin: float = 0.0

    @property
    def pair(self) -> Link:
        return self.one, self.two

    @property
    def is_low(self) -> bool:
        return self.relative < -self.margin

    @property
    def has_failed(self) -> bool:
        return self.relative == HARD

    def is_test_of(self, node: str) -> bool:
        return self.purpose == "confirm" and node in self.tested

    def other(self, node: str) -> str:
        return self.two if node == self.one else self.one

    def relative_to(self, centre: float | None, shifts: Mapping[int, float]) -> float:
        if self.state in FAILED or (self.state == "slow" and self.value is None):
            return HARD
        if self.value is None or centre is None:
            return 0.0
        return max(self.value - centre - shifts.get(self.round, 0.0), HARD)


@dataclass(frozen=True)
class Boundary:
    """A border in the topology with slow links. `scope`: `around` a group, `between` two, `apart`: between all,

    `inside`: all links in a group.
    """

    kind: str
    names: tuple[str, ...]
    scope: str

    def __str__(self) -> str:
        return f"{self.kind} {' - '.join(self.names)} ({self.scope})"


def by_pair(items: Iterable[Measurement]) -> dict[Link, list[Measurement]]:
    return values_by_key((item.pair, item) for item in items)


def by_partner(items: Iterable[Measurement], node: str) -> dict[str, list[float]]:
    """The relative figures of a node, by its partner."""
    return values_by_key((item.other(node), item.relative) for item in items)


@dataclass
class Explanation:
    """The causes of low `measurements`; `missing`: measurements without a result.

    `implicated`: nodes, worst first. `cleared`: nodes that fresh results no longer implicate. `bad_links` are
    confirmed, `open_links` need more tests. `explained`: measurements with a cause other than an implicated node, or
    with a worse node as partner. `outliers`: measurements that show a bad link and no bad node.
    """

    limits: Limits
    tuning: Tuning
    nodes: Sequence[str]
    measurements: Sequence[Measurement]
    missing: Sequence[Measurement]
    noise: Noise
    centre: Optional[float]
    implicated: list[str] = field(default_factory=list)
    good: set[str] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)
    bad_links: dict[Link, list[Measurement]] = field(default_factory=dict)
    open_links: dict[Link, list[Measurement]] = field(default_factory=dict)
    boundaries: dict[Boundary, list[Measurement]] = field(default_factory=dict)
    explained: set[Measurement] = field(default_factory=set)
    outliers: set[Measurement] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.margin = self.limits.margin_ratio
        #: Relative figure below which a node must be found slow.
        self.surely_slow = math.log(1 - min(0.9, self.tuning.surely_margins * self.margin))
        self.by_node: dict[str, list[Measurement]] = {node: [] for node in self.nodes}
        for item in self.measurements:
            self.by_node[item.one].append(item)
            self.by_node[item.two].append(item)

    @property
    def count(self) -> int:
        """Number of pairs that ran, with or without a result."""
        return len(self.measurements) + len(self.missing)

    def unexplained(self) -> list[Measurement]:
        return [item for item in self.measurements if item not in self.explained]

    def among_good(self) -> list[Measurement]:
        """Measurements of good nodes' pairs that need no other explanation."""
        return [item for item in self.unexplained() if self.good.issuperset(item.pair) and not item.has_failed]

    def usual(self) -> tuple[float, int]:
        """Mean of the pairs of good nodes without the farthest at both ends, and number of pairs in the mean."""
        values = sorted(item.relative for item in self.among_good())
        cut = max(1, len(values) // 10) if len(values) > 4 else 0
        return (statistics.fmean(values[cut : len(values) - cut]) if values else 0.0), len(values)

    def faster(self) -> int:
        """Number of pairs that are faster than noise explains: the usual speed is then unclear."""
        return sum(item.relative > self.tuning.gross for item in self.measurements)

    def most_tests(self) -> int:
        """Number of fresh tests after which a node stays suspect; three nodes leave no rounds for more."""
        is_small = self.tuning.several < len(self.nodes) <= self.tuning.small_gang
        return self.tuning.small_gang_tests if is_small else self.tuning.tests

    def is_too_low(self, values: Sequence[float], pair_count: int) -> bool:
        """Whether the mean of the values is further below `pair_count` good pairs than chance explains."""
        return self.noise.score(values, pair_count) <= -self.noise.bar(self.tuning.score)

    def attribute(self, topology: Topology) -> None:
        """Fill in boundaries, links, implicated, cleared and good nodes."""
        for level in LEVELS:
            self._find_boundaries(topology, level)
        self._find_bad_links()
        self._find_outlying_pairs()
        self._implicate_nodes()
        self._find_open_links()

    def _find_boundaries(self, topology: Topology, level: str) -> None:
        groups = topology.groups(level, self.nodes)
        if len(groups) < 2:
            return
        group_of = {node: name for name, nodes in groups.items() for node in nodes}
        grouped = (item for item in self.unexplained() if item.one in group_of and item.two in group_of)
        crossing = [item for item in grouped if group_of[item.one] != group_of[item.two]]
        if sum(item.is_low for item in crossing) < self.tuning.several:
            return
        around: dict[str, list[Measurement]] = defaultdict(list)
        between: dict[Link, list[Measurement]] = defaultdict(list)
        for item in crossing:
            first, second = sorted((group_of[item.one], group_of[item.two]))
            between[first, second].append(item)
            around[first].append(item)
            around[second].append(item)
        if len(groups) > 2:
            for name, items in around.items():
                self._add_boundary(Boundary(level, (name,), "around"), items, group_of)
        for names, items in between.items():
            unexplained = [item for item in items if item not in self.explained]
            self._add_boundary(Boundary(level, names, "between"), unexplained, group_of)

    def _add_boundary(self, boundary: Boundary, items: list[Measurement], group_of: Mapping[str, str]) -> None:
        """Add the boundary if nodes that are fine elsewhere are low across it."""
        across, lows = set(items), [item for item in items if item.is_low]
        fine = set()
        for node in {node for item in items for node in item.pair}:
            elsewhere = [not item.is_low for item in self.by_node[node] if item not in across]
            if any(elsewhere) and 2 * sum(elsewhere) >= len(elsewhere):
                fine.add(node)
        # Both sides must be fine: otherwise the partner may be the bad node.
        clear = [item for item in items if fine.issuperset(item.pair)]
        low = [item for item in clear if item.is_low]
        if len(low) < max(self.tuning.several, self.tuning.share * len(clear)):
            return
        is_inside = {node: group_of[node] == boundary.names[0] for item in low for node in item.pair}
        if 2 <= sum(is_inside.values()) <= len(is_inside) - 2:
            self.boundaries[boundary] = items
            self.explained.update(lows)

    def _find_bad_links(self) -> None:
        """Find links between nodes that are fine, measured again because they were low, and low each time."""
        tuning = self.tuning
        for pair, repeats in by_pair(item for item in self.unexplained() if item.purpose == "link").items():
            soft = sorted(item.relative for item in repeats if item.relative > HARD)
            of_pair = [item for item in self.by_node[pair[0]] if item.pair == pair]
            if len(soft) == len(repeats) > tuning.partners:
                again = soft[1:]  # a single result may be slow by chance
                level = statistics.median(again)
                is_low = level < -self.margin and self.is_too_low(again, self.count - len(of_pair))
            else:
                level, is_low = HARD, not soft and len(repeats) >= tuning.several
            if not is_low:
                continue
            each_time = all(item.relative <= level / (tuning.link_times / 2) for item in of_pair)
            # With other partners: a slow node may look like a slow link by chance.
            aside = self.explained.union(of_pair)
            elsewhere = ([item.relative for item in self.by_node[node] if item not in aside] for node in pair)
            if all(self._are_right(v, level) or (each_time and self._are_far_above(v, level)) for v in elsewhere):
                self.bad_links[pair] = of_pair
                self.explained.update(of_pair)

    def _are_right(self, values: Sequence[float], level: float) -> bool:
        """Whether most of a node's other results are right, and their mean too, unless the pair fails."""
        right = sum(value >= -self.margin for value in values)
        soft = [value for value in values if value > HARD]
        return 2 * right > len(values) and (level == HARD or statistics.fmean(soft) > -self.margin / 2)

    def _are_far_above(self, values: Sequence[float], level: float) -> bool:
        """Whether a pair is so much slower than its node's other results that the link must be the cause."""
        times = self.tuning.link_times
        level = -self.tuning.gross * times if level == HARD else level
        return bool(values) and min(values) > level / (times / 2) and statistics.fmean(values) > level / times

    def _find_outlying_pairs(self) -> None:
        """Find pairs far slower than both nodes explain: noise elsewhere must not turn such a link into a bad node.

        A node that is also low, or fails, with another partner may be slow with some partners only, or intermittent.
        """
        least, of_pair = self.tuning.gross, by_pair(self.unexplained())
        has_failed = {pair: any(item.has_failed for item in items) for pair, items in of_pair.items()}
        failing = Counter(node for pair in of_pair if has_failed[pair] for node in pair)
        of_node: dict[str, dict[Link, float]] = defaultdict(dict)
        for pair, items in of_pair.items():
            for node in pair:
                of_node[node][pair] = statistics.fmean(item.relative for item in items)
        outliers: list[Link] = []
        for pair, items in of_pair.items():
            highest = max(item.relative for item in items)
            if highest >= -least or any(failing[node] > has_failed[pair] for node in pair):
                continue
            partner_means = [[mean for other, mean in of_node[node].items() if other != pair] for node in pair]
            if all(len(means) >= self.tuning.partners for means in partner_means):
                explained = sum(min(0.0, middle(means)) for means in partner_means)
                if highest - explained < -least:
                    outliers.append(pair)
        count = Counter(node for pair in outliers for node in pair)
        for pair in outliers:
            if all(count[node] == 1 for node in pair):
                self.outliers.update(of_pair[pair])

    def _implicate_nodes(self) -> None:
        """Implicate the worst node first, until no node is worse than its partners explain."""
        aside = self.explained | self.outliers
        live = {node: [item for item in items if item not in aside] for node, items in self.by_node.items()}
        candidates = {node: badness for node in live if (badness := self._badness(node, live[node]))}
        while candidates:
            node = max(candidates, key=candidates.__getitem__)
            self.implicated.append(node)
            del candidates[node]
            for item in live[node]:
                if item.is_low:
                    partner = item.other(node)
                    self.explained.add(item)
                    live[partner].remove(item)
                    if partner in candidates:
                        if badness := self._badness(partner, live[partner]):
                            candidates[partner] = badness
                        else:
                            del candidates[partner]
        right = {node: sum(not item.is_low for item in items) for node, items in live.items()}
        self.good = {node for node in live if right[node] >= self.tuning.partners} - set(self.implicated)

    def _badness(self, node: str, items: Sequence[Measurement]) -> tuple[float, ...] | None:
        """The sort key of an implicated node: share of partners that saw it low, then how low; None for other nodes."""
        if not any(item.is_low for item in items):
            return None
        if self._is_cleared(node, items):
            self.cleared.add(node)
            return None
        partners = by_partner(items, node).values()
        is_named = any(item.has_failed and node in item.culprits for item in items)
        means = [statistics.fmean(values) for values in partners]
        failing = sum(min(values) == HARD for values in partners)
        if (where := middle(means)) >= -self.margin and failing < self.tuning.partners:
            return None
        share = sum(mean < -self.margin for mean in means) / len(means)
        return share, float(is_named), float(len(means)), -where

    def _is_cleared(self, node: str, items: Sequence[Measurement]) -> bool:
        """Whether the fresh results alone show that the node is not slow: surely, or after all tests by their mean.

        This covers chance in figures only: a node that failed is never cleared.
        """
        tuning = self.tuning
        fresh = [item.relative for item in items if item.is_test_of(node)]
        needed = tuning.partners + 1 if len(self.nodes) > tuning.small_gang else tuning.tests
        if len(fresh) < needed or any(item.has_failed for item in items):
            return False
        if len(fresh) >= tuning.tests:
            return statistics.fmean(fresh) >= -self.margin
        elsewhere = self.count - len(self.by_node[node])
        least = self.surely_slow + tuning.sure_score * self.noise.error(len(fresh), elsewhere)
        return statistics.fmean(fresh) >= max(-self.margin, least)

    def _find_open_links(self) -> None:
        """Find low pairs of nodes that are both fine: a bad link, chance, or an intermittent node."""
        bound = max(self.margin, self.tuning.link_deviations * self.noise.sigma)
        bounds = {"link": self.margin, "control": 2 * bound}
        apart = [
            item for item in self.unexplained() if item in self.outliers or set(item.pair).isdisjoint(self.implicated)
        ]
        tested = by_pair(item for item in apart if item.purpose == "link")
        for pair, low in by_pair(item for item in apart if item.relative < -bounds.get(item.purpose, bound)).items():
            fresh = [item.relative for item in tested.get(pair, ())]
            if any(item.has_failed for item in low) or not fresh or statistics.fmean(fresh) < -self.margin:
                self.open_links[pair] = low


def explain(
    nodes: Sequence[str],
    topology: Topology,
    limits: Limits,
    measurements: Sequence[Measurement],
    tuning: Tuning = DEFAULT,
) -> Explanation:
    """Explain all measured pairs; `nodes` in the order of the ring."""
    tier = _find_tier(nodes, topology, limits, measurements, tuning)
    if tier is None:
        return _Explainer(nodes, topology, limits, measurements, tuning).explain()
    offset, level = tier
    group = {node: topology.place(node, level) for node in nodes}
    flat = [
        item._replace(value=item.value - offset)
        if item.value is not None and group[item.one] != group[item.two]
        else item
        for item in measurements
    ]
    explanation = _Explainer(nodes, topology, limits, flat, tuning).explain()
    if not limits.tapered:
        boundary = Boundary(level, tuple(topology.groups(level, nodes)), "apart")
        explanation.boundaries[boundary] = [
            item for item in explanation.measurements if item.value is not None and group[item.one] != group[item.two]
        ]
    return explanation


def _find_tier(
    nodes: Sequence[str], topology: Topology, limits: Limits, measurements: Sequence[Measurement], tuning: Tuning
) -> tuple[float, str] | None:
    """How much slower pairs of different groups are, and at which level, if this is so as a rule; else None.

    With only two groups there is one boundary, which is reported as such instead.
    """
    for level in LEVELS:
        groups = topology.groups(level, nodes)
        if len(groups) < 3:
            continue
        group_of = {node: name for name, members in groups.items() for node in members}
        within: list[float] = []
        across: list[float] = []
        pairs = set()
        for item in measurements:
            if item.value is not None and item.one in group_of and item.two in group_of:
                ends = frozenset((group_of[item.one], group_of[item.two]))
                (within if len(ends) == 1 else across).append(item.value)
                pairs |= {ends} if len(ends) == 2 else set()
        if min(len(within), len(pairs)) < tuning.several:
            continue
        usual = statistics.median(within)
        if sum(value - usual < -limits.margin_ratio for value in across) >= tuning.share * len(across):
            return statistics.median(across) - usual, level
    return None


def _speeds(items: Iterable[Measurement]) -> list[float]:
    """The logarithms of the speeds of those measurements that have one."""
    return [item.value for item in items if item.value is not None]


@dataclass(frozen=True)
class _Explainer:
    nodes: Sequence[str]
    topology: Topology
    limits: Limits
    measurements: Sequence[Measurement]
    tuning: Tuning

    def explain(self) -> Explanation:
        """Compare with the highest speed that most nodes reach: where many nodes are slow, the median is slow too.

        A speed that fewer nodes reach counts if no other node reaches it with any partner. (Where near pairs are faster
        by nature, every node has a fast partner.)
        """
        timed = by_pair(item for item in self.measurements if item.value is not None)
        if not timed:
            return self._explain_from(None)
        medians = sorted(statistics.median(_speeds(items)) for items in timed.values())
        # Of three nodes with a slow one, a single pair has the usual speed.
        is_few = len(self.nodes) <= self.tuning.several
        high = medians[-1] if is_few else medians[int(0.9 * (len(medians) - 1))]
        for start in (high, self._better_half(), statistics.median(medians)):
            explanation = self._explain_from(start)
            if self._is_usual(explanation) or self._is_isolated(explanation):
                break
        return explanation

    def _is_usual(self, explanation: Explanation) -> bool:
        """Whether most nodes with figures reach this usual speed."""
        timed = [[item for item in items if item.value is not None] for items in explanation.by_node.values()]
        reached = sum(
            node not in explanation.implicated and not all(item.is_low for item in items)
            for node, items in zip(self.nodes, timed)
        )
        return reached >= self.tuning.most * sum(map(bool, timed))

    def _is_isolated(self, explanation: Explanation) -> bool:
        """Whether a few nodes are fast with each other, and all others are far slower with every partner."""
        several, slow = self.tuning.several, (node for node in self.nodes if node not in explanation.good)
        near = -several * self.limits.margin_ratio
        return len(explanation.good) >= several and not any(
            item.relative >= near for node in slow for item in explanation.by_node[node]
        )

    def _explain_from(self, centre: float | None) -> Explanation:
        """Compute good nodes from the centre, and the centre from good nodes, until both are stable."""
        shifts: dict[int, float] = {}
        limits, tuning = self.limits, self.tuning
        explanation: Explanation | None = None
        residuals: list[float] = []
        means = 1
        missing = [item for item in self.measurements if item.state == "missing"]
        for turn in range(tuning.iterations):
            measured = [
                item._replace(relative=item.relative_to(centre, shifts), margin=limits.margin_ratio)
                for item in self.measurements
                if item.state != "missing"
            ]
            # The noise of one measurement: at first the expected noise, then the residuals of the explanation.
            if explanation:
                residuals, means = _residuals(explanation, centre, shifts)
            sigma = deviation(residuals, limits.noise_ratio, means, tuning)
            noise = Noise(sigma, max(0, len(residuals) - means), limits.noise_ratio, tuning)
            explanation = Explanation(limits, tuning, self.nodes, measured, missing, noise, centre)
            explanation.attribute(self.topology)
            good = [(item.round, item.value) for item in explanation.among_good() if item.value is not None]
            if centre is None or not good:
                break
            moved = statistics.median(value - shifts.get(number, 0.0) for number, value in good)
            # How much faster or slower each round was as a whole.
            rounds = values_by_key((number, value - moved) for number, value in good)
            least = tuning.round_pairs
            new_shifts = {n: statistics.median(values) for n, values in rounds.items() if len(values) >= least}
            settled = (moved, shifts) == (centre, new_shifts)
            centre, shifts = moved, new_shifts
            if turn > 0 and settled:
                break
        assert explanation  # the loop runs at least once
        return explanation

    def _better_half(self) -> float:
        """Median speed of pairs in the better half of the nodes, within one outermost group if enough pairs are."""
        speeds: dict[str, list[float]] = {node: [] for node in self.nodes}
        for item in self.measurements:
            speeds[item.one] += _speeds([item])
            speeds[item.two] += _speeds([item])
        middles = {node: middle(values) for node, values in speeds.items() if values}
        ranked = sorted(middles, key=middles.__getitem__, reverse=True)
        best = set(ranked[: max(2, (len(ranked) + 1) // 2)])
        of_best = [item for item in self.measurements if best.issuperset(item.pair)]
        group = {node: self.topology.place(node, LEVELS[0]) for node in self.nodes}
        for measured in (of_best, self.measurements):
            near = _speeds(item for item in measured if group[item.one] == group[item.two])
            if len(near) >= self.tuning.several:
                return statistics.median(near)
        return statistics.median(_speeds(of_best) or _speeds(self.measurements))


def _residuals(explanation: Explanation, centre: float | None, shifts: Mapping[int, float]) -> tuple[list[float], int]:
    """The differences of figures from the mean that explains them, and the number of these means.

    Good pairs share one mean. Implicated nodes and pairs that were repeated because they were low have a mean of their
    own: their offset is not noise, and without their residuals the noise would be too small.
    """
    relative = {item: item.relative_to(centre, shifts) for item in explanation.measurements}
    unpaired = {
        item: relative[item]
        for item in explanation.unexplained()
        if explanation.good.issuperset(item.pair) and relative[item] > HARD
    }
    of_links = explanation.outliers.union(*explanation.bad_links.values())
    sharing_means = [
        [item for item in explanation.by_node[node] if item.other(node) in explanation.good and item not in of_links]
        for node in explanation.implicated
    ]
    sharing_means += [
        [item for item in explanation.by_node[pair[0]] if item.pair == pair]
        for pair in (*explanation.open_links, *explanation.bad_links)
    ]
    residuals: list[float] = []
    means = 1
    for items in sharing_means:
        values = [value for item in items if (value := relative[item]) > HARD]
        if len(values) > 1:
            mean = statistics.fmean(values)
            residuals += [value - mean for value in values]
            means += 1
            for item in items:
                unpaired.pop(item, None)
    return [*unpaired.values(), *residuals], means
