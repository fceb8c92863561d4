"""The next tests: pairs that settle what is open; pure.

A node under test gets a partner that is known to be good, a different one each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .explanation import Boundary, Explanation, Link, Wanted
from .node_state import NodeStates, fresh_partners
from .topology import Topology

#: Of three nodes, no two pairs can run at one time.
THREE = 3


@dataclass
class Plan:
    """The pairs of one round; a node is in one of them. `used`: runs of each pair, in the order of the line;

    `asked(purpose, nodes)`: the groups with that purpose that ran about exactly these nodes.
    """

    line: Sequence[str]
    topology: Topology
    explanation: Explanation
    states: NodeStates
    used: Mapping[Link, int]
    asked: Callable[[str, Sequence[str]], int]
    tests: list[Wanted] = field(default_factory=list)

    def __post_init__(self) -> None:
        explanation, self.tuning = self.explanation, self.explanation.tuning
        self._good = explanation.good - {node for pair in explanation.open_links for node in pair}
        self._place = {node: place for place, node in enumerate(self.line)}
        self._free = set(self.line)
        self._runs = Counter(node for pair, count in self.used.items() for node in pair for _ in range(count))

    def make(self) -> list[Wanted]:
        """The tests; none when nothing is open."""
        if len(self.line) == THREE and not any(item.has_failed for item in self.explanation.measurements):
            self._rotate_three()
        if not self.tests:
            self._test_links()
            for boundary, state in self.states.boundaries.items():
                if state.open:
                    self._across(boundary)
            self._test_nodes()
            self._repeat_missing()
            self._vouch()
            if self.tests:
                self._add_controls()
        return self.tests

    def _rotate_three(self) -> None:
        """Of three nodes the pairs run in turn; the pair without the slow node is the measure, and noisy too."""
        states, explanation = self.states, self.explanation
        unclear = states.unsure or states.unvouched or any(state.open for state in states.nodes.values())
        if not unclear and all(self._times(*pair) >= self.tuning.tests for pair in explanation.open_links):
            return
        first, two, three = self.line
        every = [(first, two), (first, three), (two, three)]
        good_pairs = [pair for pair in every if set(pair) == explanation.good]
        one_slow = len(explanation.implicated) == 1 and good_pairs
        if one_slow and self._times(*good_pairs[0]) < self._runs[explanation.implicated[0]]:
            every = good_pairs
        pair = min(every, key=lambda pair: self._times(*pair))
        self._add(*pair, "confirm", *pair)

    def _test_links(self) -> None:
        """Open links again; after that each end with other partners, since one of them may be the cause."""
        explanation, tuning = self.explanation, self.tuning
        for pair in explanation.open_links:
            if self.asked("link", pair) < tuning.partners:
                continue
            for node in pair:
                turn = self.asked("confirm", (node,))
                if turn <= tuning.partners:
                    self._pair_up(node, self._good, "confirm", turn, avoid=fresh_partners(explanation, node))
        for pair, low in explanation.open_links.items():
            failed = any(item.has_failed for item in low)
            if self.asked("link", pair) < (tuning.several if failed else tuning.tests):
                self._add(*pair, "link", *pair)

    def _test_nodes(self) -> None:
        explanation = self.explanation
        self._measure_last_good_pair()
        for node in explanation.implicated:
            if self.states.nodes[node].open and self.asked("confirm", (node,)) < explanation.most_tests():
                fresh = fresh_partners(explanation, node)
                self._pair_up(node, self._good, "confirm", len(fresh), avoid=fresh)

    def _repeat_missing(self) -> None:
        for pair in self.states.missing:
            if self.asked("repeat", pair) < self.tuning.partners:
                self._add(*pair, "repeat", *pair)
        for node in self.states.silent:
            turn = self.asked("silent", (node,))
            if turn < self.tuning.partners:
                self._pair_up(node, self._good, "silent", turn)

    def _vouch(self) -> None:
        """More results for nodes that have too few to be healthy, or too few for the noise."""
        explanation = self.explanation
        fine = {node for node in self.line if not all(item.has_failed for item in explanation.by_node[node])}
        for node in self.states.unvouched:
            if self.asked("vouch", (node,)) < self.tuning.tests // 2:
                for partners in (self._good, fine - set(explanation.implicated)):
                    if self._pair_up(node, partners, "vouch", 0):
                        break
        for node in self.states.unsure:
            self._pair_up(node, self._good, "vouch", self._runs[node])

    def _add_controls(self) -> None:
        """Pairs of good nodes that have no test."""
        free = [node for node in self.line if node in self._free and node in self._good]
        for _ in range(min(self.tuning.round_pairs, len(free) // 2)):
            node = next((node for node in free if node in self._free), None)
            if node is None or not self._pair_up(node, free, "control", 1, names_tested=False):
                return

    def _measure_last_good_pair(self) -> None:
        """If only two nodes are good, their pair cannot run beside a test with one of them: it runs in between."""
        if len(self._good) != 2:
            return
        explanation = self.explanation
        slow = [
            node
            for node in explanation.implicated
            if self.states.nodes[node].open and not any(item.has_failed for item in explanation.by_node[node])
        ]
        tested = max((self.asked("confirm", (node,)) for node in slow), default=-1)
        first, two = sorted(self._good, key=self._place.__getitem__)
        if self._times(first, two) <= tested and not self.tests:
            self._add(first, two, "control")

    def _across(self, boundary: Boundary) -> None:
        groups = self.topology.groups(boundary.kind, self.line)
        inside = [node for node in groups[boundary.names[0]] if node in self._good]
        names = boundary.names[1:] if boundary.scope == "between" else [n for n in groups if n != boundary.names[0]]
        outside = [node for name in names for node in groups[name] if node in self._good]
        begun = 0
        for node in inside:
            partner = self._partner(node, outside, begun, across=True)
            if partner is not None and begun < self.tuning.boundary_pairs:
                begun += self._add(node, partner, "boundary", *boundary.names)

    def _pair_up(
        self,
        node: str,
        among: Iterable[str],
        purpose: str,
        turn: int,
        avoid: Collection[str] = (),
        *,
        names_tested: bool = True,
    ) -> bool:
        partner = self._partner(node, among, turn, avoid) if node in self._free else None
        tested = (node,) if names_tested else ()
        return partner is not None and self._add(node, partner, purpose, *tested)

    def _add(self, node: str, two: str, purpose: str, *tested: str) -> bool:
        if node == two or node not in self._free or two not in self._free:
            return False
        self._free -= {node, two}
        first, second = sorted((node, two), key=self._place.__getitem__)
        self.tests.append(Wanted((first, second), purpose, tested))
        return True

    def _times(self, node: str, two: str) -> int:
        first, second = sorted((node, two), key=self._place.__getitem__)
        return self.used.get((first, second), 0)

    def _is_across(self, first: str, two: str) -> bool:
        """Whether a boundary under suspicion is between them: it would explain any result."""
        for boundary in self.explanation.boundaries:
            groups = {self.topology.place(first, boundary.kind), self.topology.place(two, boundary.kind)}
            if boundary.scope != "apart" and len(groups) == 2 and groups.issuperset(boundary.names):
                return True
        return False

    def _partner(
        self, node: str, among: Iterable[str], turn: int, avoid: Collection[str] = (), across: bool = False
    ) -> str | None:
        """The least used partner on its side of bad boundaries; near in line at even turns, far at odd ones."""
        half = len(self.line) // 2

        def rank(partner: str) -> tuple[bool, int, int, int]:
            apart = abs(self._place[partner] - self._place[node])
            apart = min(apart, len(self.line) - apart)
            distance = apart if turn % 2 == 0 else half - apart
            return partner in avoid, self._times(node, partner), distance, self._place[partner]

        possible = [other for other in among if other in self._free and other != node]
        if self.explanation.boundaries and not across:
            possible = [other for other in possible if not self._is_across(node, other)]
        return min(possible, key=rank, default=None)
