"""Groups of nodes (a rack, a driver) whose figures differ from those of the other nodes of their kind. Pure.

Of each node the median of its parts counts. A group is held against all others by its ranks (Mann-Whitney), which no
outlier moves. At most ``FALSE_SHARE`` of the groups that are found may be chance, over all comparisons of a fleet, and
no more of the figures in which they differ; and they must differ by ``LEAST_EFFECT`` of the others' median or more.

Groups that are the same nodes are compared once and named together. What is left of a group without the nodes of one
that stands out more must stand out by itself, or it is not named: a row is not bad because one rack in it is.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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


@dataclass(frozen=True)
class Standing:
    """A group's median beside that of the other nodes of its kind, in the unit of the figure."""

    group: Group
    nodes: int
    median: float
    others: int
    others_median: float

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


@dataclass(frozen=True)
class _Groups:
    """The groups among some nodes: by property those that are large enough, and the names of each set of nodes."""

    by: Mapping[str, Mapping[str, frozenset[int]]]
    names: Mapping[frozenset[int], Sequence[Group]]


def compare(samples: Samples, properties: Sequence[Mapping[str, str]]) -> Compared:
    """Compare every group with the others of its kind in every figure. ``properties``: those of each node, in order."""
    compared = Compared()
    known_groups: dict[frozenset[int], _Groups] = {}
    tests: list[GroupFinding] = []
    medians: dict[Key, dict[int, float]] = {}
    for key, sample in samples.figures.items():
        values = sample.medians
        if len(values) < 2 * MIN_NODES or min(values.values()) == max(values.values()):
            continue
        medians[key] = values
        reporting = frozenset(values)
        groups = known_groups.get(reporting)
        if groups is None:
            groups = known_groups[reporting] = _find_groups(reporting, properties)
        tests += _tests(key, values, groups, compared)
    compared.comparisons = len(tests)
    by_key = values_by_key((test.key, test) for test in _beyond_chance(tests) if test.standing.large)
    for key, key_tests in by_key.items():
        compared.findings += _standing_out(key_tests, medians[key], known_groups[frozenset(medians[key])])
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


def _find_groups(reporting: frozenset[int], properties: Sequence[Mapping[str, str]]) -> _Groups:
    by: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for number in sorted(reporting):
        for name, value in properties[number].items():
            by[name][value].add(number)
    large = {
        name: {
            value: frozenset(nodes)
            for value, nodes in sorted(values.items())
            if MIN_NODES <= len(nodes) <= len(reporting) - MIN_NODES
        }
        for name, values in sorted(by.items())
    }
    large = {name: values for name, values in large.items() if values}
    named = ((nodes, (name, value)) for name, values in large.items() for value, nodes in values.items())
    return _Groups(large, values_by_key(named))


def _tests(key: Key, values: Mapping[int, float], groups: _Groups, compared: Compared) -> Iterator[GroupFinding]:
    """One test for each set of nodes; of two that together are all nodes, that of fewer, or with the lower median."""
    if not groups.by:
        return
    numbers = list(values)
    rank = dict(zip(numbers, midranks([values[number] for number in numbers]), strict=True))
    standings_done: dict[frozenset[int], Standing] = {}
    for name, by_value in groups.by.items():
        standings = []
        for value, nodes in by_value.items():
            complement_nodes = values.keys() - nodes
            if len(complement_nodes) < MIN_NODES:
                continue
            earlier = standings_done.get(nodes)
            group = (name, value)
            standing = replace(earlier, group=group) if earlier else _standing(group, nodes, complement_nodes, values)
            standings.append(standing)
            complement = frozenset(complement_nodes)
            if earlier is not None or (
                complement in groups.names and (len(nodes), standing.median) > (len(complement), standing.others_median)
            ):
                continue
            standings_done[nodes] = standing
            if least_p(len(nodes), len(values)) > FALSE_SHARE:
                continue
            probability = mann_whitney(sum(rank[number] for number in nodes), len(nodes), len(values))
            yield GroupFinding(key, standing, nodes, probability)
        if standings:
            compared.standings[key, name] = standings


def _standing(group: Group, nodes: frozenset[int], peers: set[int], values: Mapping[int, float]) -> Standing:
    return Standing(
        group,
        len(nodes),
        statistics.median(values[number] for number in nodes),
        len(peers),
        statistics.median(values[number] for number in peers),
    )


def _standing_out(
    candidates: Sequence[GroupFinding], values: Mapping[int, float], groups: _Groups
) -> Iterator[GroupFinding]:
    """Those candidates of one figure that still differ without the nodes of the candidates before them."""
    explained: set[int] = set()
    for test in sorted(candidates, key=_sort_key):
        if explained & test.nodes and not _still_differs(test, explained, values):
            continue
        explained |= test.nodes
        yield replace(test, alike=_alike(test, groups))


def _still_differs(test: GroupFinding, explained: set[int], values: Mapping[int, float]) -> bool:
    """Whether the group differs without the nodes in ``explained``, and from others of which none is explained."""
    nodes = test.nodes - explained
    peers = values.keys() - test.nodes - explained
    if len(nodes) < MIN_NODES or len(peers) < MIN_NODES:
        return False
    standing = _standing(test.standing.group, nodes, peers, values)
    numbers = [*nodes, *peers]
    rank = midranks([values[number] for number in numbers])
    probability = mann_whitney(sum(rank[: len(nodes)]), len(nodes), len(numbers))
    same_way = (standing.median > standing.others_median) == (test.standing.median > test.standing.others_median)
    return same_way and standing.large and probability <= FALSE_SHARE


def _alike(test: GroupFinding, groups: _Groups) -> tuple[tuple[Group, frozenset[int]], ...]:
    """Other groups of the same nodes, or nearly the same."""
    names_alike = []
    for nodes, names in groups.names.items():
        if len(nodes & test.nodes) >= ALIKE * len(nodes | test.nodes):
            names_alike += [(name, nodes) for name in names if name != test.standing.group]
    return tuple(sorted(names_alike, key=lambda pair: (pair[1] != test.nodes, pair[0])))
