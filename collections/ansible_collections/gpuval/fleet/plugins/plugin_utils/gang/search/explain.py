"""What the results of pairs mean: which boundary, node or link explains those that are low; pure.

What explains most is taken first: a boundary whose both sides are fine in themselves, links that stay low between good
nodes, then nodes, the worst first. What a bad node explains is not held against its partners.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.statistics import (
    FAILED,
    HARD,
    Noise,
    deviation,
    middle,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.topology import KINDS, Topology

#: Deviations beyond which a link is no chance (looked for among hundreds).
LINK_SCORE = 4.5
#: One measurement that is so low is measured again.
LINK_MARGINS, LINK_DEVIATIONS = 1.3, 2.2
#: So many deviations more for each time that the noise is above what is expected; and in all at most.
#: Only where there are so many pairs that some are low by chance each time.
LINK_NOISY, MOST_LINK_DEVIATIONS, MANY_MEASURES = 1.6, 2.7, 100
#: A link that fails does so each time: so many times more. A node that fails now and then seldom keeps that up.
LINK_FAILURES = 3
#: A pair that is so low each time (30 %), or so many deviations, beyond what its nodes explain, is looked at as a link.
GROSS, GROSS_DEVIATIONS = 0.35, 5.0
#: Nodes that are not right with others have a bad link if it is so many times as low as their mean, and their worst.
LINK_TIMES, WORST_TIMES = 4.0, 2.0
#: Right results that a node needs to be called healthy, or to serve as a known good partner.
VOUCHED = 2
#: Fresh results that an accusation needs, each with another partner.
CONFIRMED = 2
#: So many fresh results tell of a node's speed without those for which it was looked at: these were low by choice.
NODE_TESTS = 8
#: A node has no more of them, and in a small gang, which has few other tests, no more than so many.
FEW_NODES_TESTS = 12
#: A node is not slow when it is not slower than by so many margins, to so many deviations.
SURELY, SURE_DEVIATIONS = 2.0, 3.0
#: Of so many nodes none is cleared before it had all its tests: what is usual is known from few.
FEW_NODES = 8
#: A node that fails now and then is bad when so many good partners saw it.
SEEN_FAILING = 3
#: Of the measurements across a boundary so many are low.
SHARE = 0.75
ACROSS = 3
ACROSS_FRESH = 4
#: Share of pairs across that are slow where racks are slower apart as a rule.
APART = 0.9
#: A speed is usual when this share of nodes reaches it, or when so many do and all others are so much slower.
MOST, FEW, FAR = 0.6, 3, 0.15
#: A pair that is so much faster than usual is no chance.
FAST = 0.25
#: Up to so many nodes the fastest pair is asked first whether most nodes reach its speed.
FEWEST = 3
#: Turns until centre and good nodes stay, and by how much a centre may still move, relative.
TURNS, SETTLED = 8, 0.002
#: So many in one round tell how the round as a whole went.
ROUND_PAIRS = 8


class Measure(NamedTuple):
    """One pair in one round. `value` as in judge.Result; `tested`: what the round is to tell about."""

    round: int
    one: str
    two: str
    purpose: str
    state: str
    value: Optional[float]
    told: tuple[str, ...]
    tested: tuple[str, ...] = ()
    message: str = ""

    def is_test_of(self, node: str) -> bool:
        return self.purpose == "confirm" and node in self.tested

    def other(self, node: str) -> str:
        return self.two if node == self.one else self.one


@dataclass(frozen=True)
class Setting:
    """What is called slow (`margin`, relative), the noise that is expected, and whether racks may be slower apart."""

    margin: float
    noise: float
    tapered: bool


@dataclass(frozen=True)
class Boundary:
    """`around`: all ways out of a group; `between`: those between two groups; `apart`: those between all groups;

    `inside`: everything of a group.
    """

    kind: str
    names: tuple[str, ...]
    scope: str


@dataclass
class Picture:
    """All that the measurements say. `low` are relative values; indices are those of the measurements."""

    measures: Sequence[Measure]
    relative: list[Optional[float]]
    noise: Noise
    centre: Optional[float]
    of_node: Mapping[str, list[int]]
    #: Nodes that are looked at, worst first, and what they explain.
    accused: list[str] = field(default_factory=list)
    good: set[str] = field(default_factory=set)
    #: Nodes that were looked at, and are not any more by their fresh results.
    cleared: set[str] = field(default_factory=set)
    #: Bad links, and links that are still to be told, with their measurements.
    links: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    open_links: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    boundaries: dict[Boundary, list[int]] = field(default_factory=dict)
    explained: set[int] = field(default_factory=set)
    #: Measurements of pairs that stand out from all others of both nodes: they tell of the link, not of the nodes.
    outstanding: set[int] = field(default_factory=set)

    @property
    def sigma(self) -> float:
        return self.noise.sigma

    def among_good(self) -> dict[int, float]:
        """Relative figures of pairs of good nodes that nothing explains."""
        return _among(self.good, self.measures, self.relative, self.explained)

    def usual(self) -> tuple[float, int]:
        """Where pairs of good nodes lie, without the farthest at both ends, and how many they are."""
        among = sorted(self.among_good().values())
        cut = max(1, len(among) // 10) if len(among) > 4 else 0
        return (statistics.fmean(among[cut : len(among) - cut]) if among else 0.0), len(among)

    def is_low(self, index: int, margin: float) -> bool:
        value = self.relative[index]
        return value is not None and value < -margin

    def faster(self) -> list[int]:
        """Pairs that are faster than usual by more than noise explains: it is unclear what is usual."""
        return [index for index, value in enumerate(self.relative) if value is not None and value > FAST]

    def is_right(self, index: int, margin: float) -> bool:
        value = self.relative[index]
        return value is not None and value >= -margin


def explain(nodes: Sequence[str], topology: Topology, setting: Setting, measures: Sequence[Measure]) -> Picture:
    """The picture of all pairs that were measured; `nodes` in the order of their line."""
    of_node: dict[str, list[int]] = {node: [] for node in nodes}
    for index, measure in enumerate(measures):
        if measure.state != "missing":
            of_node[measure.one].append(index)
            of_node[measure.two].append(index)
    figures = [measure.value if measure.state in ("ok", "slow") else None for measure in measures]
    apart = _apart(nodes, topology, setting, measures, figures)
    flat = list(figures)
    if apart:
        offset, kind = apart
        flat = [
            value
            if value is None or topology.place(item.one, kind) == topology.place(item.two, kind)
            else value - offset
            for value, item in zip(figures, measures)
        ]
    given = _Given(nodes, topology, setting, measures, flat, of_node)
    picture = given.explained()
    if apart and (not setting.tapered):
        boundary = Boundary(apart[1], tuple(topology.groups(apart[1], nodes)), "apart")
        picture.boundaries[boundary] = [
            index
            for index, item in enumerate(measures)
            if figures[index] is not None and topology.place(item.one, apart[1]) != topology.place(item.two, apart[1])
        ]
    return picture


@dataclass(frozen=True)
class _Given:
    """What is to be explained; `figures`: logarithms of speeds."""

    nodes: Sequence[str]
    topology: Topology
    setting: Setting
    measures: Sequence[Measure]
    figures: Sequence[Optional[float]]
    of_node: Mapping[str, list[int]]

    def explained(self) -> Picture:
        """The explanation by the highest speed that most nodes reach: where many are slow, a median is slow too.

        A speed that fewer nodes reach is taken where all others reach it with nobody. (Pairs that are near each other
        may be faster by nature: there everyone has a fast partner.)
        """
        of_pair: dict[tuple[str, str], list[float]] = {}
        for item, value in zip(self.measures, self.figures):
            if value is not None:
                of_pair.setdefault((item.one, item.two), []).append(value)
        if not of_pair:
            return self._from(None)
        known = sorted(statistics.median(values) for values in of_pair.values())
        # Of three nodes with a slow one a single pair is as fast as it should be.
        high = known[-1] if len(self.nodes) <= FEWEST else known[int(0.9 * (len(known) - 1))]
        starts = [high, self._better_half(), statistics.median(known)]
        for start in starts:
            picture = self._from(start)
            if self._is_usual(picture) or self._is_alone(picture):
                return picture
        return picture

    def _is_usual(self, picture: Picture) -> bool:
        """Whether most nodes that have figures reach the speed."""
        accused = set(picture.accused)
        margin = self.setting.margin
        timed = reached = 0
        for node in self.nodes:
            own = [index for index in self.of_node[node] if self.figures[index] is not None]
            timed += bool(own)
            reached += node not in accused and any(picture.is_right(index, margin) for index in own)
        return reached >= MOST * timed

    def _is_alone(self, picture: Picture) -> bool:
        """Whether some nodes are fast with each other, and all others are far slower with everyone."""
        others = [node for node in self.nodes if node not in picture.good]
        near = (picture.is_right(index, FAR) for node in others for index in self.of_node[node])
        return len(picture.good) >= FEW and not any(near)

    def _from(self, centre: float | None) -> Picture:
        """Good nodes by the centre, the centre by good nodes, until both stay."""
        shifts: dict[int, float] = {}
        picture = None
        for turn in range(TURNS):
            relative = [_relative(item, value, centre, shifts) for item, value in zip(self.measures, self.figures)]
            residuals, means = _residuals(picture, relative) if picture else ([], 1)
            sigma = deviation(residuals, self.setting.noise, means)
            noise = Noise(sigma, max(0, len(residuals) - means), self.setting.noise)
            picture = Picture(self.measures, relative, noise, centre, self.of_node)
            _take_apart(picture, self.nodes, self.topology, self.setting)
            among = _among(picture.good, self.measures, self.figures, picture.explained)
            if centre is None or not among:
                break
            moved = statistics.median(
                value - shifts.get(self.measures[index].round, 0.0) for index, value in among.items()
            )
            new_shifts = _shifts(among, self.measures, moved)
            settled = turn > 0 and abs(moved - centre) < SETTLED and shifts.keys() == new_shifts.keys()
            centre, shifts = moved, new_shifts
            if settled:
                break
        assert picture is not None
        return picture

    def _better_half(self) -> float:
        """Where pairs of the better half of the nodes lie, those within a rack if there are enough."""
        middles = {}
        for node in self.nodes:
            own = [value for value in (self.figures[index] for index in self.of_node[node]) if value is not None]
            if own:
                middles[node] = middle(own)
        ranked = sorted(middles, key=middles.__getitem__, reverse=True)
        best = set(ranked[: max(2, (len(ranked) + 1) // 2)])
        among = _among(best, self.measures, self.figures)
        racks = {node: self.topology.place(node, KINDS[0]) for node in self.nodes}
        whole = {index: value for index, value in enumerate(self.figures) if value is not None}
        for some in (among, whole):
            near = [
                value
                for index, value in some.items()
                if racks[self.measures[index].one] == racks[self.measures[index].two]
            ]
            if len(near) >= ACROSS:
                return statistics.median(near)
        return statistics.median((among or whole).values())


def _relative(item: Measure, value: float | None, centre: float | None, shifts: Mapping[int, float]) -> float | None:
    if item.state in FAILED or (item.state == "slow" and value is None):
        return HARD
    if item.state == "missing":
        return None
    if value is None or centre is None:
        return 0.0
    return max(value - centre - shifts.get(item.round, 0.0), HARD)


def _among(
    good: set[str], measures: Sequence[Measure], values: Sequence[float | None], skipped: set[int] = frozenset()
) -> dict[int, float]:
    """Figures of pairs of good nodes that nothing else explains."""
    return {
        index: value
        for index, (item, value) in enumerate(zip(measures, values))
        if value is not None and value > HARD and item.one in good and item.two in good and index not in skipped
    }


def _residuals(picture: Picture, relative: Sequence[float | None]) -> tuple[list[float], int]:
    """What is left of figures without the means of whom they are explained by, and how many means these are.

    Good pairs lie about the centre. Nodes that are looked at lie about their own mean, as do pairs that were run again
    because they were low: what they differ by is no noise, and leaving them out would make the noise too small.
    """
    among = _among(picture.good, picture.measures, relative, picture.explained)
    of_links = picture.outstanding.union(*picture.links.values())
    apart = [
        [
            index
            for index in picture.of_node[node]
            if picture.measures[index].other(node) in picture.good and index not in of_links
        ]
        for node in picture.accused
    ]
    apart += [
        [index for index in picture.of_node[pair[0]] if picture.measures[index].other(pair[0]) == pair[1]]
        for pair in (*picture.open_links, *picture.links)
    ]
    residuals, means = [], 1
    for indices in apart:
        values = [value for index in indices if (value := relative[index]) is not None and value > HARD]
        if len(values) > 1:
            mean = statistics.fmean(values)
            residuals += [value - mean for value in values]
            means += 1
            for index in indices:
                among.pop(index, None)
    return [*among.values(), *residuals], means


def _shifts(among: Mapping[int, float], measures: Sequence[Measure], centre: float) -> dict[int, float]:
    """How much faster or slower whole rounds were."""
    rounds: dict[int, list[float]] = {}
    for index, value in among.items():
        rounds.setdefault(measures[index].round, []).append(value - centre)
    return {number: statistics.median(values) for number, values in rounds.items() if len(values) >= ROUND_PAIRS}


def _apart(
    nodes: Sequence[str],
    topology: Topology,
    setting: Setting,
    measures: Sequence[Measure],
    figures: Sequence[float | None],
) -> tuple[float, str] | None:
    """Whether pairs of different groups are slower as a rule, by how much, and by which kind of group.

    With two groups that is their boundary, and is told as such.
    """
    for kind in KINDS:
        groups = topology.groups(kind, nodes)
        if len(groups) < 3:
            continue
        within, across, pairs = [], [], set()
        for item, value in zip(measures, figures):
            one, two = topology.place(item.one, kind), topology.place(item.two, kind)
            if value is None or not one or not two:
                continue
            if one == two:
                within.append(value)
            else:
                across.append(value)
                pairs.add((min(one, two), max(one, two)))
        if len(within) < ACROSS or len(pairs) < ACROSS:
            continue
        usual = statistics.median(within)
        if sum(value - usual < -setting.margin for value in across) >= APART * len(across):
            return statistics.median(across) - usual, kind
    return None


def _take_apart(picture: Picture, nodes: Sequence[str], topology: Topology, setting: Setting) -> None:
    margin = setting.margin
    for kind in KINDS:
        _boundaries(picture, nodes, topology, kind, margin)
    _bad_links(picture, margin)
    _stand_out(picture)
    _nodes(picture, nodes, margin)
    _open_links(picture, margin)


def _boundaries(picture: Picture, nodes: Sequence[str], topology: Topology, kind: str, margin: float) -> None:
    groups = topology.groups(kind, nodes)
    if len(groups) < 2:
        return
    place = {node: topology.place(node, kind) for node in nodes}
    crossing = [
        index
        for index, item in enumerate(picture.measures)
        if picture.relative[index] is not None and index not in picture.explained and _differ(place, item)
    ]
    if sum(picture.is_low(index, margin) for index in crossing) < ACROSS:
        return
    around: dict[str, list[int]] = {}
    between: dict[tuple[str, str], list[int]] = {}
    for index in crossing:
        item = picture.measures[index]
        one, two = sorted((place[item.one], place[item.two]))
        between.setdefault((one, two), []).append(index)
        around.setdefault(one, []).append(index)
        around.setdefault(two, []).append(index)
    if len(groups) > 2:
        for name, indices in around.items():
            _take_boundary(picture, Boundary(kind, (name,), "around"), indices, place, margin)
    for names, indices in between.items():
        rest = [index for index in indices if index not in picture.explained]
        _take_boundary(picture, Boundary(kind, names, "between"), rest, place, margin)


def _differ(place: Mapping[str, str], item: Measure) -> bool:
    one, two = place[item.one], place[item.two]
    return bool(one) and bool(two) and one != two


def _take_boundary(
    picture: Picture, boundary: Boundary, indices: Sequence[int], place: Mapping[str, str], margin: float
) -> None:
    """A boundary is one when nodes that are fine elsewhere are low across it."""
    lows = [index for index in indices if picture.is_low(index, margin)]
    if len(lows) < ACROSS:
        return
    asked = set(indices)
    fine: dict[str, bool] = {}

    def is_fine(node: str) -> bool:
        if node not in fine:
            elsewhere = [index for index in picture.of_node[node] if index not in asked]
            right = sum(picture.is_right(index, margin) for index in elsewhere)
            fine[node] = right > 0 and 2 * right >= len(elsewhere)
        return fine[node]

    # One fine side is not enough: its partner may be the bad one. A side without a test of its own is no proof.
    clear = [
        index for index in indices if is_fine(picture.measures[index].one) and is_fine(picture.measures[index].two)
    ]
    low = [index for index in clear if picture.is_low(index, margin)]
    if len(low) < ACROSS or len(low) < SHARE * len(clear):
        return
    sides: tuple[set[str], set[str]] = (set(), set())
    for index in low:
        for node in (picture.measures[index].one, picture.measures[index].two):
            sides[place[node] == boundary.names[0]].add(node)
    if min(map(len, sides)) < 2:
        return
    picture.boundaries[boundary] = list(indices)
    picture.explained.update(lows)


def _bad_links(picture: Picture, margin: float) -> None:
    """Links that were measured again because they were low, and are low each time, between nodes that are fine."""
    repeats: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(picture.measures):
        if item.purpose == "link" and picture.relative[index] is not None and index not in picture.explained:
            repeats.setdefault((item.one, item.two), []).append(index)
    for pair, fresh in repeats.items():
        values = [picture.relative[index] or 0.0 for index in fresh]
        soft = sorted(value for value in values if value > HARD)
        whole = [index for index in picture.of_node[pair[0]] if picture.measures[index].other(pair[0]) == pair[1]]
        if len(soft) == len(values) > CONFIRMED:
            rest = soft[1:]  # one result may be slow by chance, however slow
            lies, among = statistics.median(rest), len(picture.measures) - len(whole)
            is_low = lies < -margin and picture.noise.score(rest, among) <= -picture.noise.bar(LINK_SCORE)
        else:
            lies, is_low = HARD, not soft and len(values) >= LINK_FAILURES
        if not is_low:
            continue
        each_time = all((picture.relative[index] or 0.0) <= lies / WORST_TIMES for index in whole)
        others = [_elsewhere(picture, node, pair) for node in pair]
        if all(_are_right(own, margin, lies) or (each_time and _are_far_above(own, lies)) for own in others):
            picture.links[pair] = whole
            picture.explained.update(whole)


def _elsewhere(picture: Picture, node: str, pair: tuple[str, str]) -> list[float]:
    """What the node has with others, as far as nothing explains it: a slow node may seem a slow link by chance."""
    return [
        value
        for index in picture.of_node[node]
        if index not in picture.explained
        and pair != (picture.measures[index].one, picture.measures[index].two)
        and (value := picture.relative[index]) is not None
    ]


def _are_right(values: Sequence[float], margin: float, lies: float) -> bool:
    """Whether most of what a node has with others is right, and the mean, too, unless the pair fails."""
    right = sum(value >= -margin for value in values)
    soft = [value for value in values if value > HARD]
    return 2 * right > len(values) and (lies == HARD or statistics.fmean(soft) > -margin / 2)


def _are_far_above(values: Sequence[float], lies: float) -> bool:
    """Whether a pair lies so much lower than what its node has with others that it is the link, however noisy."""
    lies = -GROSS * LINK_TIMES if lies == HARD else lies
    return bool(values) and min(values) > lies / WORST_TIMES and statistics.fmean(values) > lies / LINK_TIMES


def _stand_out(picture: Picture) -> None:
    """Pairs that are far lower than both nodes together explain: noise elsewhere must not make it a node's fault.

    A node that is low, or fails, with another partner as well may be slow with some only, or now and then.
    """
    least = max(GROSS, GROSS_DEVIATIONS * picture.sigma)
    of_pair: dict[tuple[str, str], dict[int, float]] = {}
    for index, (item, value) in enumerate(zip(picture.measures, picture.relative)):
        if value is not None and index not in picture.explained:
            of_pair.setdefault((item.one, item.two), {})[index] = value
    of_node: dict[str, dict[tuple[str, str], float]] = {}
    failing: Counter[str] = Counter()
    for pair, values in of_pair.items():
        for node in pair:
            of_node.setdefault(node, {})[pair] = statistics.fmean(values.values())
            failing[node] += HARD in values.values()
    found: list[tuple[str, str]] = []
    for pair, values in of_pair.items():
        highest, has_failed = max(values.values()), HARD in values.values()
        if highest >= -least or any(failing[node] > has_failed for node in pair):
            continue
        others = [[value for other, value in of_node[node].items() if other != pair] for node in pair]
        if all(len(means) >= CONFIRMED for means in others):
            explained = sum(min(0.0, middle(means)) for means in others)
            if highest - explained < -least:
                found.append(pair)
    partners = Counter(node for pair in found for node in pair)
    for pair in found:
        if all(partners[node] == 1 for node in pair):
            picture.outstanding.update(of_pair[pair])


def _nodes(picture: Picture, nodes: Sequence[str], margin: float) -> None:
    """The worst first, until nobody is left who is worse than the partners explain."""
    aside = picture.explained | picture.outstanding
    live = {node: [index for index in picture.of_node[node] if index not in aside] for node in nodes}
    looked_at = {node: found for node in nodes if (found := _badness(picture, node, live[node], margin))}
    while looked_at:
        node = max(looked_at, key=lambda name: looked_at[name])
        picture.accused.append(node)
        del looked_at[node]
        for index in live[node]:
            if picture.is_low(index, margin):
                partner = picture.measures[index].other(node)
                picture.explained.add(index)
                live[partner] = [one for one in live[partner] if one != index]
                if partner in looked_at:
                    found = _badness(picture, partner, live[partner], margin)
                    if found:
                        looked_at[partner] = found
                    else:
                        del looked_at[partner]
    accused = set(picture.accused)
    picture.good = {
        node
        for node in nodes
        if node not in accused and sum(picture.is_right(index, margin) for index in live[node]) >= VOUCHED
    }


def _badness(picture: Picture, node: str, indices: Sequence[int], margin: float) -> tuple[float, ...] | None:
    """None for a node that is not looked at, else what to sort by: share of partners that saw it low, then how low."""
    if not any(picture.is_low(index, margin) for index in indices):
        return None
    partners: dict[str, list[float]] = {}
    told = False
    if _is_cleared(picture, node, indices, margin):
        picture.cleared.add(node)
        return None
    for index in indices:
        item = picture.measures[index]
        value = picture.relative[index]
        if value is not None:
            partners.setdefault(item.other(node), []).append(value)
            told = told or (value == HARD and node in item.told)
    if not partners:
        return None
    values = [statistics.fmean(given) for given in partners.values()]
    failing = sum(min(given) == HARD for given in partners.values())
    where = middle(values)
    if where >= -margin and failing < CONFIRMED:
        return None
    share = sum(value < -margin for value in values) / len(values)
    return share, float(told), float(len(values)), -where


def most_tests(picture: Picture) -> int:
    """How many fresh results are asked for until a node stays suspect."""
    return FEW_NODES_TESTS if FEWEST < len(picture.of_node) <= FEW_NODES else NODE_TESTS  # three have no rounds left


def surely_slow(margin: float) -> float:
    """The relative figure of a node that is no longer to be missed."""
    return math.log(1 - min(0.9, SURELY * margin))


def _is_cleared(picture: Picture, node: str, indices: Sequence[int], margin: float) -> bool:
    """Whether the fresh results alone say that it is not slow: surely, or after all tests at least by their mean.

    That is of chance in figures: who failed at all is not cleared.
    """
    fresh = [
        value
        for index in indices
        if picture.measures[index].is_test_of(node) and (value := picture.relative[index]) is not None
    ]
    needed = CONFIRMED + 1 if len(picture.of_node) > FEW_NODES else NODE_TESTS
    if len(fresh) < needed or any(picture.relative[index] == HARD for index in indices):
        return False
    others = len(picture.measures) - len(picture.of_node[node])
    least = surely_slow(margin) + SURE_DEVIATIONS * picture.noise.error(len(fresh), others)
    return statistics.fmean(fresh) >= (-margin if len(fresh) >= NODE_TESTS else max(-margin, least))


def _open_links(picture: Picture, margin: float) -> None:
    """Pairs that are low although both nodes are fine: a link, chance, or a node that fails now and then."""
    many = len(picture.measures) >= MANY_MEASURES
    noisier = max(0.0, picture.sigma / picture.noise.expected - 1) if many else 0.0
    deviations = min(MOST_LINK_DEVIATIONS, LINK_DEVIATIONS + LINK_NOISY * noisier)
    bound = max(LINK_MARGINS * margin, deviations * picture.sigma)
    bounds = {"pair": bound, "link": margin, "control": 2 * bound, "vouch": 2 * bound if many else bound}
    accused = set(picture.accused)
    found: dict[tuple[str, str], list[int]] = {}
    tested: dict[tuple[str, str], list[float]] = {}
    for index, item in enumerate(picture.measures):
        value = picture.relative[index]
        is_accused = (item.one in accused or item.two in accused) and index not in picture.outstanding
        if value is None or index in picture.explained or is_accused:
            continue
        if item.purpose == "link":
            tested.setdefault((item.one, item.two), []).append(value)
        if value < -bounds.get(item.purpose, bound):
            found.setdefault((item.one, item.two), []).append(index)
    for pair, low in found.items():
        fresh = tested.get(pair)
        failed = any(picture.relative[index] == HARD for index in low)
        if failed or not fresh or statistics.fmean(fresh) < -margin:
            picture.open_links[pair] = low
