"""The class of each node by the results so far, and which tests are missing for a better answer; pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...core.text import some_of
from .explanation import Boundary, Explanation, Link, Measurement
from .statistics import percent

HEALTHY, BAD, SUSPECT, UNTESTED = "healthy", "bad", "suspect", "untested"
#: Messages of failed results in one sentence, and the length of each in characters.
MAX_MESSAGES, MESSAGE_CHARACTERS = 2, 160
MAX_ROUNDS = 12


@dataclass
class NodeState:
    """Class of a node (or of a boundary) with its reason. `open`: another test may settle it."""

    name: str
    reason: str = ""
    open: bool = False


@dataclass
class NodeStates:
    """The class of every node and boundary, and which results are missing.

    `unvouched`: nodes with too few right results to be healthy. `unsure`: healthy nodes that may still be slow within
    the noise, those with the fewest results first.
    """

    nodes: dict[str, NodeState]
    boundaries: dict[Boundary, NodeState]
    missing: list[Link] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    unvouched: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)


def classify(explanation: Explanation) -> NodeStates:
    nodes = explanation.nodes
    answered = {node for node in nodes if explanation.by_node[node]}
    states = NodeStates({}, {boundary: _boundary(explanation, boundary) for boundary in explanation.boundaries})
    majority = 2 * len(explanation.good) >= len(answered)
    for node in explanation.implicated:
        states.nodes[node] = _implicated(explanation, node, majority)
    bad = {node for node, state in states.nodes.items() if state.name == BAD}
    states.silent = [node for node in nodes if node not in answered]
    states.missing = _missing(explanation, answered, bad)
    gaps = _partners(states.missing)
    failed = _partners(pair for pair, low in explanation.open_links.items() if any(item.has_failed for item in low))
    for node in nodes:
        if node not in states.nodes:
            states.nodes[node] = _other(explanation, node, answered, gaps, failed, bad)
            right = sum(item.is_right for item in explanation.by_node[node])
            if node in answered and right < explanation.tuning.partners:
                states.unvouched.append(node)
    ran = answered.union(*(item.pair for item in explanation.missing))
    for node in set(states.silent) - ran:
        states.nodes[node].reason = "in no group that ran before the search ended"
    untested = [node for node in nodes if states.nodes[node].name == UNTESTED]
    for node, messages in _messages(explanation.missing, untested).items():
        states.nodes[node].reason += f" ({messages})"
    states.unsure = _unsure(explanation, [node for node in nodes if states.nodes[node].name == HEALTHY])
    return states


def _partners(pairs: Iterable[Link]) -> dict[str, list[str]]:
    partners: dict[str, list[str]] = defaultdict(list)
    for first, two in pairs:
        partners[first].append(two)
        partners[two].append(first)
    return partners


def _unsure(explanation: Explanation, healthy: Sequence[str]) -> list[str]:
    """Healthy nodes with few results for the noise: a slow node may look like them."""
    tuning, good = explanation.tuning, explanation.among_good()
    total, all_good = sum(item.relative for item in good), set(good)
    counts = {}
    for node in healthy:
        speeds = [item.relative for item in explanation.by_node[node] if item in all_good]
        peers = len(good) - len(speeds)
        if not speeds or not peers or len(speeds) >= tuning.small_gang_tests or node in explanation.cleared:
            continue
        offset = statistics.fmean(speeds) - (total - sum(speeds)) / peers
        if offset - tuning.sure_score * explanation.noise.error(len(speeds), peers) < explanation.setting.surely_slow:
            counts[node] = len(speeds)
    return sorted(counts, key=counts.__getitem__)


def fresh_partners(explanation: Explanation, node: str) -> set[str]:
    """Partners in the tests of this node."""
    return {item.other(node) for item in explanation.by_node[node] if item.is_test_of(node)}


def sentence(items: Sequence[Measurement], node: str) -> str:
    """Figures, partners, rounds and messages of measurements."""
    soft = [item.relative for item in items if not item.has_failed]
    failures = [item for item in items if item.has_failed]
    partners = some_of(dict.fromkeys(item.other(node) for item in items))
    parts = [f"{percent(statistics.median(soft))} than good pairs"] if soft else []
    if failures:
        parts.append(" and ".join(sorted({item.state for item in failures})))
    messages = [message for message in dict.fromkeys(item.message for item in failures) if message]
    tail = "; ".join(map(_short, messages[:MAX_MESSAGES]))
    return f"{', '.join(parts)} with {partners} in {_rounds(items)}" + (f" ({tail})" if tail else "")


def _rounds(items: Sequence[Measurement]) -> str:
    return f"round {some_of(sorted({item.round + 1 for item in items}), MAX_ROUNDS)}"


def _short(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARACTERS else f"{message[: MESSAGE_CHARACTERS - 3]}..."


def _implicated(explanation: Explanation, node: str, majority: bool) -> NodeState:
    """`majority`: at least half of the nodes that answered are good."""
    tuning, measured = explanation.tuning, explanation.by_node[node]
    crossing = [of for boundary, of in explanation.boundaries.items() if boundary.scope != "apart"]
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
    needed = min(tuning.partners, len(explanation.good))
    enough = len({item.other(node) for item in confirmed}) >= needed
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

    The mean of the good pairs is itself uncertain, which counts. Two results that were slow by chance must not make a
    mean: a result far below the node's own median counts as less far.
    """
    noise, tuning, margin = explanation.noise, explanation.tuning, explanation.setting.margin
    usual, among = explanation.usual()
    trimmed = _without_worst_partner(explanation, node, apart)
    relatives, new = ([item.relative for item in items] for items in (apart, fresh))
    is_near = statistics.median(relatives) - usual > -2 * tuning.surely_margins * margin
    if is_near and len(explanation.nodes) <= tuning.small_gang and len(fresh) < tuning.tests:
        return False  # the noise is known from few results
    least = statistics.median(relatives) - tuning.clip_deviations * noise.sigma
    away, *parts = ([max(value, least) - usual for value in values] for values in (relatives, new, trimmed))
    if statistics.median(trimmed) > -margin or any(statistics.fmean(values) > -margin for values in (away, *parts)):
        return False
    return noise.score(away, among) <= -noise.bar(tuning.score)


def _without_worst_partner(explanation: Explanation, node: str, apart: Sequence[Measurement]) -> list[float]:
    """Results without one partner, the link to which may be bad. At least two partners stay."""
    by_partner: dict[str, list[float]] = defaultdict(list)
    for item in apart:
        by_partner[item.other(node)].append(item.relative)
    ranked = sorted(by_partner.values(), key=statistics.fmean)
    ranked_kept = ranked[1:] if len(ranked) > explanation.tuning.partners else ranked
    return [value for values in ranked_kept for value in values]


def _other(
    explanation: Explanation,
    node: str,
    answered: set[str],
    gaps: Mapping[str, list[str]],
    failed: Mapping[str, list[str]],
    bad: set[str],
) -> NodeState:
    if node not in answered:
        return NodeState(UNTESTED, "no result from any of its groups: silence is no evidence")
    if node in failed:
        return NodeState(SUSPECT, f"failed with {some_of(failed[node])}: inconclusive: either node, or the link")
    if node in gaps:
        return NodeState(UNTESTED, f"the result with {some_of(gaps[node])} is missing")
    if node in explanation.good:
        return NodeState(HEALTHY)
    measured = explanation.by_node[node]
    right = sum(item.is_right for item in measured)
    unclear = [item for item in measured if item.is_low and item.other(node) not in bad]
    if unclear and not right:
        return NodeState(SUSPECT, f"{sentence(unclear, node)}; inconclusive: either node", open=True)
    needed = explanation.tuning.partners
    return NodeState(UNTESTED, f"too few right results without another explanation: {right}, {needed} needed")


def _boundary(explanation: Explanation, boundary: Boundary) -> NodeState:
    tuning, items = explanation.tuning, explanation.boundaries[boundary]
    soft = [item.relative for item in items if not item.has_failed]
    speed = f"are {percent(statistics.median(soft))} than good pairs" if soft else "fail"
    reason = f"{len(items)} pairs across it {speed} in {_rounds(items)}; each side is healthy by itself"
    if boundary.scope == "apart":
        return NodeState(SUSPECT, f"{reason}; by design, or a fault of what connects them")
    fresh = [item for item in items if item.purpose == "boundary"]
    low, rounds = [item for item in fresh if item.is_low], {item.round for item in fresh}
    values = [item.relative for item in fresh]
    enough = len(rounds) >= tuning.partners and len(low) >= min(tuning.boundary_pairs, len(items) // 2)
    noise = explanation.noise
    if enough and noise.score(values, explanation.usual()[1]) <= -noise.bar(tuning.score):
        return NodeState(BAD, reason)
    return NodeState(SUSPECT, f"{reason}; not confirmed", open=len(rounds) < tuning.tests)


def _messages(missing: Sequence[Measurement], nodes: Sequence[str]) -> dict[str, str]:
    """By node why results with it are missing, as far as the results contain a message."""
    by_node = {
        node: dict.fromkeys(_short(item.message) for item in missing if item.message and node in item.pair)
        for node in nodes
    }
    return {node: "; ".join(list(messages)[:MAX_MESSAGES]) for node, messages in by_node.items() if messages}


def _missing(explanation: Explanation, answered: set[str], bad: set[str]) -> list[Link]:
    """Pairs without a result, unless a bad or silent node explains it, or a repetition supplied one.

    Only a group that was run for this reason makes up for a missing result.
    """
    again = {item.pair for item in explanation.measurements if item.purpose == "repeat"}
    gaps = dict.fromkeys(item.pair for item in explanation.missing if answered.issuperset(item.pair))
    return [pair for pair in gaps if pair not in again and bad.isdisjoint(pair)]
