"""What a search concludes: the class of every node, link and boundary, and faults of the gang as a whole; pure."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from ...core.text import some_of
from .pair_explanation import Link, PairExplanation, PairMeasurement, TopologyBoundary, by_partner
from .pair_noise import percent
from .search_limits import TUNING
from .topology import LEVELS, Topology

HEALTHY, BAD, SUSPECT, UNTESTED = CLASSES = "healthy", "bad", "suspect", "untested"
#: Limits of the messages of failed results in one sentence: their number, and characters of each.
MAX_MESSAGES, MESSAGE_CHARACTERS = 2, 160
MAX_ROUNDS = 12


@dataclass
class NodeFinding:
    """The search's class of a node (or boundary) with its reason. `open`: another test may settle it."""

    name: str
    reason: str = ""
    open: bool = False


@dataclass
class NodeFindings:
    """The search's class of every node and boundary, and missing results. `unvouched`: nodes with too few right results
    to be healthy. `unsure`: healthy nodes that may still be slow within the noise, those with the fewest results
    first."""

    nodes: dict[str, NodeFinding]
    boundaries: dict[TopologyBoundary, NodeFinding]
    missing: list[Link] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    unvouched: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)

    def of_class(self, name: str) -> list[str]:
        return [node for node, state in self.nodes.items() if state.name == name]


@dataclass
class SearchFindings:
    """The results of a search. `evidence`: sentences by node, by link (`a - b`), by boundary (`rack r1 (around)`).
    `gang`: faults of no single node, with which the gang must not be accepted, whatever the classes are."""

    nodes: dict[str, str]
    bad_links: list[Link]
    suspect_links: list[Link]
    bad_boundaries: list[TopologyBoundary]
    suspect_boundaries: list[TopologyBoundary]
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


def classify(explanation: PairExplanation) -> NodeFindings:
    """The search's class of every node and boundary, from the explanation of all measurements."""
    by_node, needed = explanation.by_node, TUNING.partners
    answered = {node for node, items in by_node.items() if items}
    boundaries = {boundary: _classify_boundary(explanation, boundary) for boundary in explanation.boundaries}
    states = NodeFindings(
        {node: _classify_implicated(explanation, node) for node in explanation.implicated}, boundaries
    )
    bad = set(states.of_class(BAD))
    states.silent = [node for node in explanation.nodes if node not in answered]
    # Pairs without a result that no bad or silent node explains; only a group that repeats the pair settles it.
    repeated = {item.pair for item in explanation.measurements if item.purpose == "repeat"}
    gaps = dict.fromkeys(item.pair for item in explanation.missing if answered.issuperset(item.pair))
    states.missing = [pair for pair in gaps if pair not in repeated and bad.isdisjoint(pair)]
    failing = [pair for pair, low in explanation.open_links.items() if any(item.has_failed for item in low)]
    for node in explanation.nodes:
        if node not in states.nodes:
            states.nodes[node] = _classify_other(explanation, node, failing, states.missing, bad)
            right = sum(not item.is_low for item in by_node[node])
            if node in answered and right < needed:
                states.unvouched.append(node)
    states.unsure = _find_unsure(explanation, states.of_class(HEALTHY))
    return states


def _find_unsure(explanation: PairExplanation, healthy: Sequence[str]) -> list[str]:
    """Healthy nodes with too few results for the noise: a slow node may look like them."""
    good = explanation.among_good()
    total, all_good = sum(item.relative for item in good), set(good)
    counts = {}
    for node in healthy:
        speeds = [item.relative for item in explanation.by_node[node] if item in all_good]
        peers = len(good) - len(speeds)
        if not speeds or not peers or len(speeds) >= TUNING.small_gang_tests:
            continue
        offset = statistics.fmean(speeds) - (total - sum(speeds)) / peers
        if offset - TUNING.sure_score * explanation.noise.error(len(speeds), peers) < explanation.surely_slow:
            counts[node] = len(speeds)
    return sorted(counts, key=counts.__getitem__)


def sentence(items: Sequence[PairMeasurement], node: str) -> str:
    """The figures, partners, rounds and messages of measurements as a sentence about the node."""
    soft = [item.relative for item in items if not item.has_failed]
    failures = [item for item in items if item.has_failed]
    partners = some_of(dict.fromkeys(item.other(node) for item in items))
    parts = [f"{percent(statistics.median(soft))} than good pairs"] if soft else []
    if failures:
        parts.append(" and ".join(sorted({item.state for item in failures})))
    tail = _messages(failures)
    return f"{', '.join(parts)} with {partners} in {_rounds(items)}" + (f" ({tail})" if tail else "")


def _rounds(items: Sequence[PairMeasurement]) -> str:
    return f"round {some_of(sorted({item.round for item in items}), MAX_ROUNDS)}"


def _messages(items: Iterable[PairMeasurement]) -> str:
    """The first different messages of the measurements, as text."""
    messages = (item.message for item in items if item.message)
    shortened = dict.fromkeys(
        message if len(message) <= MESSAGE_CHARACTERS else f"{message[: MESSAGE_CHARACTERS - 3]}..."
        for message in messages
    )
    return "; ".join(list(shortened)[:MAX_MESSAGES])


def _classify_implicated(explanation: PairExplanation, node: str) -> NodeFinding:
    measured = explanation.by_node[node]
    crossing = [items for boundary, items in explanation.boundaries.items() if boundary.scope != "apart"]
    elsewhere = explanation.outliers.union(*explanation.bad_links.values(), *crossing)
    apart = [item for item in measured if item not in elsewhere and item.other(node) in explanation.good]
    lows = [item for item in apart if item.is_low]
    fresh = [item for item in apart if item.is_test_of(node)]
    more = len(fresh) < explanation.most_tests()
    if not apart:
        low = sentence([item for item in measured if item.is_low], node)
        return NodeFinding(SUSPECT, f"{low}; no partner is known to be good", open=True)
    if not lows:
        return NodeFinding(SUSPECT, f"right with good partners, but {sentence(measured, node)}", open=more)
    reason = f"{sentence(lows, node)}, known to be good"
    right = len(apart) - len(lows)
    partners, failed, confirmed = (
        {item.other(node) for item in items}
        for items in (lows, [item for item in lows if item.has_failed], [item for item in fresh if item.is_low])
    )
    enough = len(confirmed) >= min(TUNING.partners, len(explanation.good))
    if right and len(failed) >= TUNING.several and len(fresh) >= TUNING.partners:
        return NodeFinding(BAD, f"{reason}; right {right} time(s): intermittent")
    if failed and not right and min(len(failed), sum(item.is_low for item in fresh)) >= TUNING.partners and enough:
        return NodeFinding(BAD, reason)
    if not failed and len(partners) >= TUNING.partners and enough and _is_slow(explanation, node, apart, fresh):
        if 2 * len(explanation.good) >= sum(map(bool, explanation.by_node.values())):
            return NodeFinding(BAD, reason)
        return NodeFinding(SUSPECT, f"{reason}; most of the gang is as slow: compare with the hardware's specification")
    tail = f"; right {right} time(s)" if right else "; not confirmed"
    noise = explanation.noise
    if not failed and noise.sigma > noise.expected:
        tail += f"; one measurement has {100 * noise.sigma:.2g} % of noise, {100 * noise.expected:.2g} % is expected"
    return NodeFinding(SUSPECT, reason + tail, open=more)


def _is_slow(
    explanation: PairExplanation, node: str, apart: Sequence[PairMeasurement], fresh: Sequence[PairMeasurement]
) -> bool:
    """Whether all results are too slow for chance, beside the uncertain mean of good pairs, and slow also as the fresh
    ones alone and without the worst partner, to which the link may be bad; at least two partners must remain."""
    margin = explanation.margin
    usual, pair_count = explanation.usual()
    ranked = sorted(by_partner(apart, node).values(), key=statistics.fmean)
    trimmed = [value for values in ranked[len(ranked) > TUNING.partners :] for value in values]
    relatives, new = ([item.relative for item in items] for items in (apart, fresh))
    is_near = statistics.median(relatives) - usual > -2 * TUNING.surely_margins * margin
    if is_near and len(explanation.nodes) <= TUNING.small_gang and len(fresh) < TUNING.tests:
        return False  # too few results show the noise
    is_low = all(statistics.fmean(values) - usual <= -margin for values in (relatives, new, trimmed))
    return is_low and explanation.is_too_low([value - usual for value in relatives], pair_count)


def _classify_other(
    explanation: PairExplanation, node: str, failing: Iterable[Link], missing: Iterable[Link], bad: Collection[str]
) -> NodeFinding:
    """The class of a node that is not implicated: the first rule that holds. ``failing``, ``missing``: pairs whose
    failure, or lack of a result, nothing else explains."""
    measured = explanation.by_node[node]
    failing_partners, missing_partners = (
        some_of([other for pair in pairs if node in pair for other in pair if other != node])
        for pairs in (failing, missing)
    )
    silence = _messages(item for item in explanation.missing if node in item.pair)
    tail = f" ({silence})" if silence else ""
    if not measured:
        has_run = any(node in item.pair for item in explanation.missing)
        reason = "no result from any of its groups: silence is no evidence"
        return NodeFinding(UNTESTED, f"{reason if has_run else 'in no group that ran before the search ended'}{tail}")
    if failing_partners:
        return NodeFinding(SUSPECT, f"failed with {failing_partners}: inconclusive: either node, or the link")
    if missing_partners:
        return NodeFinding(UNTESTED, f"the result with {missing_partners} is missing{tail}")
    if node in explanation.good:
        return NodeFinding(HEALTHY)
    right = sum(not item.is_low for item in measured)
    unclear = [item for item in measured if item.is_low and item.other(node) not in bad]
    if unclear and not right:
        return NodeFinding(SUSPECT, f"{sentence(unclear, node)}; inconclusive: either node", open=True)
    needed = TUNING.partners
    return NodeFinding(UNTESTED, f"too few right results without another explanation: {right}, {needed} needed{tail}")


def _classify_boundary(explanation: PairExplanation, boundary: TopologyBoundary) -> NodeFinding:
    items = explanation.boundaries[boundary]
    soft = [item.relative for item in items if not item.has_failed]
    speed = f"are {percent(statistics.median(soft))} than good pairs" if soft else "fail"
    reason = f"{len(items)} pairs across it {speed} in {_rounds(items)}; each side is healthy by itself"
    if boundary.scope == "apart":
        return NodeFinding(SUSPECT, f"{reason}; by design, or a fault of what connects them")
    fresh = [item for item in items if item.purpose == "boundary"]
    low, rounds = [item for item in fresh if item.is_low], {item.round for item in fresh}
    enough = len(rounds) >= TUNING.partners and len(low) >= min(TUNING.several, len(items) // 2)
    if enough and explanation.is_too_low([item.relative for item in fresh], explanation.usual()[1]):
        return NodeFinding(BAD, reason)
    return NodeFinding(SUSPECT, f"{reason}; not confirmed", open=len(rounds) < TUNING.tests)


def conclude(
    line: Sequence[str], topology: Topology, explanation: PairExplanation, states: NodeFindings, floor: float | None
) -> SearchFindings:
    """The findings of a search from its explanation. `floor`: the speed in bytes/s that two good nodes should reach."""
    nodes, boundaries, bad = dict(states.nodes), dict(states.boundaries), set(states.of_class(BAD))
    good = explanation.good
    # If all nodes of a rack are bad, suspect the rack instead of each node.
    for level in LEVELS:
        for name, members in topology.groups(level, line).items():
            if TUNING.several <= len(members) <= len(line) / 2 and bad.issuperset(members):
                reason = f"all {len(members)} nodes of {level} {name} are bad: check what they share first"
                boundaries[TopologyBoundary(level, (name,), "inside")] = NodeFinding(BAD, reason)
                nodes |= {node: NodeFinding(SUSPECT, f"{reason}. {nodes[node].reason}") for node in members}
                bad -= set(members)
    gang = _faults_of_gang(explanation)
    if slow := _compare_with_floor(explanation, floor):
        doubt = NodeFinding(SUSPECT, "as fast as the other nodes, but all are slower than expected")
        nodes |= dict.fromkeys(states.of_class(HEALTHY), doubt)
        gang.insert(0, slow)
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
    return SearchFindings(
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


def _faults_of_gang(explanation: PairExplanation) -> list[str]:
    faults = []
    if (faster := explanation.faster()) >= TUNING.several:
        faults.append(
            f"{faster} pairs are at least {100 * TUNING.gross:g} % faster than usual, so most of the gang "
            "may be slow: declare racks, or set gpuval_gang_expected_bytes_per_second"
        )
    answered, implicated = sum(map(bool, explanation.by_node.values())), len(explanation.implicated)
    if answered and not explanation.good:
        none_worked = all(item.has_failed for item in explanation.measurements)
        faults.append("no pair worked: check what all nodes share" if none_worked else "no node is known to be good")
    elif 2 * implicated > answered:
        faults.append(f"{implicated} of {answered} nodes are worse than the others")
    return faults


def _compare_with_floor(explanation: PairExplanation, floor: float | None) -> str:
    """The fault that all pairs are slower than `floor` in bytes/s; empty if they are not."""
    if explanation.centre is None or not floor:
        return ""
    change = explanation.centre - math.log(floor)
    doubt = TUNING.score * explanation.noise.sigma / math.sqrt(max(1, explanation.usual()[1]))
    if change >= -max(explanation.margin, min(doubt, TUNING.gross)):
        return ""
    speed = math.exp(explanation.centre)
    return f"good pairs reach {speed:.4g} bytes/s, {percent(change)} than expected ({floor:.4g})"


def counts_of(classes: Mapping[str, str]) -> str:
    """The number of nodes in each class as text: `3 healthy, 1 bad`."""
    listed = list(classes.values())
    return ", ".join(f"{listed.count(name)} {name}" for name in CLASSES if name in listed)
