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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from ...core import schemas
from . import pairs
from .confirm import Plan
from .explain import explain
from .explanation import Boundary, Explanation, Link, Measurement, Setting, Wanted
from .findings import Findings, conclude
from .node_state import HEALTHY, NodeStates, classify
from .statistics import FAILED, Result, percent
from .topology import Topology
from .tuning import DEFAULT, Tuning

__all__ = ["Boundary", "Findings", "Group", "Limits", "Result", "Round", "Search", "Topology", "Tuning"]

SCHEMA = "gpuval.localisation/1"
BUS, LATENCY = "bus_bytes_per_second", "latency_seconds"


@dataclass(frozen=True)
class Limits:
    """The cost limits of a search, and what counts as slow.

    `deadline_seconds`: of one round; `wall_seconds`: of all rounds, 0 is no limit. `margin_ratio`: a smaller deviation
    from good pairs is ignored; `noise_ratio`: the expected noise of one measurement; `floor_bytes_per_second`: what a
    good pair reaches, if known. `tapered`: pairs of different racks are slower by design. `climb`: run the whole
    gang when all pairs are fine.
    """

    rounds: int = 20
    pair_rounds: int = 4
    deadline_seconds: float = 180.0
    wall_seconds: float = 0.0
    margin_ratio: float = 0.05
    noise_ratio: float = 0.03
    floor_bytes_per_second: Optional[float] = None
    tapered: bool = False
    climb: bool = True


@dataclass(frozen=True)
class Group:
    """Nodes that run together; `purpose`: why; `tested`: the nodes or boundary in question."""

    id: str
    nodes: tuple[str, ...]
    purpose: str
    tested: tuple[str, ...] = ()


@dataclass(frozen=True)
class Round:
    """Disjoint groups that run at one time; `number` counts from 1."""

    number: int
    groups: tuple[Group, ...]
    deadline_seconds: float


@dataclass
class Search:
    """One search: its `rounds`, and the results of each, None while a round is pending."""

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
        """The order of `nodes` does not matter."""
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
        formed = tuple(Group(f"r{number:02}-g{place:03}", *listed) for place, listed in enumerate(groups, 1))
        self.rounds.append(Round(number, formed, self.limits.deadline_seconds))
        self.results.append(None)
        return self.rounds[-1]

    def add_results(self, results: Mapping[str, Result], seconds: float | None = None) -> None:
        """Results of the pending round by the group's id; a group without a result counts as missing.

        `seconds`: duration of the round; without it the whole deadline counts.
        """
        self.results[-1] = {
            group.id: results.get(group.id, Result("missing")).cleaned(group.nodes) for group in self.rounds[-1].groups
        }
        self.seconds += self.rounds[-1].deadline_seconds if seconds is None else max(0.0, seconds)

    def _limit(self) -> str:
        """The limit that forbids another round; empty if none does."""
        if len(self.rounds) >= self.limits.rounds:
            return f"the limit of {self.limits.rounds} rounds"
        if self.limits.wall_seconds and self.seconds + self.limits.deadline_seconds > self.limits.wall_seconds:
            return f"the limit of {self.limits.wall_seconds:g} s"
        return ""

    def _next_groups(self) -> list[Wanted]:
        if len(self.line) < 2:
            return []
        paired = sum(round_.groups[0].purpose == "pair" for round_ in self.rounds)
        every = pairs.length(len(self.line))
        paired_rounds = min(self.limits.pair_rounds, every)
        if paired < paired_rounds:
            return self._pairs(paired)
        explanation, states = self._state()
        is_unclear = len(self.line) <= 2 * self.tuning.small_gang and explanation.faster()
        if paired < every and (is_unclear or not explanation.good):
            return self._pairs(paired)
        tests = Plan(self.line, self.topology, explanation, states, self._used(), self._asked).make()
        if tests:
            return tests
        whole_gang, fault = self._whole_gang(explanation, states)
        paired_rounds = every if len(self.line) <= self.tuning.small_gang else paired_rounds
        if whole_gang and paired < paired_rounds:  # links outside the ring
            return self._pairs(paired)
        if fault and paired < paired_rounds + self.tuning.partners:  # it may have come since the pairs ran
            return self._pairs(paired % every)
        return whole_gang

    def _pairs(self, number: int) -> list[Wanted]:
        return [Wanted(pair, "pair") for pair in pairs.rounds(self.line, self.topology, number + 1)[number]]

    def _used(self) -> Counter[Link]:
        return Counter((group.nodes[0], group.nodes[1]) for group in self._run() if len(group.nodes) == 2)

    def _asked(self, purpose: str, nodes: Sequence[str]) -> int:
        return sum(group.purpose == purpose and group.tested == tuple(nodes) for group in self._run())

    def _run(self) -> list[Group]:
        return [group for round_ in self.rounds for group in round_.groups]

    # What the results mean

    def _state(self) -> tuple[Explanation, NodeStates]:
        complete = sum(result is not None for result in self.results)
        if self._cache[0] != complete:
            measurements = self._measurements()
            cached = self._cache[1]
            if cached is None or len(measurements) != cached[0].count:  # else only larger groups ran since
                limits = self.limits
                setting = Setting(limits.margin_ratio, limits.noise_ratio, limits.tapered, self.tuning)
                explanation = explain(self.line, self.topology, setting, measurements)
                cached = explanation, classify(explanation)
            self._cache = complete, cached
        return self._cache[1]

    def _measurements(self) -> list[Measurement]:
        name = self._figure()
        return [
            Measurement(
                number,
                *group.nodes,
                group.purpose,
                *_reading(result, name),
                result.culprits,
                group.tested,
                result.message,
            )
            for number, group, result in self._with_results()
            if len(group.nodes) == 2
        ]

    def _with_results(self) -> Iterator[tuple[int, Group, Result]]:
        """Index of the round, group and its result, of all complete rounds."""
        for round_, results in zip(self.rounds, self.results):
            for group in round_.groups if results is not None else ():
                yield round_.number - 1, group, (results or {})[group.id]

    def _figure(self) -> str:
        """The figure for comparisons: the bandwidth if any result has it, else the latency, else none."""
        answers = [result for results in self.results for result in (results or {}).values()]
        return next((name for name in (BUS, LATENCY) if any(getattr(one, name) is not None for one in answers)), "")

    def _whole_gang(self, explanation: Explanation, states: NodeStates) -> tuple[list[Wanted], str]:
        """The group of all nodes, which runs once all pairs are fine, and again if it is bad; and its fault, if any.

        Bus bandwidth falls with size by nature, by less than `gross` and a margin for each doubling.
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
            return [Wanted(tuple(self.line), "climb", tuple(self.line))], ""
        if len(bad) < len(readings) and FAILED.isdisjoint(bad):
            return [], ""
        faults = " and ".join(dict.fromkeys(bad))
        return [], f"the whole gang: {faults} in {len(bad)} of {len(readings)} rounds; each pair is fine"

    def finding(self) -> Findings:
        """What the results so far show; also while the search is under way."""
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
        """A saved search. Raises schemas.Invalid."""
        schemas.validate("localisation", document, what="the saved search")
        for index, saved in enumerate(document["rounds"]):
            problem = _problem_of_round(saved, index + 1, document["nodes"], is_last=saved is document["rounds"][-1])
            if problem:
                raise schemas.Invalid("the saved search", ("rounds", index), problem)
        search = cls.start(document["nodes"], Topology.of_labels(document["topology"]), Limits(**document["limits"]))
        search.seconds = document["seconds"]
        for saved in document["rounds"]:
            groups = tuple(
                Group(one["id"], tuple(one["nodes"]), one["purpose"], tuple(one["tested"])) for one in saved["groups"]
            )
            results = saved["results"]
            search.rounds.append(Round(saved["number"], groups, saved["deadline_seconds"]))
            search.results.append(
                None if results is None else {one.id: Result(**results[one.id]).cleaned(one.nodes) for one in groups}
            )
        return search


def _problem_of_round(saved: Mapping[str, Any], number: int, nodes: Sequence[str], *, is_last: bool) -> str:
    """What the schema cannot express: results attributed to other nodes or groups would blame the wrong node."""
    groups, results = [one["id"] for one in saved["groups"]], saved["results"]
    used = Counter(node for one in saved["groups"] for node in one["nodes"])
    foreign, twice = sorted(used.keys() - set(nodes)), [node for node, count in used.items() if count > 1]
    if saved["number"] != number:
        return f"round {saved['number']} where {number} is expected"
    if groups != [f"r{number:02}-g{place:03}" for place in range(1, len(groups) + 1)]:
        return "groups out of order"
    if foreign or twice:
        return f"{foreign[0]} is no node of the search" if foreign else f"{twice[0]} is in two groups"
    if results is None:
        return "" if is_last else "no results, but a later round"
    return "" if results.keys() == set(groups) else "results of other groups than its own"


def _reading(result: Result, name: str) -> tuple[str, float | None]:
    """State and logarithm of the speed by the figure `name`. `ok` without a figure that others have is no evidence."""
    if result.state not in ("ok", "slow"):
        return result.state, None
    value = getattr(result, name) if name else None
    if value is None:
        return ("missing" if name and result.state == "ok" else result.state), None
    return result.state, math.log(value) if name == BUS else -math.log(value)
