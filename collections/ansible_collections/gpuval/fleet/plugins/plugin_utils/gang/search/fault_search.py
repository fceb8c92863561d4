"""The search for the bad node or link of a gang: which disjoint groups run next, and what their results mean; pure.

    search = FaultSearch.start(nodes, topology, SearchLimits())
    while (round_ := search.next_round()) is not None:
        search.add_results({group.id: GroupResult("ok", bus_bytes_per_second=...) for group in round_}, seconds)
    search.finding()

Everything is derived from the rounds and their results: `to_json` works between any two steps, `from_json` resumes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Optional

from ...core import schemas
from .pair_explanation import PairExplanation, PairMeasurement, explain
from .pair_noise import FAILED, GroupResult, percent
from .round_plan import RoundPlan, SearchGroup
from .search_findings import HEALTHY, NodeFindings, SearchFindings, classify, conclude
from .search_limits import TUNING, SearchLimits
from .topology import Topology, count_pair_rounds, pair_rounds

SCHEMA = "gpuval.localisation/1"
BUS, LATENCY = "bus_bytes_per_second", "latency_seconds"


#: Disjoint groups that run at the same time.
SearchRound = tuple[SearchGroup, ...]


@dataclass
class FaultSearch:
    """A search among the nodes in `line`: its `rounds`, their results (None while pending), their `seconds` in all."""

    line: list[str]
    topology: Topology
    limits: SearchLimits
    rounds: list[SearchRound] = field(default_factory=list)
    results: list[Optional[dict[str, GroupResult]]] = field(default_factory=list)
    seconds: float = 0.0
    stopped: str = ""
    _cache: Optional[tuple[PairExplanation, NodeFindings]] = None

    @classmethod
    def start(
        cls, nodes: Sequence[str], topology: Topology | None = None, limits: SearchLimits | None = None
    ) -> FaultSearch:
        """Begin a search among these nodes, whose order does not matter."""
        topology = topology or Topology()
        return cls(topology.line(nodes), topology, limits or SearchLimits())

    # What runs next

    def next_round(self) -> SearchRound | None:
        """The round to run: the same one until its results are added, None when the search is over."""
        if self.results and self.results[-1] is None:
            return self.rounds[-1]
        groups = self._next_groups()
        self.stopped = self._limit() if groups else self.stopped
        if not groups or self.stopped:
            return None
        number = len(self.rounds) + 1
        self.rounds.append(tuple(replace(group, id=_group_id(number, index)) for index, group in enumerate(groups, 1)))
        self.results.append(None)
        return self.rounds[-1]

    def add_results(self, results: Mapping[str, GroupResult], seconds: float | None = None) -> None:
        """Add the results of the pending round by group id; a group without a result counts as missing. `seconds`:
        duration of the round; without it the whole deadline counts."""
        missing = GroupResult("missing")
        self.results[-1] = {group.id: results.get(group.id, missing).cleaned() for group in self.rounds[-1]}
        self.seconds += self.limits.deadline_seconds if seconds is None else max(0.0, seconds)

    def _limit(self) -> str:
        """A text on the limit of rounds or time that forbids another round; empty if none does."""
        if len(self.rounds) >= self.limits.rounds:
            return f"the limit of {self.limits.rounds} rounds"
        if self.limits.wall_seconds and self.seconds + self.limits.deadline_seconds > self.limits.wall_seconds:
            return f"the limit of {self.limits.wall_seconds:g} s"
        return ""

    def _next_groups(self) -> list[SearchGroup]:
        if len(self.line) < 2:
            return []
        paired = sum(round_[0].purpose == "pair" for round_ in self.rounds)
        every = count_pair_rounds(len(self.line))
        paired_rounds = min(self.limits.pair_rounds, every)
        if paired < paired_rounds:
            return self._pairs(paired)
        explanation, states = self._state()
        if paired < every and not explanation.good:
            return self._pairs(paired)
        tests = RoundPlan(self.line, self.topology, explanation, states, self._run()).make()
        if tests:
            return tests
        whole_gang, fault = self._whole_gang(explanation, states)
        paired_rounds = every if len(self.line) <= TUNING.small_gang else paired_rounds
        if whole_gang and paired < paired_rounds:  # measure links outside the ring
            return self._pairs(paired)
        if fault and paired < paired_rounds + TUNING.partners:  # the fault may be newer than the pairs' results
            return self._pairs(paired % every)
        return whole_gang

    def _pairs(self, number: int) -> list[SearchGroup]:
        return [SearchGroup(pair, "pair") for pair in pair_rounds(self.line, self.topology, number + 1)[number]]

    def _run(self) -> list[SearchGroup]:
        return [group for round_ in self.rounds for group in round_]

    # What the results mean

    def _state(self) -> tuple[PairExplanation, NodeFindings]:
        pairs = [part for part in self._with_results() if len(part[1].nodes) == 2]
        if self._cache is None or len(pairs) != self._cache[0].count:
            figure = self._figure()
            measurements = [
                PairMeasurement(
                    number, group.nodes, group.purpose, group.tested, *_reading(result, figure), result.message
                )
                for number, group, result in pairs
            ]
            explanation = explain(self.line, self.topology, self.limits, measurements)
            self._cache = explanation, classify(explanation)
        return self._cache

    def _with_results(self) -> Iterator[tuple[int, SearchGroup, GroupResult]]:
        """Number of the round, group and its result, of all complete rounds."""
        for number, (round_, results) in enumerate(zip(self.rounds, self.results), 1):
            for group in round_ if results is not None else ():
                yield number, group, (results or {})[group.id]

    def _figure(self) -> str:
        """Name of the figure to compare: the bandwidth if a result has it, else the latency, else empty."""
        answers = [result for results in self.results for result in (results or {}).values()]
        return next(
            (name for name in (BUS, LATENCY) if any(getattr(answer, name) is not None for answer in answers)), ""
        )

    def _whole_gang(self, explanation: PairExplanation, states: NodeFindings) -> tuple[list[SearchGroup], str]:
        """The group of all nodes if it runs next (once all pairs are fine, again after a bad result); and the gang's
        fault. Bus bandwidth naturally falls with size, by less than `gross` and a margin for each doubling."""
        is_faulty = explanation.implicated or explanation.bad_links or explanation.open_links or states.boundaries
        is_fine = all(states.nodes[node].name == HEALTHY for node in self.line)
        if not self.limits.climb or is_faulty or not is_fine or len(self.line) <= TUNING.partners:
            return [], ""
        usual = explanation.centre or 0.0
        least = usual - TUNING.gross - self.limits.margin_ratio * math.log2(len(self.line) / 2)
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
        if len(bad) == len(readings) < TUNING.partners:
            return [SearchGroup(tuple(self.line), "climb", tuple(self.line))], ""
        if len(bad) < len(readings) and FAILED.isdisjoint(bad):
            return [], ""
        faults = " and ".join(dict.fromkeys(bad))
        return [], f"the whole gang: {faults} in {len(bad)} of {len(readings)} rounds; each pair is fine"

    def finding(self) -> SearchFindings:
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
                {
                    "number": number,
                    "groups": list(map(asdict, round_)),
                    "deadline_seconds": self.limits.deadline_seconds,
                    "results": results and {name: asdict(result) for name, result in results.items()},
                }
                for number, (round_, results) in enumerate(zip(self.rounds, self.results), 1)
            ],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> FaultSearch:
        """Restore a saved search. Raises schemas.Invalid."""
        schemas.validate("localisation", document, what="the saved search")
        for index, saved in enumerate(document["rounds"]):
            problem = _problem_of_round(saved, index + 1, document["nodes"], is_last=saved is document["rounds"][-1])
            if problem:
                raise schemas.Invalid("the saved search", ("rounds", index), problem)
        search = cls.start(
            document["nodes"], Topology.of_labels(document["topology"]), SearchLimits(**document["limits"])
        )
        search.seconds = document["seconds"]
        for saved in document["rounds"]:
            search.rounds.append(
                tuple(
                    SearchGroup(tuple(group["nodes"]), group["purpose"], tuple(group["tested"]), group["id"])
                    for group in saved["groups"]
                )
            )
            results = saved["results"] and {
                name: GroupResult(**{key: value for key, value in result.items() if key != "culprits"}).cleaned()
                for name, result in saved["results"].items()  # older releases kept hints of nodes as `culprits`
            }
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


def _reading(result: GroupResult, name: str) -> tuple[str, float | None]:
    """State and logarithm of the speed from the figure `name`. `ok` without that figure becomes `missing`."""
    if result.state not in ("ok", "slow"):
        return result.state, None
    value = getattr(result, name) if name else None
    if value is None:
        return ("missing" if name and result.state == "ok" else result.state), None
    return result.state, math.log(value) if name == BUS else -math.log(value)
