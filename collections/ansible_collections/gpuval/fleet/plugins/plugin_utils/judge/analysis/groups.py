"""Groups of nodes (a rack, a driver) whose figures differ from those of the other nodes of their kind. Pure.

Of each node the median of its parts counts. A group is held against all others by its ranks (Mann-Whitney), which no
outlier moves. At most ``FALSE_SHARE`` of the groups that are found may be chance, over all comparisons of a fleet, and
no more of the figures in which they differ; and they must differ by ``LEAST_EFFECT`` of the others' median or more.

Groups that are the same nodes are compared once and named together. What is left of a group without the nodes of one
that stands out more must stand out by itself, or it is not named: a row is not bad because one rack in it is.
"""

import functools
import statistics
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from ...core import units
from ...core.grouping import values_by_key
from .distribution import Key, Samples, benjamini_hochberg, least_p, mann_whitney, midranks, relative

#: The least number of nodes of a group, and of the others that it is compared with.
MIN_NODES = 3
LEAST_EFFECT = 0.02
FALSE_SHARE = 0.01
#: Two groups that share this part of their nodes count as the same group.
ALIKE = 0.8

#: Property and value: ("rack", "r12").
Group = tuple[str, str]
#: {group: indexes of its nodes}, sorted by group.
_Members = Mapping[Group, frozenset[int]]


class Standing:
    """A group's median beside that of the other nodes of its kind (peers), in the unit of the figure."""

    def __init__(self, group: Group, nodes: Set[int], peers: Set[int], values: Mapping[int, float]) -> None:
        self.group, self.nodes, self.others = group, len(nodes), len(peers)
        self.median = statistics.median(values[number] for number in nodes)
        self.others_median = statistics.median(values[number] for number in peers)

    @property
    def difference(self) -> float | None:
        """The relative difference from the others' median; None if that is 0."""
        return relative(self.median, self.others_median)

    @property
    def large(self) -> bool:
        if self.difference is None:
            return self.median != self.others_median
        return abs(self.difference) >= LEAST_EFFECT


@dataclass(frozen=True)
class GroupFinding:
    """One figure in which a group of nodes differs. ``nodes``: indexes in the report; ``alike``: other groups of
    (nearly) the same nodes. Without ``quality`` the difference may still be chance."""

    key: Key
    standing: Standing
    nodes: frozenset[int]
    probability: float
    quality: float = 1.0
    alike: tuple[tuple[Group, frozenset[int]], ...] = ()

    @property
    def text(self) -> str:
        by, value = self.standing.group
        also = "".join(
            f"; {'' if nodes == self.nodes else 'nearly '}the same nodes as {' '.join(group)}"
            for group, nodes in self.alike
        )
        return (
            f"{by} {value}: {self.key.metric} {self.moved} the other {self.standing.others} nodes "
            f"({self.standing.nodes} nodes, {self.key.kind}, q={self.quality:.1g}){also}"
        )

    @property
    def moved(self) -> str:
        """The difference as text: "4.8 % below"; both figures if the others' is 0."""
        standing = self.standing
        if standing.difference is None:
            figures = (units.human(value, self.key.unit) for value in (standing.median, standing.others_median))
            return "{}, not {} as".format(*figures)
        direction = "below" if standing.difference < 0 else "above"
        return f"{units.number_text(round(abs(standing.difference) * 100, 2))} % {direction}"


@dataclass
class Compared:
    """The result of `compare`: ``standings`` by figure and property; ``comparisons``: number of tests."""

    standings: dict[tuple[Key, str], list[Standing]] = field(default_factory=dict)
    findings: list[GroupFinding] = field(default_factory=list)
    comparisons: int = 0


def compare(samples: Samples, properties: Sequence[Mapping[str, str]]) -> Compared:
    """Compare each group of nodes with the others in every figure. ``properties``: for each node its properties."""
    compared = Compared()
    groups_among = functools.cache(lambda reporting: _find_groups(reporting, properties))
    tests: list[GroupFinding] = []
    for key, sample in samples.figures.items():
        values = sample.medians
        if len(values) >= 2 * MIN_NODES and min(values.values()) != max(values.values()):
            tests += _tests(key, values, groups_among(frozenset(values)), compared)
    compared.comparisons = len(tests)
    by_key = values_by_key((test.key, test) for test in _beyond_chance(tests) if test.standing.large)
    for key, key_tests in by_key.items():
        values = samples.figures[key].medians
        compared.findings += _standing_out(key_tests, values, groups_among(frozenset(values)))
    compared.findings.sort(key=lambda test: (*_sort_key(test), test.key))
    return compared


def _sort_key(finding: GroupFinding) -> tuple[float, float, Group]:
    return finding.probability, -abs(finding.standing.difference or 1), finding.standing.group


def _beyond_chance(tests: Sequence[GroupFinding]) -> Iterator[GroupFinding]:
    """The tests that chance does not explain, each with its q: first groups are chosen, then their figures. Corrected
    together, the many figures of a bad rack would admit some of good groups (Benjamini, Bogomolov 2014)."""
    by_group = values_by_key(((test.standing.group, test.key.kind), test) for test in tests)
    within = {group: benjamini_hochberg([test.probability for test in its]) for group, its in by_group.items()}
    between = benjamini_hochberg([min(its) for its in within.values()])
    chosen = sum(quality <= FALSE_SHARE for quality in between)
    for (group, qualities), of_group in zip(within.items(), between, strict=True):
        if of_group > FALSE_SHARE:
            continue
        for test, of_figure in zip(by_group[group], qualities, strict=True):
            quality = of_figure * len(by_group) / chosen
            if quality <= FALSE_SHARE:
                yield replace(test, quality=quality)


def _find_groups(reporting: frozenset[int], properties: Sequence[Mapping[str, str]]) -> _Members:
    """``{group: nodes}`` of groups with at least MIN_NODES reporting nodes that leave as many other reporting nodes."""
    members = values_by_key((group, number) for number in sorted(reporting) for group in properties[number].items())
    return {
        group: frozenset(nodes)
        for group, nodes in sorted(members.items())
        if MIN_NODES <= len(nodes) <= len(reporting) - MIN_NODES
    }


def _tests(key: Key, values: Mapping[int, float], groups: _Members, compared: Compared) -> Iterator[GroupFinding]:
    """Test each set of nodes once in one figure; of two sets that together are all nodes, only the smaller one."""
    rank = dict(zip(values, midranks([*values.values()]), strict=True)) if groups else {}
    node_sets, sets_done = {*groups.values()}, set[frozenset[int]]()
    for group, nodes in groups.items():
        complement = frozenset(values.keys() - nodes)
        standing = Standing(group, nodes, complement, values)
        compared.standings.setdefault((key, group[0]), []).append(standing)
        is_of_more = (len(nodes), standing.median) > (len(complement), standing.others_median)
        if nodes in sets_done or (is_of_more and complement in node_sets):
            continue
        sets_done.add(nodes)
        if least_p(len(nodes), len(values)) <= FALSE_SHARE:
            probability = mann_whitney(sum(rank[number] for number in nodes), len(nodes), len(values))
            yield GroupFinding(key, standing, nodes, probability)


def _standing_out(
    candidates: Sequence[GroupFinding], values: Mapping[int, float], groups: _Members
) -> Iterator[GroupFinding]:
    """The findings of one figure that still differ without the nodes of stronger findings."""
    explained: set[int] = set()
    for test in sorted(candidates, key=_sort_key):
        if explained & test.nodes and not _still_differs(test, explained, values):
            continue
        explained |= test.nodes
        yield replace(test, alike=_alike(test, groups))


def _still_differs(test: GroupFinding, explained: set[int], values: Mapping[int, float]) -> bool:
    """Whether a group still differs from the other nodes if the nodes in ``explained`` are left out of both."""
    nodes = test.nodes - explained
    peers = values.keys() - test.nodes - explained
    if len(nodes) < MIN_NODES or len(peers) < MIN_NODES:
        return False
    standing = Standing(test.standing.group, nodes, peers, values)
    numbers = [*nodes, *peers]
    rank = midranks([values[number] for number in numbers])
    probability = mann_whitney(sum(rank[: len(nodes)]), len(nodes), len(numbers))
    same_way = (standing.median > standing.others_median) == (test.standing.median > test.standing.others_median)
    return same_way and standing.large and probability <= FALSE_SHARE


def _alike(test: GroupFinding, groups: _Members) -> tuple[tuple[Group, frozenset[int]], ...]:
    """Other groups that have (nearly) the same nodes as the finding's group."""
    others = ((group, nodes) for group, nodes in groups.items() if group != test.standing.group)
    alike = [pair for pair in others if len(pair[1] & test.nodes) >= ALIKE * len(pair[1] | test.nodes)]
    return tuple(sorted(alike, key=lambda pair: (pair[1] != test.nodes, pair[0])))
