"""The next tests: who is paired with whom, so that what is open can be told; pure.

Whoever is looked at is paired with a partner that is known to be good, each time with another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.explain import (
    CONFIRMED,
    LINK_FAILURES,
    NODE_TESTS,
    Boundary,
    Picture,
    most_tests,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.node_state import (
    LINK_TESTS,
    REPEATS,
    Standings,
    fresh_partners,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.statistics import HARD
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.topology import Topology

#: Good pairs that run beside the tests, to tell how the round as a whole goes.
CONTROLS = 8
#: Of so many nodes no two pairs run at one time.
THREE = 3
#: Pairs across a boundary that is to be confirmed.
ACROSS = 4


class Test(NamedTuple):
    one: str
    two: str
    purpose: str
    tested: tuple[str, ...]


class _Round:
    """The pairs of one round; a node is in one of them."""

    def __init__(
        self, line: Sequence[str], topology: Topology, picture: Picture, used: dict[tuple[str, str], int]
    ) -> None:
        self.line, self.topology, self.picture, self.used = line, topology, picture, used
        self.place = {node: place for place, node in enumerate(line)}
        self.free = set(line)
        self.tests: list[Test] = []
        self.runs: Counter[str] = Counter()
        for pair, count in used.items():
            self.runs.update(dict.fromkeys(pair, count))

    def add(self, one: str, two: str, purpose: str, *tested: str) -> bool:
        if one == two or one not in self.free or two not in self.free:
            return False
        self.free -= {one, two}
        first, second = sorted((one, two), key=self.place.__getitem__)
        self.tests.append(Test(first, second, purpose, tested))
        return True

    def taken(self, node: str) -> int:
        """In how many pairs a node was."""
        return self.runs[node]

    def times(self, one: str, two: str) -> int:
        first, second = sorted((one, two), key=self.place.__getitem__)
        return self.used.get((first, second), 0)

    def is_across(self, one: str, two: str) -> bool:
        """Whether a boundary that was found, or is suspected, lies between them: it would explain whatever comes."""
        for boundary in self.picture.boundaries:
            groups = {self.topology.place(one, boundary.kind), self.topology.place(two, boundary.kind)}
            if boundary.scope != "apart" and len(groups) == 2 and groups.issuperset(boundary.names):
                return True
        return False

    def partner(
        self, node: str, among: Iterable[str], turn: int, avoid: set[str] = frozenset(), across: bool = False
    ) -> str | None:
        """One that it had least often, on its side of bad boundaries; near in line at even turns, far at odd ones."""
        half = len(self.line) // 2

        def rank(other: str) -> tuple[bool, int, int, int]:
            apart = abs(self.place[other] - self.place[node])
            apart = min(apart, len(self.line) - apart)
            return other in avoid, self.times(node, other), apart if turn % 2 == 0 else half - apart, self.place[other]

        possible = [other for other in among if other in self.free and other != node]
        if self.picture.boundaries and not across:
            possible = [other for other in possible if not self.is_across(node, other)]
        return min(possible, key=rank, default=None)


def tests(
    line: Sequence[str],
    topology: Topology,
    picture: Picture,
    standings: Standings,
    used: dict[tuple[str, str], int],
    asked: Callable[[str, Sequence[str]], int],
) -> list[Test]:
    """Pairs of the next round; none when nothing is open. `used`: how often pairs were run, in the order of the line;

    `asked(purpose, nodes)`: how many groups of that purpose were run about exactly these nodes.
    """
    plan = _Round(line, topology, picture, used)
    good = picture.good - {node for pair in picture.open_links for node in pair}
    if len(line) == THREE and not any(value == HARD for value in picture.relative):
        _three(plan, picture, standings)
    if plan.tests:
        return plan.tests
    _ends(plan, picture, good, asked)
    for pair, low in picture.open_links.items():
        failed = any(picture.relative[index] == HARD for index in low)
        if asked("link", pair) < (LINK_FAILURES if failed else LINK_TESTS):
            plan.add(*pair, "link", *pair)
    for boundary, standing in standings.boundaries.items():
        if standing.open:
            _across(plan, topology, boundary, good)
    _alone(plan, picture, standings, good, asked)
    for node in picture.accused:
        if standings.nodes[node].open and node in plan.free and asked("confirm", (node,)) < most_tests(picture):
            fresh = fresh_partners(picture, node)
            partner = plan.partner(node, good, len(fresh), fresh)
            if partner is not None:
                plan.add(node, partner, "confirm", node)
    for pair in standings.missing:
        if asked("repeat", pair) < REPEATS:
            plan.add(*pair, "repeat", *pair)
    for node in standings.silent:
        if asked("silent", (node,)) < REPEATS:
            partner = plan.partner(node, good, asked("silent", (node,)))
            if partner is not None:
                plan.add(node, partner, "silent", node)
    fine = {node for node in line if any((picture.relative[index] or 0.0) > HARD for index in picture.of_node[node])}
    for node in standings.unvouched:
        if node in plan.free and asked("vouch", (node,)) < NODE_TESTS // 2:
            partner = plan.partner(node, good, 0) or plan.partner(node, fine - set(picture.accused), 0)
            if partner is not None:
                plan.add(node, partner, "vouch", node)
    for node in standings.unsure:
        if node in plan.free:
            partner = plan.partner(node, good, plan.taken(node))
            if partner is not None:
                plan.add(node, partner, "vouch", node)
    if plan.tests:
        _controls(plan, good)
    return plan.tests


def _three(plan: _Round, picture: Picture, standings: Standings) -> None:
    """Of three nodes the pairs come in turn: whoever is slow, the pair without it is the measure, and is noisy, too."""
    unclear = standings.unsure or standings.unvouched or any(standing.open for standing in standings.nodes.values())
    if unclear or any(plan.times(*pair) < LINK_TESTS for pair in picture.open_links):
        every = [(one, two) for place, one in enumerate(plan.line) for two in plan.line[place + 1 :]]
        others = [pair for pair in every if set(pair) == picture.good]
        if len(picture.accused) == 1 and others and plan.times(*others[0]) < plan.taken(picture.accused[0]):
            every = others
        one, two = min(every, key=lambda pair: plan.times(*pair))
        plan.add(one, two, "confirm", one, two)


def _has_failed(picture: Picture, node: str) -> bool:
    """Whether the node is looked at for what no noise explains: nobody's speed is its measure."""
    return any(picture.relative[index] == HARD for index in picture.of_node[node])


def _alone(
    plan: _Round, picture: Picture, standings: Standings, good: set[str], asked: Callable[[str, Sequence[str]], int]
) -> None:
    """Where only two nodes are good, their pair cannot run beside a test with one of them: it has every other round."""
    if len(good) != CONFIRMED:
        return
    slow = [node for node in picture.accused if standings.nodes[node].open and not _has_failed(picture, node)]
    tested = max((asked("confirm", (node,)) for node in slow), default=-1)
    one, two = sorted(good, key=plan.place.__getitem__)
    if plan.times(one, two) <= tested and not plan.tests:
        plan.add(one, two, "control")


def _ends(plan: _Round, picture: Picture, good: set[str], asked: Callable[[str, Sequence[str]], int]) -> None:
    """Both nodes of a pair that stays open are tried with others: it may be one of them, and not the link."""
    for pair in picture.open_links:
        if asked("link", pair) < CONFIRMED:
            continue
        for node in pair:
            if node in plan.free and asked("confirm", (node,)) < REPEATS + 1:
                partner = plan.partner(node, good, asked("confirm", (node,)), fresh_partners(picture, node))
                if partner is not None:
                    plan.add(node, partner, "confirm", node)


def _across(plan: _Round, topology: Topology, boundary: Boundary, good: set[str]) -> None:
    groups = topology.groups(boundary.kind, plan.line)
    inside = [node for node in groups[boundary.names[0]] if node in good]
    if boundary.scope == "between":
        outside = [node for node in groups[boundary.names[1]] if node in good]
    else:
        outside = [
            node for name, nodes in groups.items() if name != boundary.names[0] for node in nodes if node in good
        ]
    begun = 0
    for node in inside:
        partner = plan.partner(node, outside, begun, across=True)
        if partner is not None and begun < ACROSS:
            begun += plan.add(node, partner, "boundary", *boundary.names)


def _controls(plan: _Round, good: set[str]) -> None:
    left = [node for node in plan.line if node in plan.free and node in good]
    for _ in range(min(CONTROLS, len(left) // 2)):
        node = next((node for node in left if node in plan.free), None)
        partner = plan.partner(node, left, 1) if node else None
        if node is None or partner is None:
            return
        plan.add(node, partner, "control")
