"""The search for the bad node or link of a gang: which disjoint groups run next, and what their results mean; pure.

    search = Search.start(nodes, topology, Limits())
    while (round_ := search.next_round()) is not None:
        search.take({group.id: Result("ok", bus_bytes_per_second=...) for group in round_.groups}, seconds)
    search.finding()

Everything is derived from the rounds and their results: `to_json` between any two steps, and `from_json` goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Optional

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.text import some_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search import climb, confirm, pairs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.explain import (
    FAST,
    Boundary,
    Measure,
    Picture,
    Setting,
    explain,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.node_state import (
    BAD,
    HEALTHY,
    SUSPECT,
    Standing,
    Standings,
    stand,
    told,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.statistics import FAILED, HARD, Result, percent
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.topology import Topology

__all__ = ["Boundary", "Findings", "Group", "Limits", "Result", "Round", "Search", "Topology"]

SCHEMA = "gpuval.localisation/1"
#: Rounds beside those of pairs and of growing groups: so many, and twice the logarithm of the number of nodes.
FURTHER = 4
#: So many at least, and more where few nodes can run at one time.
FEW_FURTHER, FEWEST_FURTHER, FEWEST = 14, 17, 4
#: Up to so many nodes every pair is run when it is unclear what the usual speed is.
MESH = 16
#: Pairs that are faster than usual are told of from so many on, or from this share.
FASTER, FASTER_SHARE = 3, 0.05
#: All pairs are slower than expected from the margin on, and from so many deviations of where they lie: two nodes are
#: one pair. From climb.FALL on they are, however noisy.
FLOOR_DEVIATIONS = 4.0
#: A whole group of nodes that is bad has at least so many.
WHOLE_GROUP = 3
#: What results are compared by: the first that any of them has.
FIGURES = ("bus_bytes_per_second", "latency_seconds")


@dataclass(frozen=True)
class Limits:
    """What a search may cost, and what is called slow.

    `deadline_seconds`: of one round; `wall_seconds`: of all, 0 is no limit. `margin_ratio`: slower than good pairs by
    less than this is not looked at; `noise_ratio`: the noise that one measurement is expected to have;
    `floor_bytes_per_second`: what a good pair reaches at least, if that is known. `tapered`: pairs of different racks
    are slower by design. `climb`: bigger groups when all pairs are fine.
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

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.pair_rounds < 1 or self.deadline_seconds <= 0 or self.wall_seconds < 0:
            raise ValueError("rounds, pair_rounds and deadline_seconds are above 0, wall_seconds is not below it")
        if not 0 < self.margin_ratio < 1 or not 0 < self.noise_ratio < 1:
            raise ValueError("margin_ratio and noise_ratio are between 0 and 1")


@dataclass(frozen=True)
class Group:
    """Nodes that run together; `purpose` says why, `tested` about whom or what."""

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
class Findings:
    """What is known. `evidence`: sentences by node, `a - b` for a link, `rack r1` and the like for a boundary.

    `gang` tells of a fault that nobody alone has: such a gang is not to be accepted, whatever the classes are.
    """

    nodes: dict[str, str]
    bad_links: list[tuple[str, str]]
    suspect_links: list[tuple[str, str]]
    bad_boundaries: list[Boundary]
    suspect_boundaries: list[Boundary]
    gang: list[str]
    evidence: dict[str, list[str]]
    centre_bytes_per_second: Optional[float]
    noise_ratio: float
    rounds: int
    pairs: int
    seconds: float
    stopped: str = ""

    def of_class(self, name: str) -> list[str]:
        return [node for node, known in self.nodes.items() if known == name]

    @property
    def clean(self) -> bool:
        """Every node is healthy, and nothing else was found."""
        others = (self.bad_links, self.suspect_links, self.bad_boundaries, self.suspect_boundaries, self.gang)
        return bool(self.nodes) and set(self.nodes.values()) == {HEALTHY} and not any(others)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Search:
    """One search; `rounds` that were given out, and the results of each, None while it is awaited."""

    line: list[str]
    topology: Topology
    limits: Limits
    rounds: list[Round] = field(default_factory=list)
    results: list[Optional[dict[str, Result]]] = field(default_factory=list)
    seconds: float = 0.0
    stopped: str = ""
    _known: tuple[int, Any] = (-1, None)

    @classmethod
    def start(cls, nodes: Sequence[str], topology: Topology | None = None, limits: Limits | None = None) -> Search:
        """The order of `nodes` does not matter. Raises ValueError for a name that comes twice or is empty."""
        if len(set(nodes)) != len(nodes) or not all(nodes):
            raise ValueError("every node has a name of its own")
        topology = topology or Topology()
        return cls(topology.line(nodes), topology, limits or Limits())

    # What runs next

    def next_round(self) -> Round | None:
        """The round to run: the same one until its results were taken, None when the search is over."""
        if self.results and self.results[-1] is None:
            return self.rounds[-1]
        groups = self._next_groups()
        self.stopped = self._limit() if groups else self.stopped
        if not groups or self.stopped:
            return None
        number = len(self.rounds) + 1
        made = tuple(
            Group(f"r{number:02}-g{place:03}", tuple(item[0]), item[1], tuple(item[2]))
            for place, item in enumerate(groups, 1)
        )
        self.rounds.append(Round(number, made, self.limits.deadline_seconds))
        self.results.append(None)
        return self.rounds[-1]

    def take(self, results: Mapping[str, Any], seconds: float | None = None) -> None:
        """The results of the round that was given out, by the group's id; a group without one is missing.

        `seconds`: what the round took; without it the whole deadline counts. Raises ValueError when no round is
        awaited, for a group that is not in it, and for a state that is none.
        """
        if not self.results or self.results[-1] is not None:
            raise ValueError("no round is awaited: ask for the next one first")
        groups = {group.id: group for group in self.rounds[-1].groups}
        unknown = [str(name) for name in results if name not in groups]
        if unknown:
            raise ValueError(f"{some_of(unknown)}: no group of round {len(self.rounds)}")
        self.results[-1] = {
            name: Result.take_in(results.get(name, Result("missing")), group.nodes) for name, group in groups.items()
        }
        self.seconds += self.rounds[-1].deadline_seconds if seconds is None else max(0.0, seconds)

    def _limit(self) -> str:
        """What forbids another round; empty where nothing does."""
        if len(self.rounds) >= self.limits.rounds:
            return f"the limit of {self.limits.rounds} rounds"
        if self.limits.wall_seconds and self.seconds + self.limits.deadline_seconds > self.limits.wall_seconds:
            return f"the limit of {self.limits.wall_seconds:g} s"
        return ""

    def _next_groups(self) -> list[tuple[Sequence[str], str, Sequence[str]]]:
        if len(self.line) < 2:
            return []
        paired = sum(round_.groups[0].purpose == "pair" for round_ in self.rounds)
        wanted = min(self.limits.pair_rounds, pairs.length(len(self.line)))
        if paired < wanted:
            return self._pairs(paired)
        picture, standings, _all = self._state()
        unclear = not picture.good or (len(self.line) <= MESH and picture.faster())
        if unclear and paired < pairs.length(len(self.line)) and paired < wanted + self._further():
            return self._pairs(paired)
        confirming = sum(round_.groups[0].purpose not in ("pair", "climb", "again", "bisect") for round_ in self.rounds)
        if confirming < self._further():
            tests = confirm.tests(self.line, self.topology, picture, standings, self._used(), self._asked)
            if tests:
                return [((test.one, test.two), test.purpose, test.tested) for test in tests]
        elif self._open(picture, standings):
            self.stopped = f"the limit of {confirming} rounds of confirmation"
            return []
        grown = self._climb(picture, standings)
        return [(one.nodes, one.purpose, one.tested) for one in grown.wanted]

    def _further(self) -> int:
        least = FEWEST_FURTHER if len(self.line) <= FEWEST else FEW_FURTHER
        return max(least, FURTHER + 2 * math.ceil(math.log2(max(2, len(self.line)))))

    def _open(self, picture: Picture, standings: Standings) -> bool:
        return bool(picture.open_links) or any(standing.open for standing in standings.nodes.values())

    def _pairs(self, place: int) -> list[tuple[Sequence[str], str, Sequence[str]]]:
        planned = pairs.rounds(self.line, self.topology, place + 1)
        return [(pair, "pair", ()) for pair in planned[place]]

    def _used(self) -> dict[tuple[str, str], int]:
        used: dict[tuple[str, str], int] = {}
        for group in self._run():
            if len(group.nodes) == 2:
                pair = (group.nodes[0], group.nodes[1])
                used[pair] = used.get(pair, 0) + 1
        return used

    def _asked(self, purpose: str, nodes: Sequence[str]) -> int:
        return sum(group.purpose == purpose and group.tested == tuple(nodes) for group in self._run())

    def _run(self) -> list[Group]:
        return [group for round_ in self.rounds for group in round_.groups]

    # What the results mean

    def _state(self) -> tuple[Picture, Standings, list[Measure]]:
        taken = sum(result is not None for result in self.results)
        if self._known[0] != taken:
            measures = self._measures()
            if self._known[0] >= 0 and len(measures) == len(self._known[1][2]):  # groups only: nothing new of pairs
                self._known = taken, self._known[1]
                return self._known[1]
            setting = Setting(self.limits.margin_ratio, self.limits.noise_ratio, self.limits.tapered)
            picture = explain(self.line, self.topology, setting, measures)
            standings = stand(self.line, picture, measures, self.limits.margin_ratio)
            self._known = taken, (picture, standings, measures)
        return self._known[1]

    def _measures(self) -> list[Measure]:
        name = self._figure()
        return [
            Measure(
                number,
                *group.nodes,
                group.purpose,
                *_reading(result, name),
                result.culprits,
                group.tested,
                result.message,
            )
            for number, group, result in self._taken()
            if len(group.nodes) == 2
        ]

    def _taken(self) -> Iterator[tuple[int, Group, Result]]:
        """Groups with their results, and the place of their round."""
        for round_, results in zip(self.rounds, self.results):
            for group in round_.groups if results is not None else ():
                yield round_.number - 1, group, (results or {})[group.id]

    def _figure(self) -> str:
        """By which figure results are compared: the bandwidth if any of them has it, else the latency, or none."""
        known = [result for results in self.results for result in (results or {}).values()]
        return next((name for name in FIGURES if any(getattr(result, name) is not None for result in known)), "")

    def _climb(self, picture: Picture, standings: Standings) -> climb.Climb:
        found = picture.accused or picture.links or picture.open_links or standings.boundaries
        line = [node for node in self.line if standings.nodes[node].name == HEALTHY]
        if not self.limits.climb or found or len(line) < len(self.line):
            return climb.Climb()
        ran, name = [], self._figure()
        for number, group, result in self._taken():
            if len(group.nodes) > 2:
                state, value = _reading(result, name)
                if state in FAILED or (state == "slow" and value is None):
                    value = HARD
                elif state == "ok" and value is None:
                    value = 0.0
                ran.append(climb.Ran(number, group.nodes, group.tested, group.purpose, value))
        floor = self.limits.floor_bytes_per_second
        expected = math.log(floor) if floor and self._figure() == FIGURES[0] else -math.inf
        bounds = climb.Bounds(self.limits.margin_ratio, picture.sigma, expected, self._used())
        return climb.climb(line, ran, bounds, self.limits.rounds - len(self.rounds))

    def finding(self) -> Findings:
        """What the results so far say; also while the search is under way."""
        picture, standings, _all = self._state()
        grown = self._climb(picture, standings)
        nodes = {node: Standing(standing.name, standing.reason) for node, standing in standings.nodes.items()}
        nodes.update({node: Standing(SUSPECT, reason) for node, reason in grown.suspect.items()})
        nodes.update({node: Standing(BAD, reason) for node, reason in grown.bad.items()})
        boundaries = dict(standings.boundaries)
        self._whole_groups(nodes, boundaries)
        gang = [*self._gang(picture, nodes), *grown.groups]
        if not self.rounds or self.results[0] is None:
            gang = ["fewer than two nodes: there is nothing to compare"] if len(self.line) < 2 else []
        evidence = {node: [standing.reason] for node, standing in nodes.items() if standing.reason}
        open_links = [
            pair
            for pair, low in picture.open_links.items()
            if picture.good.issuperset(pair) or picture.outstanding.issuperset(low)
        ]
        for pair in (*picture.links, *open_links):
            indices = picture.links.get(pair) or picture.open_links[pair]
            others = "right with others" if picture.good.issuperset(pair) else "faster with most others"
            evidence[" - ".join(pair)] = [f"{told(picture, indices, pair[0])}; both are {others}"]
        evidence.update({_name(boundary): [standing.reason] for boundary, standing in boundaries.items()})
        return Findings(
            nodes={node: nodes[node].name for node in self.line},
            bad_links=list(picture.links),
            suspect_links=open_links,
            bad_boundaries=[boundary for boundary, standing in boundaries.items() if standing.name == BAD],
            suspect_boundaries=[boundary for boundary, standing in boundaries.items() if standing.name != BAD],
            gang=gang,
            evidence=evidence,
            centre_bytes_per_second=self._centre(picture),
            noise_ratio=picture.sigma,
            rounds=len(self.rounds),
            pairs=sum(len(group.nodes) == 2 for group in self._run()),
            seconds=self.seconds,
            stopped=self.stopped,
        )

    def _whole_groups(self, nodes: dict[str, Standing], boundaries: dict[Boundary, Standing]) -> None:
        """All nodes of a rack bad: what they share is suspected before each of them."""
        bad = {node for node, standing in nodes.items() if standing.name == BAD}
        for kind in ("switch", "rack", "rail"):
            for name, members in self.topology.groups(kind, self.line).items():
                if len(members) >= WHOLE_GROUP and 2 * len(members) <= len(self.line) and bad.issuperset(members):
                    reason = f"all {len(members)} nodes of {kind} {name} are bad: see first what they share"
                    boundaries[Boundary(kind, (name,), "inside")] = Standing(BAD, reason)
                    for node in members:
                        nodes[node] = Standing(SUSPECT, f"{reason}. {nodes[node].reason}")
                    bad -= set(members)

    def _gang(self, picture: Picture, nodes: dict[str, Standing]) -> list[str]:
        lines = []
        centre, floor = self._centre(picture), self.limits.floor_bytes_per_second
        doubt = FLOOR_DEVIATIONS * picture.sigma / math.sqrt(max(1, picture.usual()[1]))
        least = 1 - max(self.limits.margin_ratio, min(doubt, climb.FALL))
        if centre is not None and floor and centre < floor * least:
            slow = percent(math.log(centre / floor))
            lines.append(f"good pairs reach {centre:.4g} bytes/s, {slow} than what is expected ({floor:.4g})")
            for node, standing in nodes.items():
                if standing.name == HEALTHY:
                    nodes[node] = Standing(SUSPECT, "no slower than the others, and all are slower than expected")
        faster = picture.faster()
        if len(faster) >= max(FASTER, FASTER_SHARE * len(picture.measures)):
            lines.append(
                f"{len(faster)} pairs are faster than usual by {100 * FAST:g} % and more: declare racks, or what good "
                "pairs reach at least; without that nobody can tell whether most of the gang is slow"
            )
        answered = [node for node in self.line if picture.of_node[node]]
        if answered and not picture.good:
            whole = all((value or 0.0) == HARD for value in picture.relative if value is not None)
            lines.append("no pair worked: look for what all have in common" if whole else "no node is known to be good")
        elif 2 * len(picture.accused) > len(answered):
            lines.append(f"{len(picture.accused)} of {len(answered)} nodes are worse than the others")
        return lines

    def _centre(self, picture: Picture) -> float | None:
        return None if picture.centre is None or self._figure() != FIGURES[0] else math.exp(picture.centre)

    # To the disk and back

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "nodes": list(self.line),
            "topology": {node: dict(groups) for node, groups in self.topology.places.items() if node in self.line},
            "limits": asdict(self.limits),
            "seconds": self.seconds,
            "rounds": [
                {
                    "number": round_.number,
                    "deadline_seconds": round_.deadline_seconds,
                    "groups": [
                        {"id": one.id, "nodes": list(one.nodes), "purpose": one.purpose, "tested": list(one.tested)}
                        for one in round_.groups
                    ],
                    "results": None
                    if results is None
                    else {
                        name: {**vars(result), "culprits": list(result.culprits)} for name, result in results.items()
                    },
                }
                for round_, results in zip(self.rounds, self.results)
            ],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Search:
        """A search that was saved. Raises schemas.Invalid, or ValueError where it does not fit together."""
        schemas.validate("localisation", document, what="the saved search")
        known = {entry.name for entry in fields(Limits)}
        limits = Limits(**{name: value for name, value in document["limits"].items() if name in known})
        search = cls.start(document["nodes"], Topology.of(document["topology"]), limits)
        search.seconds = document["seconds"]
        for number, saved in enumerate(document["rounds"], 1):
            groups = tuple(
                Group(one["id"], tuple(one["nodes"]), one["purpose"], tuple(one["tested"])) for one in saved["groups"]
            )
            search._add_saved(number, Round(saved["number"], groups, saved["deadline_seconds"]), saved["results"])
        return search

    def _add_saved(self, number: int, round_: Round, results: Mapping[str, Any] | None) -> None:
        unknown = {node for group in round_.groups for node in group.nodes} - set(self.line)
        if unknown:
            raise ValueError(f"{some_of(sorted(unknown))}: not in the search that was saved")
        if round_.number != number:
            raise ValueError(f"a round of number {round_.number} is saved where round {number} stands")
        if self.results and self.results[-1] is None:
            raise ValueError(f"round {number} is saved while round {number - 1} is awaited")
        if results is not None and set(results) != {group.id for group in round_.groups}:
            raise ValueError(f"round {number} is saved without the result of each of its groups")
        self.rounds.append(round_)
        self.results.append(
            None if results is None else {one.id: Result.take_in(results[one.id], one.nodes) for one in round_.groups}
        )


def _name(boundary: Boundary) -> str:
    return f"{boundary.kind} {' - '.join(boundary.names)} ({boundary.scope})"


def _reading(result: Result, name: str) -> tuple[str, float | None]:
    """State and speed, by the figure `name`. Where results have one, to be right without it is no evidence."""
    if result.state not in ("ok", "slow"):
        return result.state, None
    value = getattr(result, name) if name else None
    if value is None:
        return ("missing" if name and result.state == "ok" else result.state), None
    return result.state, math.log(value) if name == FIGURES[0] else -math.log(value)
