"""What the results of pairs mean: the usual speed, the noise, and what explains each low result; pure.

The usual speed and the good nodes depend on each other: both are found by iteration from several starting points.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from .attribute import attribute
from .explanation import Boundary, Explanation, Link, Measurement, Setting, among
from .statistics import FAILED, HARD, Noise, deviation, middle
from .topology import LEVELS, Topology


def explain(
    nodes: Sequence[str], topology: Topology, setting: Setting, measurements: Sequence[Measurement]
) -> Explanation:
    """Explain all pairs that were measured; `nodes` in the order of the ring."""
    by_node: dict[str, list[int]] = {node: [] for node in nodes}
    for index, item in enumerate(measurements):
        if item.state != "missing":
            by_node[item.one].append(index)
            by_node[item.two].append(index)
    figures = [item.value if item.state in ("ok", "slow") else None for item in measurements]
    tier = _tier(nodes, topology, setting, measurements, figures)
    if tier is None:
        return _Explainer(nodes, topology, setting, measurements, figures, by_node).explain()
    offset, level = tier
    across = [topology.place(item.one, level) != topology.place(item.two, level) for item in measurements]
    flat = [value - offset if value is not None and far else value for value, far in zip(figures, across)]
    explanation = _Explainer(nodes, topology, setting, measurements, flat, by_node).explain()
    if not setting.tapered:
        boundary = Boundary(level, tuple(topology.groups(level, nodes)), "apart")
        explanation.boundaries[boundary] = [
            index for index, far in enumerate(across) if far and figures[index] is not None
        ]
    return explanation


def _tier(
    nodes: Sequence[str],
    topology: Topology,
    setting: Setting,
    measurements: Sequence[Measurement],
    figures: Sequence[float | None],
) -> tuple[float, str] | None:
    """If pairs of different groups are slower as a rule: by how much, and at which level.

    Two groups have one boundary between them, which is reported as such.
    """
    tuning = setting.tuning
    for level in LEVELS:
        if len(topology.groups(level, nodes)) < 3:
            continue
        within, across, pairs = [], [], set()
        for item, value in zip(measurements, figures):
            one, two = topology.place(item.one, level), topology.place(item.two, level)
            if value is None or not one or not two:
                continue
            if one == two:
                within.append(value)
            else:
                across.append(value)
                pairs.add((min(one, two), max(one, two)))
        if min(len(within), len(pairs)) < tuning.boundary_results:
            continue
        usual = statistics.median(within)
        if sum(value - usual < -setting.margin for value in across) >= tuning.tiered_share * len(across):
            return statistics.median(across) - usual, level
    return None


@dataclass(frozen=True)
class _Explainer:
    """What is to be explained; `figures`: logarithms of speeds."""

    nodes: Sequence[str]
    topology: Topology
    setting: Setting
    measurements: Sequence[Measurement]
    figures: Sequence[Optional[float]]
    by_node: Mapping[str, list[int]]

    def explain(self) -> Explanation:
        """Compare with the highest speed that most nodes reach: where many nodes are slow, the median is slow too.

        A speed that fewer nodes reach counts if no other node reaches it with any partner. (Where near pairs are faster
        by nature, every node has a fast partner.)
        """
        of_pair: dict[Link, list[float]] = {}
        for item, value in zip(self.measurements, self.figures):
            if value is not None:
                of_pair.setdefault((item.one, item.two), []).append(value)
        if not of_pair:
            return self._from(None)
        known = sorted(statistics.median(values) for values in of_pair.values())
        # Of three nodes with a slow one, a single pair has the usual speed.
        is_few = len(self.nodes) <= self.setting.tuning.fastest_first
        high = known[-1] if is_few else known[int(0.9 * (len(known) - 1))]
        for start in (high, self._better_half(), statistics.median(known)):
            explanation = self._from(start)
            if self._is_usual(explanation) or self._is_isolated(explanation):
                break
        return explanation

    def _is_usual(self, explanation: Explanation) -> bool:
        """Whether most nodes that have figures reach the speed."""
        implicated = set(explanation.implicated)
        timed = reached = 0
        for node in self.nodes:
            own = [index for index in self.by_node[node] if self.figures[index] is not None]
            timed += bool(own)
            reached += node not in implicated and any(map(explanation.is_right, own))
        return reached >= self.setting.tuning.most * timed

    def _is_isolated(self, explanation: Explanation) -> bool:
        """Whether a few nodes are fast with each other, and all others are far slower with every partner."""
        tuning, others = self.setting.tuning, [node for node in self.nodes if node not in explanation.good]
        near = (explanation.is_right(index, tuning.far) for node in others for index in self.by_node[node])
        return len(explanation.good) >= tuning.few and not any(near)

    def _from(self, centre: float | None) -> Explanation:
        """Good nodes from the centre, the centre from good nodes, until both are stable."""
        shifts: dict[int, float] = {}
        explanation: Explanation | None = None
        for turn in range(self.setting.tuning.iterations):
            relative = [_relative(item, value, centre, shifts) for item, value in zip(self.measurements, self.figures)]
            noise = self._noise(explanation, relative)
            explanation = Explanation(self.setting, self.measurements, relative, noise, centre, self.by_node)
            attribute(explanation, self.nodes, self.topology)
            good = among(explanation.good, self.measurements, self.figures, explanation.explained)
            if centre is None or not good:
                break
            moved = statistics.median(
                value - shifts.get(self.measurements[index].round, 0.0) for index, value in good.items()
            )
            new_shifts = self._shifts(good, moved)
            settled = abs(moved - centre) < self.setting.tuning.settled and shifts.keys() == new_shifts.keys()
            centre, shifts = moved, new_shifts
            if turn > 0 and settled:
                break
        assert explanation is not None
        return explanation

    def _noise(self, explanation: Explanation | None, relative: Sequence[float | None]) -> Noise:
        """The noise of one measurement: as expected at first, then by what an explanation leaves unexplained."""
        residuals, means = _residuals(explanation, relative) if explanation else ([], 1)
        sigma = deviation(residuals, self.setting.noise, means, self.setting.tuning)
        return Noise(sigma, max(0, len(residuals) - means), self.setting.noise, self.setting.tuning)

    def _shifts(self, good: Mapping[int, float], centre: float) -> dict[int, float]:
        """How much faster or slower whole rounds were."""
        rounds: dict[int, list[float]] = {}
        for index, value in good.items():
            rounds.setdefault(self.measurements[index].round, []).append(value - centre)
        least = self.setting.tuning.round_pairs
        return {number: statistics.median(values) for number, values in rounds.items() if len(values) >= least}

    def _better_half(self) -> float:
        """Median of pairs of the better half of the nodes, of those within one outermost group if there are enough."""
        middles = {}
        for node in self.nodes:
            own = [value for value in (self.figures[index] for index in self.by_node[node]) if value is not None]
            if own:
                middles[node] = middle(own)
        ranked = sorted(middles, key=middles.__getitem__, reverse=True)
        best = set(ranked[: max(2, (len(ranked) + 1) // 2)])
        of_best = among(best, self.measurements, self.figures)
        every = {index: value for index, value in enumerate(self.figures) if value is not None}
        group = {node: self.topology.place(node, LEVELS[0]) for node in self.nodes}
        for some in (of_best, every):
            near = [
                value
                for index, value in some.items()
                if group[self.measurements[index].one] == group[self.measurements[index].two]
            ]
            if len(near) >= self.setting.tuning.boundary_results:
                return statistics.median(near)
        return statistics.median((of_best or every).values())


def _relative(
    item: Measurement, value: float | None, centre: float | None, shifts: Mapping[int, float]
) -> float | None:
    if item.state in FAILED or (item.state == "slow" and value is None):
        return HARD
    if item.state == "missing":
        return None
    if value is None or centre is None:
        return 0.0
    return max(value - centre - shifts.get(item.round, 0.0), HARD)


def _residuals(explanation: Explanation, relative: Sequence[float | None]) -> tuple[list[float], int]:
    """What figures differ by from the mean that explains them, and the number of these means.

    Good pairs share one mean. Implicated nodes and pairs that were repeated because they were low have a mean of their
    own: their offset is not noise, and without their residuals the noise would be too small.
    """
    rest = among(explanation.good, explanation.measurements, relative, explanation.explained)
    of_links = explanation.outliers.union(*explanation.bad_links.values())
    own_means = [
        [
            index
            for index in explanation.by_node[node]
            if explanation.partner(index, node) in explanation.good and index not in of_links
        ]
        for node in explanation.implicated
    ]
    own_means += [
        [index for index in explanation.by_node[one] if explanation.partner(index, one) == two]
        for one, two in (*explanation.open_links, *explanation.bad_links)
    ]
    residuals, means = [], 1
    for indices in own_means:
        values = [value for index in indices if (value := relative[index]) is not None and value > HARD]
        if len(values) > 1:
            mean = statistics.fmean(values)
            residuals += [value - mean for value in values]
            means += 1
            for index in indices:
                rest.pop(index, None)
    return [*rest.values(), *residuals], means
