"""The search for the bad node or link of a gang: which disjoint groups run next, and what their results mean; pure.

    search = Search.start(nodes, topology, Limits())
    while (round_ := search.next_round()) is not None:
        search.add_results({group.id: Result("ok", bus_bytes_per_second=...) for group in round_.groups}, seconds)
    search.finding()

Everything is derived from the rounds and their results: `to_json` works between any two steps, `from_json` resumes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Optional

from ...core import schemas
from .explanation import Boundary, Explanation, Link, Measurement, explain
from .findings import HEALTHY, Findings, NodeStates, classify, conclude
from .statistics import FAILED, Result, percent
from .topology import Topology, count_pair_rounds, pair_rounds
from .tuning import DEFAULT, Limits, Tuning

__all__ = ["Boundary", "Findings", "Group", "Limits", "Result", "Round", "Search", "Topology", "Tuning"]

SCHEMA = "gpuval.localisation/1"
BUS, LATENCY = "bus_bytes_per_second", "latency_seconds"


@dataclass(frozen=True)
class Round:
    """Disjoint groups that run at the same time; `number` counts from 1."""

    number: int
    groups: tuple[Group, ...]
    deadline_seconds: float


@dataclass
class Search:
    """A search: its `rounds`, and the results of each round, None while it is pending."""

    line: list[str]
    topology: Topology
    limits: Limits
    rounds: list[Round] = field(default_factory=list)
    results: list[Optional[dict[str, Result]]] = field(default_factory=list)
    seconds: float = 0.0
    stopped: str = ""
    tuning: Tuning = DEFAULT
    _cache: tuple[int, Any] = (-1, None)

    @classmethod
    def start(
        cls,
        nodes: Sequence[str],
        topology: Topology | None = None,
        limits: Limits | None = None,
        tuning: Tuning = DEFAULT,
    ) -> Search:
        """Begin a search among these nodes, whose order does not matter."""
        topology = topology or Topology()
        return cls(topology.line(nodes), topology, limits or Limits(), tuning=tuning)

    # What runs next

    def next_round(self) -> Round | None:
        """The round to run: the same one until its results are added, None when the search is over."""
        if self.results and self.results[-1] is None:
            return self.rounds[-1]
        groups = self._next_groups()
        self.stopped = self._limit() if groups else self.stopped
        if not groups or self.stopped:
            return None
        number = len(self.rounds) + 1
        formed = tuple(replace(group, id=_group_id(number, index)) for index, group in enumerate(groups, 1))
        self.rounds.append(Round(number, formed, self.limits.deadline_seconds))
        self.results.append(None)
        return self.rounds[-1]

    def add_results(self, results: Mapping[str, Result], seconds: float | None = None) -> None:
        """Add the results of the pending round by group id; a group without a result counts as missing.

        `seconds`: duration of the round; without it the whole deadline counts.
        """
        self.results[-1] = {
            group.id: results.get(group.id, Result("missing")).cleaned(group.nodes) for group in self.rounds[-1].groups
        }
        self.seconds += self.rounds[-1].deadline_seconds if seconds is None else max(0.0, seconds)

    def _limit(self) -> str:
        """The limit that forbids another round, as text; empty if none does."""
        if len(self.rounds) >= self.limits.rounds:
            return f"the limit of {self.limits.rounds} rounds"
        if self.limits.wall_seconds and self.seconds + self.limits.deadline_seconds > self.limits.wall_seconds:
            return f"the limit of {self.limits.wall_seconds:g} s"
        return ""

    def _next_groups(self) -> list[Group]:
        if len(self.line) < 2:
            return []
        paired = sum(round_.groups[0].purpose == "pair" for round_ in self.rounds)
        every = count_pair_rounds(len(self.line))
        paired_rounds = min(self.limits.pair_rounds, every)
        if paired < paired_rounds:
            return self._pairs(paired)
        explanation, states = self._state()
        is_unclear = len(self.line) <= 2 * self.tuning.small_gang and explanation.faster()
        if paired < every and (is_unclear or not explanation.good):
            return self._pairs(paired)
        tests = Plan(self.line, self.topology, explanation, states, self._run()).make()
        if tests:
            return tests
        whole_gang, fault = self._whole_gang(explanation, states)
        paired_rounds = every if len(self.line) <= self.tuning.small_gang else paired_rounds
        if whole_gang and paired < paired_rounds:  # measure links outside the ring
            return self._pairs(paired)
        if fault and paired < paired_rounds + self.tuning.partners:  # the fault may be newer than the pairs' results
            return self._pairs(paired % every)
        return whole_gang

    def _pairs(self, number: int) -> list[Group]:
        return [Group(pair, "pair") for pair in pair_rounds(self.line, self.topology, number + 1)[number]]

    def _run(self) -> list[Group]:
        return [group for round_ in self.rounds for group in round_.groups]

    # What the results mean

    def _state(self) -> tuple[Explanation, NodeStates]:
        complete = sum(result is not None for result in self.results)
        if self._cache[0] != complete:
            figure = self._figure()
            measurements = [
                Measurement(
                    number, group.nodes[0], group.nodes[1], group.purpose, *_reading(result, figure), result.culprits,
                    group.tested, result.message,
                )
                for number, group, result in self._with_results()
                if len(group.nodes) == 2
            ]  # fmt: skip
            cached = self._cache[1]
            if cached is None or len(measurements) != cached[0].count:  # otherwise only larger groups ran since
                explanation = explain(self.line, self.topology, self.limits, measurements, self.tuning)
                cached = explanation, classify(explanation)
            self._cache = complete, cached
        return self._cache[1]

    def _with_results(self) -> Iterator[tuple[int, Group, Result]]:
        """Index of the round, group and its result, of all complete rounds."""
        for round_, results in zip(self.rounds, self.results):
            for group in round_.groups if results is not None else ():
                yield round_.number - 1, group, (results or {})[group.id]

    def _figure(self) -> str:
        """Name of the figure to compare: the bandwidth if a result has it, else the latency, else empty."""
        answers = [result for results in self.results for result in (results or {}).values()]
        return next(
            (name for name in (BUS, LATENCY) if any(getattr(answer, name) is not None for answer in answers)), ""
        )

    def _whole_gang(self, explanation: Explanation, states: NodeStates) -> tuple[list[Group], str]:
        """The group of all nodes if it runs next (once all pairs are fine, again after a bad result); and the gang's
        fault.

        Bus bandwidth naturally falls with size, by less than `gross` and a margin for each doubling.
        """
        is_faulty = explanation.implicated or explanation.bad_links or explanation.open_links or states.boundaries
        is_fine = all(states.nodes[node].name == HEALTHY for node in self.line)
        if not self.limits.climb or is_faulty or not is_fine or len(self.line) <= self.tuning.partners:
            return [], ""
        usual = explanation.centre or 0.0
        least = usual - self.tuning.gross - self.limits.margin_ratio * math.log2(len(self.line) / 2)
        readings = [
            _reading(result, self._figure())
            for _, group, result in self._with_results()
            if len(group.nodes) == len(self.line)
        ]
        bad = [
            f"is {percent(value - usual)}" if value is not None else state
            for state, value in readings
            if (value is None and state != "ok") or (value is not None and value < least)
        ]
        if len(bad) == len(readings) < self.tuning.partners:
            return [Group(tuple(self.line), "climb", tuple(self.line))], ""
        if len(bad) < len(readings) and FAILED.isdisjoint(bad):
            return [], ""
        faults = " and ".join(dict.fromkeys(bad))
        return [], f"the whole gang: {faults} in {len(bad)} of {len(readings)} rounds; each pair is fine"

    def finding(self) -> Findings:
        """The findings of the results so far, also while the search runs."""
        explanation, states = self._state()
        is_bus = self._figure() == BUS
        floor = self.limits.floor_bytes_per_second if is_bus else None
        report = conclude(self.line, self.topology, explanation, states, floor)
        fault = self._whole_gang(explanation, states)[1]
        report.gang += [fault] if fault else []
        if not is_bus:
            report.centre_bytes_per_second = None
        if not self.rounds or self.results[0] is None:
            report.gang = ["fewer than two nodes: nothing to compare"] if len(self.line) < 2 else []
        report.rounds, report.seconds, report.stopped = len(self.rounds), self.seconds, self.stopped
        report.pairs = sum(len(group.nodes) == 2 for group in self._run())
        return report

    # Saving and resuming

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "nodes": list(self.line),
            "topology": {node: dict(groups) for node, groups in self.topology.places.items() if node in self.line},
            "limits": asdict(self.limits),
            "seconds": self.seconds,
            "rounds": [
                {**asdict(round_), "results": results and {name: asdict(one) for name, one in results.items()}}
                for round_, results in zip(self.rounds, self.results)
            ],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Search:
        """Restore a saved search. Raises schemas.Invalid."""
        schemas.validate("localisation", document, what="the saved search")
        for index, saved in enumerate(document["rounds"]):
            problem = _problem_of_round(saved, index + 1, document["nodes"], is_last=saved is document["rounds"][-1])
            if problem:
                raise schemas.Invalid("the saved search", ("rounds", index), problem)
        search = cls.start(document["nodes"], Topology.of_labels(document["topology"]), Limits(**document["limits"]))
        search.seconds = document["seconds"]
        for saved in document["rounds"]:
            groups = tuple(
                Group(tuple(group["nodes"]), group["purpose"], tuple(group["tested"]), group["id"])
                for group in saved["groups"]
            )
            results = saved["results"] and {
                group.id: Result(**saved["results"][group.id]).cleaned(group.nodes) for group in groups
            }
            search.rounds.append(Round(saved["number"], groups, saved["deadline_seconds"]))
            search.results.append(results)
        return search


def _group_id(round_number: int, index: int) -> str:
    return f"r{round_number:02}-g{index:03}"


def _problem_of_round(saved: Mapping[str, Any], number: int, nodes: Sequence[str], *, is_last: bool) -> str:
    """Mistakes that the schema cannot express: results under other nodes or groups would implicate the wrong node."""
    groups, results = [group["id"] for group in saved["groups"]], saved["results"]
    used = Counter(node for group in saved["groups"] for node in group["nodes"])
    foreign, twice = sorted(used.keys() - set(nodes)), [node for node, count in used.items() if count > 1]
    if saved["number"] != number:
        return f"round {saved['number']} where {number} is expected"
    if groups != [_group_id(number, index) for index in range(1, len(groups) + 1)]:
        return "groups out of order"
    if foreign or twice:
        return f"{foreign[0]} is no node of the search" if foreign else f"{twice[0]} is in two groups"
    if results is None:
        return "" if is_last else "no results, but a later round"
    return "" if results.keys() == set(groups) else "results of other groups than its own"


def _reading(result: Result, name: str) -> tuple[str, float | None]:
    """State and logarithm of the speed from the figure `name`. `ok` without that figure becomes `missing`."""
    if result.state not in ("ok", "slow"):
        return result.state, None
    value = getattr(result, name) if name else None
    if value is None:
        return ("missing" if name and result.state == "ok" else result.state), None
    return result.state, math.log(value) if name == BUS else -math.log(value)


#: With three nodes, no two pairs can run at the same time.
THREE = 3


@dataclass(frozen=True)
class Group:
    """Nodes that run together. `purpose`: why; `tested`: the nodes or the boundary that the run tests."""

    nodes: tuple[str, ...]
    purpose: str
    tested: tuple[str, ...] = ()
    id: str = ""


@dataclass
class Plan:
    """The pairs of the next round for open questions, a node in one pair at most. `groups`: all groups that ran before.

    A node under test gets a partner that is known to be good, a different one each time.
    """

    line: Sequence[str]
    topology: Topology
    explanation: Explanation
    states: NodeStates
    groups: Sequence[Group]
    tests: list[Group] = field(default_factory=list)

    def __post_init__(self) -> None:
        explanation, self.tuning = self.explanation, self.explanation.tuning
        good = explanation.good - {node for pair in explanation.open_links for node in pair}
        self._good = [node for node in self.line if node in good]
        self._place = {node: place for place, node in enumerate(self.line)}
        self._free = set(self.line)
        #: Counts of runs: by pair, by node in a pair, and by purpose and tested nodes.
        self._used = Counter(group.nodes for group in self.groups if len(group.nodes) == 2)
        self._runs = Counter(node for pair in self._used.elements() for node in pair)
        self._asked = Counter((group.purpose, group.tested) for group in self.groups)
        self._never_failed = {
            node for node, items in explanation.by_node.items() if not any(item.has_failed for item in items)
        }

    def make(self) -> list[Group]:
        """The groups to run; none if nothing is open."""
        if len(self.line) == THREE and self._never_failed.issuperset(self.line):
            self._rotate_three()
        if not self.tests:
            self._test_links()
            self._test_boundaries()
            self._test_nodes()
            self._repeat_missing()
            self._vouch()
            for _ in range(self.tuning.round_pairs if self.tests else 0):  # add pairs of good nodes without a test
                node = next((node for node in self._good if node in self._free), None)
                if node is None or not self._pair_up(node, self._good, "control", 1, names_tested=False):
                    break
        return self.tests

    def _rotate_three(self) -> None:
        """Run the pairs of three nodes in turn: the pair without the slow node is the reference, and noisy too."""
        states, explanation = self.states, self.explanation
        unclear = states.unsure or states.unvouched or any(state.open for state in states.nodes.values())
        if not unclear and all(self._count_runs(*pair) >= self.tuning.tests for pair in explanation.open_links):
            return
        first, second, third = self.line
        pairs = [(first, second), (first, third), (second, third)]
        good_pairs = [pair for pair in pairs if set(pair) == explanation.good]
        is_one_slow = len(explanation.implicated) == 1 and good_pairs
        if is_one_slow and self._count_runs(*good_pairs[0]) < self._runs[explanation.implicated[0]]:
            pairs = good_pairs
        pair = min(pairs, key=lambda pair: self._count_runs(*pair))
        self._add(*pair, "confirm", *pair)

    def _confirm(self, node: str, turn: int) -> None:
        fresh = {item.other(node) for item in self.explanation.by_node[node] if item.is_test_of(node)}
        self._pair_up(node, self._good, "confirm", len(fresh) if turn < 0 else turn, avoid=fresh)

    def _test_links(self) -> None:
        """Test open links again, and each end with other partners, since one end may be the cause."""
        explanation, tuning = self.explanation, self.tuning
        for pair in explanation.open_links:
            for node in pair if self._asked["link", pair] >= tuning.partners else ():
                turn = self._asked["confirm", (node,)]
                if turn <= tuning.partners:
                    self._confirm(node, turn)
        for pair, low in explanation.open_links.items():
            has_failed = any(item.has_failed for item in low)
            if self._asked["link", pair] < (tuning.several if has_failed else tuning.tests):
                self._add(*pair, "link", *pair)

    def _test_boundaries(self) -> None:
        for boundary in (boundary for boundary, state in self.states.boundaries.items() if state.open):
            groups = self.topology.groups(boundary.kind, self.line)
            inside = [node for node in groups[boundary.names[0]] if node in self._good]
            names = boundary.names[1:] if boundary.scope == "between" else [n for n in groups if n != boundary.names[0]]
            outside = [node for name in names for node in groups[name] if node in self._good]
            begun = 0
            for node in inside:
                partner = self._partner(node, outside, begun, across=True)
                if partner is not None and begun < self.tuning.boundary_pairs:
                    begun += self._add(node, partner, "boundary", *boundary.names)

    def _test_nodes(self) -> None:
        """Test suspect nodes. If only two nodes are good, their pair cannot run at the same time, so it runs in
        between."""
        explanation = self.explanation
        open_nodes = [node for node in explanation.implicated if self.states.nodes[node].open]
        if len(self._good) == 2:
            slow = [node for node in open_nodes if node in self._never_failed]
            tested = max((self._asked["confirm", (node,)] for node in slow), default=-1)
            if self._count_runs(*self._good) <= tested and not self.tests:
                self._add(*self._good, "control")
        for node in open_nodes:
            if self._asked["confirm", (node,)] < explanation.most_tests():
                self._confirm(node, -1)

    def _repeat_missing(self) -> None:
        for pair in self.states.missing:
            if self._asked["repeat", pair] < self.tuning.partners:
                self._add(*pair, "repeat", *pair)
        for node in self.states.silent:
            turn = self._asked["silent", (node,)]
            if turn < self.tuning.partners:
                self._pair_up(node, self._good, "silent", turn)

    def _vouch(self) -> None:
        """Add results for nodes with too few to be healthy, or too few for the noise."""
        explanation = self.explanation
        fine = {node for node in self.line if not all(item.has_failed for item in explanation.by_node[node])}
        for node in self.states.unvouched:
            if self._asked["vouch", (node,)] < self.tuning.tests // 2:
                for partners in (self._good, fine - set(explanation.implicated)):
                    if self._pair_up(node, partners, "vouch", 0):
                        break
        for node in self.states.unsure:
            self._pair_up(node, self._good, "vouch", self._runs[node])

    def _pair_up(
        self,
        node: str,
        candidates: Iterable[str],
        purpose: str,
        turn: int,
        avoid: Collection[str] = (),
        *,
        names_tested: bool = True,
    ) -> bool:
        partner = self._partner(node, candidates, turn, avoid) if node in self._free else None
        tested = (node,) if names_tested else ()
        return partner is not None and self._add(node, partner, purpose, *tested)

    def _in_line(self, node: str, partner: str) -> Link:
        first, second = sorted((node, partner), key=self._place.__getitem__)
        return first, second

    def _add(self, node: str, partner: str, purpose: str, *tested: str) -> bool:
        if node == partner or not self._free.issuperset((node, partner)):
            return False
        self._free -= {node, partner}
        self.tests.append(Group(self._in_line(node, partner), purpose, tested))
        return True

    def _count_runs(self, node: str, partner: str) -> int:
        return self._used[self._in_line(node, partner)]

    def _is_across(self, first: str, second: str) -> bool:
        """Whether a suspect boundary separates the two nodes: it would explain any result of the pair."""
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
