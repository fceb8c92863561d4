"""Which pairs of nodes run next to settle open questions of the search; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from .pair_explanation import PairExplanation
from .search_findings import NodeFindings
from .search_limits import TUNING
from .topology import Topology


@dataclass(frozen=True)
class SearchGroup:
    """Nodes that run together. `purpose`: why; `tested`: the nodes or the boundary that the run tests."""

    nodes: tuple[str, ...]
    purpose: str
    tested: tuple[str, ...] = ()
    id: str = ""


@dataclass
class RoundPlan:
    """The pairs of the next round for open questions, a node in one pair at most. `groups`: all groups that ran before.
    A node under test gets a partner that is known to be good, a different one each time."""

    line: Sequence[str]
    topology: Topology
    explanation: PairExplanation
    states: NodeFindings
    groups: Sequence[SearchGroup]
    tests: list[SearchGroup] = field(default_factory=list)

    def __post_init__(self) -> None:
        explanation = self.explanation
        good = explanation.good - {node for pair in explanation.open_links for node in pair}
        self._good = [node for node in self.line if node in good]
        self._place = {node: place for place, node in enumerate(self.line)}
        self._free = set(self.line)
        #: Counts of runs: by pair, by node in a pair, and by purpose and tested nodes.
        self._used = Counter(frozenset(group.nodes) for group in self.groups if len(group.nodes) == 2)
        self._runs = Counter(node for pair in self._used.elements() for node in pair)
        self._asked = Counter((group.purpose, group.tested) for group in self.groups)
        self._never_failed = {
            node for node, items in explanation.by_node.items() if not any(item.has_failed for item in items)
        }

    def make(self) -> list[SearchGroup]:
        """The groups to run in the next round; none if no question is open."""
        if len(self.line) == 3 and self._never_failed.issuperset(self.line):
            self._rotate_three()
        if not self.tests:
            self._test_links()
            self._test_boundaries()
            self._test_nodes()
            self._repeat_missing()
            self._vouch()
            for _ in range(TUNING.round_pairs if self.tests else 0):  # add pairs of good nodes without a test
                node = next((node for node in self._good if node in self._free), None)
                if node is None or not self._add(node, self._partner(node, self._good, 1), "control"):
                    break
        return self.tests

    def _rotate_three(self) -> None:
        """Run the pairs of three nodes in turn, as no two fit into a round: the pair of good nodes is noisy too."""
        states, explanation = self.states, self.explanation
        unclear = states.unsure or states.unvouched or any(state.open for state in states.nodes.values())
        if not unclear and all(self._count_runs(*pair) >= TUNING.tests for pair in explanation.open_links):
            return
        first, second, third = self.line
        pairs = [(first, second), (first, third), (second, third)]
        good_pairs = [pair for pair in pairs if set(pair) == explanation.good]
        is_one_slow = len(explanation.implicated) == 1 and good_pairs
        if is_one_slow and self._count_runs(*good_pairs[0]) < self._runs[explanation.implicated[0]]:
            pairs = good_pairs
        pair = min(pairs, key=lambda pair: self._count_runs(*pair))
        self._add(*pair, "confirm", *pair)

    def _run_with_good(self, node: str, purpose: str, limit: int) -> bool:
        """Pair the node with a good partner, unless `limit` pairs had this purpose."""
        turn = self._asked[purpose, (node,)]
        met = {item.other(node) for item in self.explanation.by_node[node] if item.is_test_of(node)}
        return turn < limit and self._pair_up(node, self._good, purpose, turn, met if purpose == "confirm" else ())

    def _test_links(self) -> None:
        """Test open links again, and each end with other partners, since one end may be the cause."""
        for pair in self.explanation.open_links:
            for node in pair if self._asked["link", pair] >= TUNING.partners else ():
                self._run_with_good(node, "confirm", TUNING.partners + 1)
        for pair, low in self.explanation.open_links.items():
            limit = TUNING.several if any(item.has_failed for item in low) else TUNING.tests
            if self._asked["link", pair] < limit:
                self._add(*pair, "link", *pair)

    def _test_boundaries(self) -> None:
        for boundary in (boundary for boundary, state in self.states.boundaries.items() if state.open):
            groups = self.topology.groups(boundary.kind, self.line)
            inside = [node for node in groups[boundary.names[0]] if node in self._good]
            names = boundary.names[1:] if boundary.scope == "between" else [n for n in groups if n != boundary.names[0]]
            outside = [node for name in names for node in groups[name] if node in self._good]
            begun = 0
            for node in inside:
                if begun < TUNING.several:
                    partner = self._partner(node, outside, begun, across=True)
                    begun += self._add(node, partner, "boundary", *boundary.names)

    def _test_nodes(self) -> None:
        """Test suspect nodes. The pair of the only two good nodes cannot run at the same time, so it runs in
        between."""
        explanation = self.explanation
        open_nodes = [node for node in explanation.implicated if self.states.nodes[node].open]
        if len(self._good) == 2:
            slow = [node for node in open_nodes if node in self._never_failed]
            tested = max((self._asked["confirm", (node,)] for node in slow), default=-1)
            if self._count_runs(*self._good) <= tested and not self.tests:
                self._add(*self._good, "control")
        for node in open_nodes:
            self._run_with_good(node, "confirm", explanation.most_tests())

    def _repeat_missing(self) -> None:
        for pair in self.states.missing:
            if self._asked["repeat", pair] < TUNING.partners:
                self._add(*pair, "repeat", *pair)
        for node in self.states.silent:
            self._run_with_good(node, "silent", TUNING.partners)

    def _vouch(self) -> None:
        """Add results for nodes with too few to be healthy, or too few for the noise."""
        explanation = self.explanation
        fine = [node for node in self.line if not all(item.has_failed for item in explanation.by_node[node])]
        for node in self.states.unvouched:
            is_due = self._asked["vouch", (node,)] < TUNING.tests // 2
            if is_due and not self._pair_up(node, self._good, "vouch", 0):
                self._pair_up(node, set(fine) - set(explanation.implicated), "vouch", 0)
        for node in self.states.unsure:
            self._pair_up(node, self._good, "vouch", self._runs[node])

    def _pair_up(
        self, node: str, candidates: Iterable[str], purpose: str, turn: int, avoid: Collection[str] = ()
    ) -> bool:
        return node in self._free and self._add(node, self._partner(node, candidates, turn, avoid), purpose, node)

    def _add(self, node: str, partner: str | None, purpose: str, *tested: str) -> bool:
        if partner is None or not self._free.issuperset((node, partner)):
            return False
        self._free -= {node, partner}
        pair = tuple(sorted((node, partner), key=self._place.__getitem__))
        self.tests.append(SearchGroup(pair, purpose, tested))
        return True

    def _count_runs(self, *pair: str) -> int:
        return self._used[frozenset(pair)]

    def _is_across(self, first: str, second: str) -> bool:
        """Whether a boundary with slow links separates two nodes: it would explain any result of the pair."""
        for boundary in self.explanation.boundaries:
            groups = {self.topology.place(first, boundary.kind), self.topology.place(second, boundary.kind)}
            if boundary.scope != "apart" and len(groups) == 2 and groups.issuperset(boundary.names):
                return True
        return False

    def _partner(
        self, node: str, candidates: Iterable[str], turn: int, avoid: Collection[str] = (), across: bool = False
    ) -> str | None:
        """The least used partner on the node's side of bad boundaries; near in line at even turns, far at odd ones."""
        half = len(self.line) // 2

        def rank(partner: str) -> tuple[bool, int, int, int]:
            apart = abs(self._place[partner] - self._place[node])
            apart = min(apart, len(self.line) - apart)
            distance = apart if turn % 2 == 0 else half - apart
            return partner in avoid, self._count_runs(node, partner), distance, self._place[partner]

        possible = [other for other in candidates if other in self._free and other != node]
        if self.explanation.boundaries and not across:
            possible = [other for other in possible if not self._is_across(node, other)]
        return min(possible, key=rank, default=None)
