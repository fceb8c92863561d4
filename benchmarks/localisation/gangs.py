"""Gangs with planted faults, and what a round of groups would measure in them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.fault_search import FaultSearch, SearchRound
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.pair_noise import GroupResult
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.search_findings import SearchFindings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.search_limits import SearchLimits
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.topology import Topology

USUAL = 45e9  # bytes/s
#: What starting a round takes, what its transfers take at the usual speed, and the deadline, all in seconds.
START_SECONDS, WORK_SECONDS, DEADLINE_SECONDS = 15.0, 10.0, 120.0
HARD = ("wrong", "timeout", "crash")


@dataclass
class Fault:
    """`state` is slow, wrong, timeout or crash. `factor`: of the speed that is left; `rate`: of the rounds it shows in;

    `least`: the smallest group in which it shows.
    """

    state: str = "slow"
    factor: float = 1.0
    rate: float = 1.0
    least: int = 2


@dataclass
class Gang:
    nodes: list[str]
    topology: Topology
    random: random.Random
    noise: float = 0.03
    #: Chance of a result that is 10 to 40 % slower for no reason.
    tail: float = 0.0
    #: Share of the speed that each twofold number of nodes above two costs, by nature.
    fall: float = 0.0
    bad: dict[str, Fault] = field(default_factory=dict)
    links: dict[frozenset[str], Fault] = field(default_factory=dict)
    #: Racks whose ways out are bad.
    racks: dict[str, Fault] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)

    def measure(self, nodes: Sequence[str]) -> tuple[GroupResult, float]:
        """The result of a ring through `nodes`, and the seconds that it takes."""
        if self.silent & set(nodes):
            return GroupResult("missing"), DEADLINE_SECONDS
        states, factor = [], 1.0
        for fault in self._faults(nodes):
            if len(nodes) >= fault.least and (fault.rate >= 1 or self.random.random() < fault.rate):
                if fault.state == "slow":
                    factor = min(factor, fault.factor)
                else:
                    states.append(fault.state)
        if states:
            state = min(states, key=HARD[::-1].index)  # a crash comes before a hang, a hang before a wrong result
            return GroupResult(state), DEADLINE_SECONDS if state == "timeout" else START_SECONDS + WORK_SECONDS
        if self.tail and self.random.random() < self.tail:
            factor *= self.random.uniform(0.6, 0.9)
        factor *= (1 - self.fall) ** math.log2(len(nodes) / 2)
        speed = USUAL * factor * math.exp(self.random.gauss(0, self.noise))
        return GroupResult("ok", bus_bytes_per_second=speed), min(
            DEADLINE_SECONDS, START_SECONDS + WORK_SECONDS * USUAL / speed
        )

    def _faults(self, nodes: Sequence[str]) -> list[Fault]:
        found = [self.bad[node] for node in nodes if node in self.bad]
        ring = list(zip(nodes, [*nodes[1:], nodes[0]]))
        if self.links:
            found += [self.links[frozenset(pair)] for pair in ring if frozenset(pair) in self.links]
        for rack, fault in self.racks.items():
            inside = {self.topology.place(node, "rack") == rack for node in nodes}
            if len(inside) == 2:
                found.append(fault)
        return found

    def run(self, round_: SearchRound) -> tuple[dict[str, GroupResult], float]:
        """Results of the groups, and the wall of the round: that of its slowest group."""
        measured = {group.id: self.measure(group.nodes) for group in round_}
        return {name: result for name, (result, _) in measured.items()}, max(wall for _, wall in measured.values())


def build(count: int, seed: int, *, rack: int | None = None, noise: float = 0.03, tail: float = 0.0) -> Gang:
    """A clean gang; racks of 8 nodes, of 4 where there are fewer than 32. `rack=0`: the racks are unknown."""
    nodes = [f"node-{number:03}" for number in range(1, count + 1)]
    size = rack if rack is not None else 8 if count >= 32 else 4
    places = {node: {"rack": f"r{place // size + 1}"} for place, node in enumerate(nodes)} if size else {}
    return Gang(nodes, Topology.of_labels(places), random.Random(seed), noise, tail)  # noqa: S311 - a drawn fleet, no secret


def search(gang: Gang, limits: SearchLimits | None = None) -> FaultSearch:
    limits = limits or SearchLimits(deadline_seconds=DEADLINE_SECONDS)
    found = FaultSearch.start(gang.nodes, gang.topology, limits)
    while (round_ := found.next_round()) is not None:
        found.add_results(*gang.run(round_))
    return found


def find(gang: Gang, limits: SearchLimits | None = None) -> SearchFindings:
    return search(gang, limits).finding()
