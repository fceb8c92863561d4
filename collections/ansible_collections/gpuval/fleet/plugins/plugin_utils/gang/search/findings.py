"""What a search concludes: the class of every node, link and boundary, and faults of the gang as a whole; pure."""

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Optional

from ...core.text import some_of
from .explanation import Boundary, Explanation, Link, Measurement, by_partner
from .statistics import percent
from .topology import LEVELS, Topology

HEALTHY, BAD, SUSPECT, UNTESTED = CLASSES = "healthy", "bad", "suspect", "untested"
#: Limits of the messages of failed results in one sentence: their number, and characters of each.
MAX_MESSAGES, MESSAGE_CHARACTERS = 2, 160
MAX_ROUNDS = 12


@dataclass
class NodeState:
    """The search's class of a node (or boundary) with its reason. `open`: another test may settle it."""

    name: str
    reason: str = ""
    open: bool = False


@dataclass
class NodeStates:
    """The search's class of every node and boundary, and which results are missing.

    `unvouched`: nodes with too few right results to be healthy. `unsure`: healthy nodes that may still be slow within
    the noise, those with the fewest results first.
    """

    nodes: dict[str, NodeState]
    boundaries: dict[Boundary, NodeState]
    missing: list[Link] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    unvouched: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)

    def of_class(self, name: str) -> list[str]:
        return [node for node, state in self.nodes.items() if state.name == name]


@dataclass
class Findings:
    """The results of a search. `evidence`: sentences by node, by link (`a - b`), by boundary (`rack r1 (around)`).

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
        return [node for node, node_class in self.nodes.items() if node_class == name]

    @property
    def clean(self) -> bool:
        """Whether every node is healthy and nothing else was found."""
        faults = (self.bad_links, self.suspect_links, self.bad_boundaries, self.suspect_boundaries, self.gang)
        return bool(self.nodes) and set(self.nodes.values()) == {HEALTHY} and not any(faults)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def classify(explanation: Explanation) -> NodeStates:
    nodes, needed = explanation.nodes, explanation.tuning.partners
    answered = {node for node in nodes if explanation.by_node[node]}
    states = NodeStates(
        {}, {boundary: _classify_boundary(explanation, boundary) for boundary in explanation.boundaries}
    )
    majority = 2 * len(explanation.good) >= len(answered)
    for node in explanation.implicated:
        states.nodes[node] = _classify_implicated(explanation, node, majority)
    bad = set(states.of_class(BAD))
    states.silent = [node for node in nodes if node not in answered]
    # Pairs without a result that no bad or silent node explains; only a group that repeats the pair settles it.
    repeated = {item.pair for item in explanation.measurements if item.purpose == "repeat"}
    gaps = dict.fromkeys(item.pair for item in explanation.missing if answered.issuperset(item.pair))
    states.missing = [pair for pair in gaps if pair not in repeated and bad.isdisjoint(pair)]
    unexplained = [
        (
            SUSPECT,
            "failed with {partners}: inconclusive: either node, or the link",
            _partners(pair for pair, low in explanation.open_links.items() if any(item.has_failed for item in low)),
        ),
        (UNTESTED, "the result with {partners} is missing", _partners(states.missing)),
    ]
    for node in nodes:
        if node not in states.nodes:
            states.nodes[node] = _classify_other(explanation, node, unexplained, bad)
            right = sum(not item.is_low for item in explanation.by_node[node])
            if node in answered and right < needed:
                states.unvouched.append(node)
    ran = answered.union(*(item.pair for item in explanation.missing))
    for node in set(states.silent) - ran:
        states.nodes[node].reason = "in no group that ran before the search ended"
    for node in states.of_class(UNTESTED):
        messages = _messages(item for item in explanation.missing if node in item.pair)
        states.nodes[node].reason += f" ({messages})" if messages else ""
    states.unsure = _find_unsure(explanation, [node for node in nodes if states.nodes[node].name == HEALTHY])
    return states


def _partners(pairs: Iterable[Link]) -> dict[str, list[str]]:
    partners: dict[str, list[str]] = defaultdict(list)
    for first, second in pairs:
        partners[first].append(second)
        partners[second].append(first)
    return partners


def _find_unsure(explanation: Explanation, healthy: Sequence[str]) -> list[str]:
    """Healthy nodes with too few results for the noise: a slow node may look like them."""
    tuning, good = explanation.tuning, explanation.among_good()
    total, all_good = sum(item.relative for item in good), set(good)
    counts = {}
    for node in healthy:
        speeds = [item.relative for item in explanation.by_node[node] if item in all_good]
        peers = len(good) - len(speeds)
        if not speeds or not peers or len(speeds) >= tuning.small_gang_tests or node in explanation.cleared:
            continue
        offset = statistics.fmean(speeds) - (total - sum(speeds)) / peers
        if offset - tuning.sure_score * explanation.noise.error(len(speeds), peers) < explanation.surely_slow:
            counts[node] = len(speeds)
    return sorted(counts, key=counts.__getitem__)


def sentence(items: Sequence[Measurement], node: str) -> str:
    """The figures, partners, rounds and messages of measurements as a sentence about the node."""
    soft = [item.relative for item in items if not item.has_failed]
    failures = [item for item in items if item.has_failed]
    partners = some_of(dict.fromkeys(item.other(node) for item in items))
    parts = [f"{percent(statistics.median(soft))} than good pairs"] if soft else []
    if failures:
        parts.append(" and ".join(sorted({item.state for item in failures})))
    tail = _messages(failures)
    return f"{', '.join(parts)} with {partners} in {_rounds(items)}" + (f" ({tail})" if tail else "")


def _rounds(items: Sequence[Measurement]) -> str:
    return f"round {some_of(sorted({item.round + 1 for item in items}), MAX_ROUNDS)}"


def _messages(items: Iterable[Measurement]) -> str:
    """The first different messages of the measurements, as text."""
    messages = (item.message for item in items if item.message)
    shortened = dict.fromkeys(
        message if len(message) <= MESSAGE_CHARACTERS else f"{message[: MESSAGE_CHARACTERS - 3]}..."
        for message in messages
    )
    return "; ".join(list(shortened)[:MAX_MESSAGES])


def _classify_implicated(explanation: Explanation, node: str, majority: bool) -> NodeState:
    """The class of an implicated node. `majority`: at least half of the nodes with results are good."""
    tuning, measured = explanation.tuning, explanation.by_node[node]
    crossing = [items for boundary, items in explanation.boundaries.items() if boundary.scope != "apart"]
    elsewhere = explanation.outliers.union(*explanation.bad_links.values(), *crossing)
    apart = [item for item in measured if item not in elsewhere and item.other(node) in explanation.good]
    lows = [item for item in apart if item.is_low]
    fresh = [item for item in apart if item.is_test_of(node)]
    more = len(fresh) < explanation.most_tests()
    if not apart:
        low = sentence([item for item in measured if item.is_low], node)
        return NodeState(SUSPECT, f"{low}; no partner is known to be good", open=True)
    if not lows:
        return NodeState(SUSPECT, f"right with good partners, but {sentence(measured, node)}", open=more)
    reason = f"{sentence(lows, node)}, known to be good"
    right = len(apart) - len(lows)
    tail = f"; right {right} time(s)" if right else "; not confirmed"
    partners = {item.other(node) for item in lows}
    failed = {item.other(node) for item in lows if item.has_failed}
    confirmed = [item for item in fresh if item.is_low]
    enough = len({item.other(node) for item in confirmed}) >= min(tuning.partners, len(explanation.good))
    if failed:
        if len(failed) >= tuning.partners and not right and len(confirmed) >= tuning.partners and enough:
            return NodeState(BAD, reason)
        if right and len(failed) >= tuning.several and len(fresh) >= tuning.partners:
            return NodeState(BAD, f"{reason}; right {right} time(s): intermittent")
        return NodeState(SUSPECT, reason + tail, open=more)
    if len(partners) >= tuning.partners and enough and _is_slow(explanation, node, apart, fresh):
        if majority:
            return NodeState(BAD, reason)
        return NodeState(SUSPECT, f"{reason}; most of the gang is as slow: compare with the hardware's specification")
    noise = explanation.noise
    if noise.sigma > noise.expected:
        tail += f"; one measurement has {100 * noise.sigma:.2g} % of noise, {100 * noise.expected:.2g} % is expected"
    return NodeState(SUSPECT, reason + tail, open=more)


def _is_slow(explanation: Explanation, node: str, apart: Sequence[Measurement], fresh: Sequence[Measurement]) -> bool:
    """Whether all results, the fresh ones alone, and those without the worst partner are too slow for chance.

    The mean of good pairs is itself uncertain, which is included. Two results that were slow by chance must not decide:
    a result far below the node's own median counts as less far. The link to the worst partner may be bad; at least two
    partners must remain.
    """
    tuning, margin = explanation.tuning, explanation.margin
    usual, pair_count = explanation.usual()
    ranked = sorted(by_partner(apart, node).values(), key=statistics.fmean)
    trimmed = [value for values in ranked[len(ranked) > tuning.partners :] for value in values]
    relatives, new = ([item.relative for item in items] for items in (apart, fresh))
    is_near = statistics.median(relatives) - usual > -2 * tuning.surely_margins * margin
    if is_near and len(explanation.nodes) <= tuning.small_gang and len(fresh) < tuning.tests:
        return False  # too few results show the noise
    least = statistics.median(relatives) - tuning.clip_deviations * explanation.noise.sigma
    away, *parts = ([max(value, least) - usual for value in values] for values in (relatives, new, trimmed))
    if statistics.median(trimmed) > -margin or any(statistics.fmean(values) > -margin for values in (away, *parts)):
        return False
    return explanation.is_too_low(away, pair_count)


def _classify_other(
    explanation: Explanation,
    node: str,
    unexplained: Sequence[tuple[str, str, Mapping[str, list[str]]]],
    bad: Collection[str],
) -> NodeState:
    """The class of a node that is not implicated. ``unexplained``: class, reason, and by node the partners."""
    measured = explanation.by_node[node]
    if not measured:
        return NodeState(UNTESTED, "no result from any of its groups: silence is no evidence")
    for name, reason, partners in unexplained:
        if node in partners:
            return NodeState(name, reason.format(partners=some_of(partners[node])))
    if node in explanation.good:
        return NodeState(HEALTHY)
    right = sum(not item.is_low for item in measured)
    unclear = [item for item in measured if item.is_low and item.other(node) not in bad]
    if unclear and not right:
        return NodeState(SUSPECT, f"{sentence(unclear, node)}; inconclusive: either node", open=True)
    needed = explanation.tuning.partners
    return NodeState(UNTESTED, f"too few right results without another explanation: {right}, {needed} needed")


def _classify_boundary(explanation: Explanation, boundary: Boundary) -> NodeState:
    tuning, items = explanation.tuning, explanation.boundaries[boundary]
    soft = [item.relative for item in items if not item.has_failed]
    speed = f"are {percent(statistics.median(soft))} than good pairs" if soft else "fail"
    reason = f"{len(items)} pairs across it {speed} in {_rounds(items)}; each side is healthy by itself"
    if boundary.scope == "apart":
        return NodeState(SUSPECT, f"{reason}; by design, or a fault of what connects them")
    fresh = [item for item in items if item.purpose == "boundary"]
    low, rounds = [item for item in fresh if item.is_low], {item.round for item in fresh}
    enough = len(rounds) >= tuning.partners and len(low) >= min(tuning.boundary_pairs, len(items) // 2)
    if enough and explanation.is_too_low([item.relative for item in fresh], explanation.usual()[1]):
        return NodeState(BAD, reason)
    return NodeState(SUSPECT, f"{reason}; not confirmed", open=len(rounds) < tuning.tests)


def conclude(
    line: Sequence[str], topology: Topology, explanation: Explanation, states: NodeStates, floor: float | None
) -> Findings:
    """The findings of a search from its explanation. `floor`: the speed in bytes/s that two good nodes should reach."""
    nodes = {node: replace(state) for node, state in states.nodes.items()}
    boundaries, tuning, good = dict(states.boundaries), explanation.tuning, explanation.good
    # If all nodes of a rack are bad, suspect the rack instead of each node.
    bad = set(states.of_class(BAD))
    for level in LEVELS:
        for name, members in topology.groups(level, line).items():
            if tuning.several <= len(members) <= len(line) / 2 and bad.issuperset(members):
                reason = f"all {len(members)} nodes of {level} {name} are bad: check what they share first"
                boundaries[Boundary(level, (name,), "inside")] = NodeState(BAD, reason)
                for node in members:
                    nodes[node] = NodeState(SUSPECT, f"{reason}. {nodes[node].reason}")
                bad -= set(members)
    gang = _compare_with_floor(explanation, nodes, floor)
    if (faster := explanation.faster()) >= tuning.several:
        gang.append(
            f"{faster} pairs are at least {100 * tuning.gross:g} % faster than usual, so most of the gang may be "
            "slow: declare racks, or set gpuval_gang_expected_bytes_per_second"
        )
    answered, implicated = [node for node in line if explanation.by_node[node]], len(explanation.implicated)
    if answered and not good:
        none_worked = all(item.has_failed for item in explanation.measurements)
        gang.append("no pair worked: check what all nodes share" if none_worked else "no node is known to be good")
    elif 2 * implicated > len(answered):
        gang.append(f"{implicated} of {len(answered)} nodes are worse than the others")
    open_links = {
        pair: low
        for pair, low in explanation.open_links.items()
        if good.issuperset(pair) or explanation.outliers.issuperset(low)
    }
    evidence = {node: [state.reason] for node, state in nodes.items() if state.reason}
    for pair, items in {**explanation.bad_links, **open_links}.items():
        comparison = "right with others" if good.issuperset(pair) else "faster with most others"
        evidence[" - ".join(pair)] = [f"{sentence(items, pair[0])}; both are {comparison}"]
    evidence |= {str(boundary): [state.reason] for boundary, state in boundaries.items()}
    return Findings(
        nodes={node: nodes[node].name for node in line},
        bad_links=list(explanation.bad_links),
        suspect_links=list(open_links),
        bad_boundaries=[boundary for boundary, state in boundaries.items() if state.name == BAD],
        suspect_boundaries=[boundary for boundary, state in boundaries.items() if state.name != BAD],
        gang=gang,
        evidence=evidence,
        centre_bytes_per_second=None if explanation.centre is None else math.exp(explanation.centre),
        noise_ratio=explanation.noise.sigma,
    )


def _compare_with_floor(explanation: Explanation, nodes: dict[str, NodeState], floor: float | None) -> list[str]:
    """A fault if all pairs are slower than `floor` in bytes/s; healthy nodes then become suspect."""
    if explanation.centre is None or not floor:
        return []
    tuning, centre = explanation.tuning, math.exp(explanation.centre)
    doubt = tuning.score * explanation.noise.sigma / math.sqrt(max(1, explanation.usual()[1]))
    if centre >= floor * (1 - max(explanation.margin, min(doubt, tuning.gross))):
        return []
    for node, state in nodes.items():
        if state.name == HEALTHY:
            nodes[node] = NodeState(SUSPECT, "as fast as the other nodes, but all are slower than expected")
    slower = percent(math.log(centre / floor))
    return [f"good pairs reach {centre:.4g} bytes/s, {slower} than expected ({floor:.4g})"]


def counts_of(classes: Mapping[str, str]) -> str:
    """The number of nodes in each class as text: `3 healthy, 1 bad`."""
    listed = list(classes.values())
    return ", ".join(f"{listed.count(name)} {name}" for name in CLASSES if name in listed)
