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
from .pair_noise import FAILED, HARD, PairNoise, deviation, middle
from .search_limits import TUNING, SearchLimits
from .topology import LEVELS, Topology

#: Names of the two nodes of a pair.
Link = tuple[str, ...]


class PairMeasurement(NamedTuple):
    """The speed of one pair of nodes in one round. `tested`: nodes that it was to test; `value`: the speed's logarithm.
    An explanation adds `relative`, the value minus the centre (HARD: failed), and whether it `is_low` by more than the
    margin."""

    round: int
    pair: Link
    purpose: str
    tested: tuple[str, ...]
    state: str
    value: Optional[float]
    message: str = ""
    relative: float = 0.0
    is_low: bool = False

    @property
    def has_failed(self) -> bool:
        return self.relative == HARD

    def is_test_of(self, node: str) -> bool:
        return self.purpose == "confirm" and node in self.tested

    def other(self, node: str) -> str:
        return self.pair[self.pair[0] == node]

    def relative_to(self, centre: float | None, shifts: Mapping[int, float]) -> float:
        if self.state in FAILED or (self.state == "slow" and self.value is None):
            return HARD
        if self.value is None or centre is None:
            return 0.0
        return max(self.value - centre - shifts.get(self.round, 0.0), HARD)


@dataclass(frozen=True)
class TopologyBoundary:
    """A border in the topology with slow links. `scope`: `around` a group, `between` two, `apart`: between all,
    `inside`: all links in a group."""

    kind: str
    names: tuple[str, ...]
    scope: str

    def __str__(self) -> str:
        return f"{self.kind} {' - '.join(self.names)} ({self.scope})"


def by_pair(items: Iterable[PairMeasurement]) -> dict[Link, list[PairMeasurement]]:
    return values_by_key((item.pair, item) for item in items)


def by_partner(items: Iterable[PairMeasurement], node: str) -> dict[str, list[float]]:
    """``{partner: relative speeds}`` of a node's measurements."""
    return values_by_key((item.other(node), item.relative) for item in items)


@dataclass
class PairExplanation:
    """The causes of low `measurements`; `missing`: measurements without a result. `implicated`: nodes, worst first.
    `bad_links` are confirmed, `open_links` need more tests. `explained`: measurements with a cause other than an
    implicated node, or with a worse node as partner. `outliers`: measurements that show a bad link and no bad node."""

    limits: SearchLimits
    nodes: Sequence[str]
    measurements: Sequence[PairMeasurement]
    missing: Sequence[PairMeasurement]
    noise: PairNoise
    centre: Optional[float]
    implicated: list[str] = field(default_factory=list)
    good: set[str] = field(default_factory=set)
    bad_links: dict[Link, list[PairMeasurement]] = field(default_factory=dict)
    open_links: dict[Link, list[PairMeasurement]] = field(default_factory=dict)
    boundaries: dict[TopologyBoundary, list[PairMeasurement]] = field(default_factory=dict)
    explained: set[PairMeasurement] = field(default_factory=set)
    outliers: set[PairMeasurement] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.margin = self.limits.margin_ratio
        #: Relative figure below which a node must be found slow.
        self.surely_slow = math.log(1 - min(0.9, TUNING.surely_margins * self.margin))
        self.by_node: dict[str, list[PairMeasurement]] = {node: [] for node in self.nodes}
        for item in self.measurements:
            for node in item.pair:
                self.by_node[node].append(item)

    @property
    def count(self) -> int:
        """Number of measurements of pairs, with or without a result."""
        return len(self.measurements) + len(self.missing)

    def unexplained(self) -> list[PairMeasurement]:
        return [item for item in self.measurements if item not in self.explained]

    def among_good(self) -> list[PairMeasurement]:
        """Measurements of good nodes' pairs that need no other explanation."""
        return [item for item in self.unexplained() if self.good.issuperset(item.pair) and not item.has_failed]

    def usual(self) -> tuple[float, int]:
        """Mean of the pairs of good nodes without the farthest at both ends, and number of pairs in the mean."""
        values = sorted(item.relative for item in self.among_good())
        cut = max(1, len(values) // 10) if len(values) > 4 else 0
        return (statistics.fmean(values[cut : len(values) - cut]) if values else 0.0), len(values)

    def faster(self) -> int:
        """Number of pairs that are faster than noise explains: the usual speed is then unclear."""
        return sum(item.relative > TUNING.gross for item in self.measurements)

    def residuals(self, centre: float | None, shifts: Mapping[int, float]) -> tuple[list[float], int]:
        """The differences of figures around this centre from the mean that explains them, and the number of means. Good
        pairs share one mean. Implicated nodes and low pairs have a mean of their own, as their offset is not noise:
        without their residuals the noise would be too small."""
        links = self.open_links.keys() | self.bad_links
        by_cause: dict[Link | str, list[float]] = defaultdict(list)
        for item in self.measurements:
            bad = [node for node in item.pair if node not in self.good]
            if (relative := item.relative_to(centre, shifts)) == HARD:
                continue
            if item.pair in links:
                by_cause[item.pair].append(relative)
            elif not bad and item not in self.explained:
                by_cause[""].append(relative)
            elif len(bad) == 1 and bad[0] in self.implicated:
                by_cause[bad[0]].append(relative)
        residuals = by_cause.pop("", [])
        means = [(statistics.fmean(values), values) for values in by_cause.values() if len(values) > 1]
        return [*residuals, *(value - mean for mean, values in means for value in values)], 1 + len(means)

    def is_centred(self) -> bool:
        """Whether most nodes with figures reach the usual speed, or a few are fast with each other, and all others far
        slower with every partner. (Where near pairs are faster by nature, every node has a fast partner.)"""
        timed = {node: [item for item in items if item.value is not None] for node, items in self.by_node.items()}
        reached = sum(
            node not in self.implicated and not all(item.is_low for item in items) for node, items in timed.items()
        )
        if reached >= TUNING.most * sum(map(bool, timed.values())):
            return True
        slow, near = (node for node in self.nodes if node not in self.good), -TUNING.several * self.margin
        is_near = any(item.relative >= near for node in slow for item in self.by_node[node])
        return len(self.good) >= TUNING.several and not is_near

    def most_tests(self) -> int:
        """Number of fresh tests after which a node stays suspect; three nodes leave no rounds for more."""
        is_small = TUNING.several < len(self.nodes) <= TUNING.small_gang
        return TUNING.small_gang_tests if is_small else TUNING.tests

    def is_too_low(self, values: Sequence[float], pair_count: int) -> bool:
        """Whether the mean of the values is further below `pair_count` good pairs than chance explains."""
        return self.noise.score(values, pair_count) <= -self.noise.bar(TUNING.score)

    def attribute(self, topology: Topology) -> None:
        """Find the boundaries, links and nodes that explain low measurements, and the good nodes."""
        for level in LEVELS:
            self._find_boundaries(topology, level)
        self._find_links()
        self._implicate_nodes()
        self._find_open_links()

    def _find_boundaries(self, topology: Topology, level: str) -> None:
        """Find boundaries that are low between nodes which are fine elsewhere: around a group, then between two."""
        crossing: dict[TopologyBoundary, list[PairMeasurement]] = defaultdict(list)
        for item in self.unexplained():
            first, second = sorted(topology.place(node, level) for node in item.pair)
            if first and first != second:
                crossing[TopologyBoundary(level, (first, second), "between")].append(item)
                for name in (first, second):
                    crossing[TopologyBoundary(level, (name,), "around")].append(item)
        if len(crossing) == 3:  # of two groups, either is around the other
            crossing = {boundary: items for boundary, items in crossing.items() if boundary.scope == "between"}
        for boundary in sorted(crossing, key=lambda boundary: boundary.scope):
            items = [item for item in crossing[boundary] if item not in self.explained]
            across = set(items)
            elsewhere = {
                node: [not item.is_low for item in self.by_node[node] if item not in across]
                for item in items
                for node in item.pair
            }
            # Both sides must be fine: otherwise the partner may be the bad node.
            fine = {node for node, right in elsewhere.items() if any(right) and 2 * sum(right) >= len(right)}
            clear = [item for item in items if fine.issuperset(item.pair)]
            low = [item for item in clear if item.is_low]
            ends = {node for item in low for node in item.pair}
            inside = sum(topology.place(node, level) == boundary.names[0] for node in ends)
            if len(low) >= max(TUNING.several, TUNING.share * len(clear)) and 2 <= inside <= len(ends) - 2:
                self.boundaries[boundary] = items
                self.explained.update(item for item in items if item.is_low)

    def _find_links(self) -> None:
        """Find pairs that are slower than both nodes with their other partners explain. A link is bad if it was
        measured again because it was low, and was low each time. It is an outlier if it is far slower: noise elsewhere
        must not turn such a link into a bad node. A node with two such pairs, or with failures in others, is slow with
        some partners only, or intermittent."""
        of_pair = by_pair(self.unexplained())
        failing = Counter(node for pair, items in of_pair.items() for node in pair if any(i.has_failed for i in items))
        means: dict[str, dict[Link, float]] = defaultdict(dict)
        for pair, items in of_pair.items():
            for node in pair:
                means[node][pair] = statistics.fmean(item.relative for item in items)
        far = []
        for pair, items in of_pair.items():
            partners = [[mean for other, mean in means[node].items() if other != pair] for node in pair]
            if min(map(len, partners)) < TUNING.partners:
                continue
            explained = sum(min(0.0, middle(of_node)) for of_node in partners)
            again = sorted(item.relative - explained for item in items if item.purpose == "link")
            has_failed = sum(item.has_failed for item in items if item.purpose == "link")
            if has_failed == len(again):
                is_bad = has_failed >= TUNING.several
            else:  # a single result may be slow by chance
                is_bad = not has_failed and len(again) > TUNING.partners and self._is_low(again[1:], len(items))
            if is_bad and explained > HARD / 2:
                self.bad_links[pair] = items
                self.explained.update(items)
            elif max(item.relative for item in items) - explained < -TUNING.gross and not any(
                failing[node] > any(item.has_failed for item in items) for node in pair
            ):
                far.append(pair)
        count = Counter(node for pair in far for node in pair)
        self.outliers.update(item for pair in far if all(count[node] == 1 for node in pair) for item in of_pair[pair])

    def _is_low(self, values: Sequence[float], count: int) -> bool:
        """Whether repeated figures of a pair are low beyond chance. `count`: number of the pair's measurements."""
        return statistics.median(values) < -self.margin and self.is_too_low(values, self.count - count)

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
        self.good = {node for node in live if right[node] >= TUNING.partners} - set(self.implicated)

    def _badness(self, node: str, items: Sequence[PairMeasurement]) -> tuple[float, ...] | None:
        """The sort key of an implicated node: share of partners that saw it low, then how low; None for other nodes."""
        if not any(item.is_low for item in items):
            return None
        if self._is_cleared(node, items):
            return None
        partners = by_partner(items, node).values()
        means = [statistics.fmean(values) for values in partners]
        failing = sum(min(values) == HARD for values in partners)
        if (where := middle(means)) >= -self.margin and failing < TUNING.partners:
            return None
        share = sum(mean < -self.margin for mean in means) / len(means)
        return share, float(len(means)), -where

    def _is_cleared(self, node: str, items: Sequence[PairMeasurement]) -> bool:
        """Whether all fresh results together show that the node is not slow; a failed node is never cleared."""
        fresh = [item.relative for item in items if item.is_test_of(node)]
        has_failed = any(item.has_failed for item in items)
        return len(fresh) >= TUNING.tests and not has_failed and statistics.fmean(fresh) >= -self.margin

    def _find_open_links(self) -> None:
        """Find low pairs of nodes that are both fine: a bad link, chance, or an intermittent node."""
        bound = max(self.margin, TUNING.link_deviations * self.noise.sigma)
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
    nodes: Sequence[str], topology: Topology, limits: SearchLimits, measurements: Sequence[PairMeasurement]
) -> PairExplanation:
    """Explain all measured pairs; `nodes` in the order of the ring."""
    for level in LEVELS:
        group = {node: topology.place(node, level) for node in nodes}
        sides = {item: frozenset(map(group.__getitem__, item.pair)) for item in measurements if item.value is not None}
        within = _speeds(item for item, names in sides.items() if len(names) == 1 and "" not in names)
        across = {item for item, names in sides.items() if len(names) == 2 and "" not in names}
        borders = {sides[item] for item in across}
        if min(len(within), len(borders)) < TUNING.several:
            continue
        usual, offset = statistics.median(within), statistics.median(_speeds(across)) - statistics.median(within)
        if sum(value - usual < -limits.margin_ratio for value in _speeds(across)) < TUNING.share * len(across):
            continue
        flat = [
            item._replace(value=item.value - offset) if item.value is not None and item in across else item
            for item in measurements
        ]
        explanation = _explain_level(nodes, topology, limits, flat)
        if not limits.tapered:
            boundary = TopologyBoundary(level, tuple(topology.groups(level, nodes)), "apart")
            explanation.boundaries[boundary] = [
                item
                for item in explanation.measurements
                if item.value is not None and frozenset(map(group.__getitem__, item.pair)) in borders
            ]
        return explanation
    return _explain_level(nodes, topology, limits, measurements)


def _speeds(items: Iterable[PairMeasurement]) -> list[float]:
    """The logarithms of the speeds of those measurements that have one."""
    return [item.value for item in items if item.value is not None]


def _explain_level(
    nodes: Sequence[str], topology: Topology, limits: SearchLimits, measurements: Sequence[PairMeasurement]
) -> PairExplanation:
    """Compare with the highest speed that most nodes reach: where many nodes are slow, the median is slow too."""
    timed = by_pair(item for item in measurements if item.value is not None)
    medians = sorted(statistics.median(_speeds(items)) for items in timed.values())
    # Of three nodes with a slow one, a single pair has the usual speed.
    high = 1.0 if len(nodes) <= TUNING.several else 0.9
    for share in (high, 0.7, 0.5):
        centre = medians[int(share * (len(medians) - 1))] if medians else None
        explanation = _explain_from(nodes, topology, limits, measurements, centre)
        if centre is None or explanation.is_centred():
            break
    return explanation


def _explain_from(
    nodes: Sequence[str],
    topology: Topology,
    limits: SearchLimits,
    measurements: Sequence[PairMeasurement],
    centre: float | None,
) -> PairExplanation:
    """Compute good nodes from the centre, and the centre from good nodes, until both are stable."""
    shifts: dict[int, float] = {}
    explanation: PairExplanation | None = None
    missing = [item for item in measurements if item.state == "missing"]
    for turn in range(TUNING.iterations):
        measured = [
            item._replace(
                relative=(relative := item.relative_to(centre, shifts)), is_low=relative < -limits.margin_ratio
            )
            for item in measurements
            if item.state != "missing"
        ]
        # The noise of one measurement: at first the expected noise, then the residuals of the explanation.
        residuals, means = explanation.residuals(centre, shifts) if explanation else ([], 1)
        sigma = deviation(residuals, limits.noise_ratio, means)
        noise = PairNoise(sigma, max(0, len(residuals) - means), limits.noise_ratio)
        explanation = PairExplanation(limits, nodes, measured, missing, noise, centre)
        explanation.attribute(topology)
        good = [(item.round, item.value) for item in explanation.among_good() if item.value is not None]
        if centre is None or not good:
            break
        moved = statistics.median(value - shifts.get(number, 0.0) for number, value in good)
        # How much faster or slower each round was as a whole.
        rounds = values_by_key((number, value - moved) for number, value in good)
        least = TUNING.round_pairs
        new_shifts = {n: statistics.median(values) for n, values in rounds.items() if len(values) >= least}
        settled = (moved, shifts) == (centre, new_shifts)
        centre, shifts = moved, new_shifts
        if turn > 0 and settled:
            break
    assert explanation  # the loop runs at least once
    return explanation
