"""What the results of pairs mean: the usual speed, the noise, and what explains each low result; pure.

The usual speed and the good nodes depend on each other: both are found by iteration from several starting points.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .attribute import attribute
from .explanation import Boundary, Explanation, Link, Measurement, Setting
from .statistics import FAILED, HARD, Noise, deviation, middle
from .topology import LEVELS, Topology


def explain(
    nodes: Sequence[str], topology: Topology, setting: Setting, measurements: Sequence[Measurement]
) -> Explanation:
    """Explain all pairs that were measured; `nodes` in the order of the ring."""
    tier = _tier(nodes, topology, setting, measurements)
    if tier is None:
        return _Explainer(nodes, topology, setting, measurements).explain()
    offset, level = tier
    group = {node: topology.place(node, level) for node in nodes}
    flat = [
        item._replace(value=item.value - offset)
        if item.value is not None and group[item.one] != group[item.two]
        else item
        for item in measurements
    ]
    explanation = _Explainer(nodes, topology, setting, flat).explain()
    if not setting.tapered:
        boundary = Boundary(level, tuple(topology.groups(level, nodes)), "apart")
        explanation.boundaries[boundary] = [
            item for item in explanation.measurements if item.value is not None and group[item.one] != group[item.two]
        ]
    return explanation


def _tier(
    nodes: Sequence[str], topology: Topology, setting: Setting, measurements: Sequence[Measurement]
) -> tuple[float, str] | None:
    """If pairs of different groups are slower as a rule: by how much, and at which level.

    Two groups have one boundary between them, which is reported as such.
    """
    tuning = setting.tuning
    for level in LEVELS:
        groups = topology.groups(level, nodes)
        if len(groups) < 3:
            continue
        group_of = {node: name for name, members in groups.items() for node in members}
        grouped = [item for item in measurements if item.one in group_of and item.two in group_of]
        within = _speeds(item for item in grouped if group_of[item.one] == group_of[item.two])
        apart = [item for item in grouped if item.value is not None and group_of[item.one] != group_of[item.two]]
        pairs = {frozenset((group_of[item.one], group_of[item.two])) for item in apart}
        if min(len(within), len(pairs)) < tuning.several:
            continue
        across, usual = _speeds(apart), statistics.median(within)
        if sum(value - usual < -setting.margin for value in across) >= tuning.share * len(across):
            return statistics.median(across) - usual, level
    return None


def _speeds(items: Iterable[Measurement]) -> list[float]:
    """Logarithms, of the measurements that have any."""
    return [item.value for item in items if item.value is not None]


@dataclass(frozen=True)
class _Explainer:
    nodes: Sequence[str]
    topology: Topology
    setting: Setting
    measurements: Sequence[Measurement]

    def explain(self) -> Explanation:
        """Compare with the highest speed that most nodes reach: where many nodes are slow, the median is slow too.

        A speed that fewer nodes reach counts if no other node reaches it with any partner. (Where near pairs are faster
        by nature, every node has a fast partner.)
        """
        of_pair: dict[Link, list[float]] = defaultdict(list)
        for item in self.measurements:
            if item.value is not None:
                of_pair[item.pair].append(item.value)
        if not of_pair:
            return self._from(None)
        medians = sorted(statistics.median(values) for values in of_pair.values())
        # Of three nodes with a slow one, a single pair has the usual speed.
        is_few = len(self.nodes) <= self.setting.tuning.several
        high = medians[-1] if is_few else medians[int(0.9 * (len(medians) - 1))]
        for start in (high, self._better_half(), statistics.median(medians)):
            explanation = self._from(start)
            if self._is_usual(explanation) or self._is_isolated(explanation):
                break
        return explanation

    def _is_usual(self, explanation: Explanation) -> bool:
        """Whether most nodes that have figures reach the speed."""
        timed = [[item for item in own if item.value is not None] for own in explanation.by_node.values()]
        reached = sum(
            node not in explanation.implicated and any(item.is_right for item in own)
            for node, own in zip(self.nodes, timed)
        )
        return reached >= self.setting.tuning.most * sum(map(bool, timed))

    def _is_isolated(self, explanation: Explanation) -> bool:
        """Whether a few nodes are fast with each other, and all others are far slower with every partner."""
        tuning, slow = self.setting.tuning, [node for node in self.nodes if node not in explanation.good]
        near = (
            item.relative >= -tuning.several * self.setting.margin
            for node in slow
            for item in explanation.by_node[node]
        )
        return len(explanation.good) >= tuning.several and not any(near)

    def _from(self, centre: float | None) -> Explanation:
        """Good nodes from the centre, the centre from good nodes, until both are stable."""
        shifts: dict[int, float] = {}
        explanation: Explanation | None = None
        missing = [item for item in self.measurements if item.state == "missing"]
        for turn in range(self.setting.tuning.iterations):
            measured = [
                item._replace(relative=_relative(item, centre, shifts), margin=self.setting.margin)
                for item in self.measurements
                if item.state != "missing"
            ]
            noise = self._noise(explanation, centre, shifts)
            explanation = Explanation(self.setting, self.nodes, measured, missing, noise, centre)
            attribute(explanation, self.topology)
            good = [(item.round, item.value) for item in explanation.among_good() if item.value is not None]
            if centre is None or not good:
                break
            moved = statistics.median(value - shifts.get(number, 0.0) for number, value in good)
            new_shifts = self._shifts(good, moved)
            settled = (moved, shifts) == (centre, new_shifts)
            centre, shifts = moved, new_shifts
            if turn > 0 and settled:
                break
        if explanation is None:
            raise AssertionError("the loop above has a first turn")
        return explanation

    def _noise(self, explanation: Explanation | None, centre: float | None, shifts: Mapping[int, float]) -> Noise:
        """The noise of one measurement: as expected at first, then by what an explanation leaves unexplained."""
        residuals, means = _residuals(explanation, centre, shifts) if explanation else ([], 1)
        sigma = deviation(residuals, self.setting.noise, means, self.setting.tuning)
        return Noise(sigma, max(0, len(residuals) - means), self.setting.noise, self.setting.tuning)

    def _shifts(self, good: Sequence[tuple[int, float]], centre: float) -> dict[int, float]:
        """How much faster or slower whole rounds were, by the rounds and values of good pairs."""
        rounds: dict[int, list[float]] = defaultdict(list)
        for number, value in good:
            rounds[number].append(value - centre)
        least = self.setting.tuning.round_pairs
        return {number: statistics.median(values) for number, values in rounds.items() if len(values) >= least}

    def _better_half(self) -> float:
        """Median of pairs of the better half of the nodes, of those within one outermost group if there are enough."""
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
            if len(near) >= self.setting.tuning.several:
                return statistics.median(near)
        return statistics.median(_speeds(of_best) or _speeds(self.measurements))


def _relative(item: Measurement, centre: float | None, shifts: Mapping[int, float]) -> float:
    if item.state in FAILED or (item.state == "slow" and item.value is None):
        return HARD
    if item.value is None or centre is None:
        return 0.0
    return max(item.value - centre - shifts.get(item.round, 0.0), HARD)


def _residuals(explanation: Explanation, centre: float | None, shifts: Mapping[int, float]) -> tuple[list[float], int]:
    """What figures differ by from the mean that explains them, and the number of these means.

    Good pairs share one mean. Implicated nodes and pairs that were repeated because they were low have a mean of their
    own: their offset is not noise, and without their residuals the noise would be too small.
    """
    relative = {item: _relative(item, centre, shifts) for item in explanation.measurements}
    unpaired = {
        item: relative[item]
        for item in explanation.unexplained()
        if explanation.good.issuperset(item.pair) and relative[item] > HARD
    }
    of_links = explanation.outliers.union(*explanation.bad_links.values())
    own_means = [
        [item for item in explanation.by_node[node] if item.other(node) in explanation.good and item not in of_links]
        for node in explanation.implicated
    ]
    own_means += [
        [item for item in explanation.by_node[pair[0]] if item.pair == pair]
        for pair in (*explanation.open_links, *explanation.bad_links)
    ]
    residuals, means = [], 1
    for items in own_means:
        values = [value for item in items if (value := relative[item]) > HARD]
        if len(values) > 1:
            mean = statistics.fmean(values)
            residuals += [value - mean for value in values]
            means += 1
            for item in items:
                unpaired.pop(item, None)
    return [*unpaired.values(), *residuals], means
