"""What a search concludes: the class of every node, link and boundary, and faults of the gang as a whole; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

from .explanation import Boundary, Explanation, Link
from .node_state import BAD, HEALTHY, SUSPECT, NodeState, NodeStates, sentence
from .statistics import percent
from .topology import LEVELS, Topology


@dataclass
class Findings:
    """What is known. `evidence`: sentences by node, by `a - b` for a link, by `rack r1 (around)` for a boundary.

    `gang`: faults of no single node. Such a gang must not be accepted, whatever the classes are.
    """

    nodes: dict[str, str]
    bad_links: list[Link]
    suspect_links: list[Link]
    bad_boundaries: list[Boundary]
    suspect_boundaries: list[Boundary]
    gang: list[str]
    evidence: dict[str, list[str]]
    centre_bytes_per_second: Optional[float]
    noise_ratio: float
    rounds: int = 0
    pairs: int = 0
    seconds: float = 0.0
    stopped: str = ""

    def of_class(self, name: str) -> list[str]:
        return [node for node, known in self.nodes.items() if known == name]

    @property
    def clean(self) -> bool:
        """Every node is healthy, and nothing else was found."""
        faults = (self.bad_links, self.suspect_links, self.bad_boundaries, self.suspect_boundaries, self.gang)
        return bool(self.nodes) and set(self.nodes.values()) == {HEALTHY} and not any(faults)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def conclude(
    line: Sequence[str],
    topology: Topology,
    explanation: Explanation,
    states: NodeStates,
    floor: float | None,
) -> Findings:
    """From pairs; `floor`: the speed in bytes/s that two good nodes are expected to reach."""
    nodes = {node: NodeState(state.name, state.reason) for node, state in states.nodes.items()}
    boundaries = dict(states.boundaries)
    _whole_groups(line, topology, explanation.tuning.several, nodes, boundaries)
    gang = [*_too_slow(explanation, nodes, floor), *_of_the_gang(line, explanation)]
    open_links = [
        pair
        for pair, low in explanation.open_links.items()
        if explanation.good.issuperset(pair) or explanation.outliers.issuperset(low)
    ]
    evidence = {node: [state.reason] for node, state in nodes.items() if state.reason}
    for pair in (*explanation.bad_links, *open_links):
        items = explanation.bad_links.get(pair) or explanation.open_links[pair]
        comparison = "right with others" if explanation.good.issuperset(pair) else "faster with most others"
        evidence[" - ".join(pair)] = [f"{sentence(items, pair[0])}; both are {comparison}"]
    evidence |= {str(boundary): [state.reason] for boundary, state in boundaries.items()}
    return Findings(
        nodes={node: nodes[node].name for node in line},
        bad_links=list(explanation.bad_links),
        suspect_links=open_links,
        bad_boundaries=[boundary for boundary, state in boundaries.items() if state.name == BAD],
        suspect_boundaries=[boundary for boundary, state in boundaries.items() if state.name != BAD],
        gang=gang,
        evidence=evidence,
        centre_bytes_per_second=None if explanation.centre is None else math.exp(explanation.centre),
        noise_ratio=explanation.sigma,
    )


def _whole_groups(
    line: Sequence[str],
    topology: Topology,
    least: int,
    nodes: dict[str, NodeState],
    boundaries: dict[Boundary, NodeState],
) -> None:
    """If all nodes of a rack are bad, what they share is the first suspect, not each of them."""
    bad = {node for node, state in nodes.items() if state.name == BAD}
    for level in LEVELS:
        for name, members in topology.groups(level, line).items():
            if least <= len(members) <= len(line) / 2 and bad.issuperset(members):
                reason = f"all {len(members)} nodes of {level} {name} are bad: check what they share first"
                boundaries[Boundary(level, (name,), "inside")] = NodeState(BAD, reason)
                for node in members:
                    nodes[node] = NodeState(SUSPECT, f"{reason}. {nodes[node].reason}")
                bad -= set(members)


def _too_slow(explanation: Explanation, nodes: dict[str, NodeState], floor: float | None) -> list[str]:
    """Whether all pairs are slower than expected. If so, healthy nodes become suspect."""
    if explanation.centre is None or not floor:
        return []
    tuning, centre = explanation.tuning, math.exp(explanation.centre)
    doubt = tuning.score * explanation.sigma / math.sqrt(max(1, explanation.usual()[1]))
    if centre >= floor * (1 - max(explanation.setting.margin, min(doubt, tuning.gross))):
        return []
    for node, state in nodes.items():
        if state.name == HEALTHY:
            nodes[node] = NodeState(SUSPECT, "as fast as the other nodes, but all are slower than expected")
    slower = percent(math.log(centre / floor))
    return [f"good pairs reach {centre:.4g} bytes/s, {slower} than expected ({floor:.4g})"]


def _of_the_gang(line: Sequence[str], explanation: Explanation) -> list[str]:
    tuning, lines = explanation.tuning, []
    faster = explanation.faster()
    if faster >= tuning.several:
        lines.append(
            f"{faster} pairs are at least {100 * tuning.gross:g} % faster than usual, so most of the gang may be "
            "slow: declare racks, or set gpuval_gang_expected_bytes_per_second"
        )
    answered = [node for node in line if explanation.by_node[node]]
    if answered and not explanation.good:
        none_worked = all(item.has_failed for item in explanation.measurements)
        lines.append("no pair worked: check what all nodes share" if none_worked else "no node is known to be good")
    elif 2 * len(explanation.implicated) > len(answered):
        lines.append(f"{len(explanation.implicated)} of {len(answered)} nodes are worse than the others")
    return lines


def counts_of(classes: Mapping[str, str]) -> str:
    """`3 healthy, 1 bad`."""
    listed = list(classes.values())
    return ", ".join(f"{listed.count(name)} {name}" for name in CLASSES if name in listed)


CLASSES = (HEALTHY, BAD, SUSPECT, "untested")
