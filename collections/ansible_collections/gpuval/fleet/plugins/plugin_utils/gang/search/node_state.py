"""The class of each node by the results so far, and which tests are missing for a better answer; pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...core.text import some_of
from .explanation import Boundary, Explanation, Link, Measurement
from .statistics import HARD, percent

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


def classify(nodes: Sequence[str], explanation: Explanation, measurements: Sequence[Measurement]) -> NodeStates:
    """`measurements`: those of the explanation, missing results among them."""
    answered = {node for node in nodes if explanation.by_node[node]}
    states = NodeStates({}, {boundary: _boundary(explanation, boundary) for boundary in explanation.boundaries})
    majority = 2 * len(explanation.good) >= len(answered)
    for node in explanation.implicated:
        states.nodes[node] = _implicated(explanation, node, majority)
    bad = {node for node, state in states.nodes.items() if state.name == BAD}
    states.silent = [node for node in nodes if node not in answered]
    states.missing = _missing(measurements, answered, bad)
    gaps = _partners(states.missing)
    failed = _partners(pair for pair, low in explanation.open_links.items() if any(map(explanation.is_failure, low)))
    for node in nodes:
        if node not in states.nodes:
            states.nodes[node] = _other(explanation, node, answered, gaps, failed, bad)
            right = sum(map(explanation.is_right, explanation.by_node[node]))
            if node in answered and right < explanation.tuning.right_results:
                states.unvouched.append(node)
    ran = {node for item in measurements for node in (item.one, item.two)}
    for node in set(states.silent) - ran:
        states.nodes[node].reason = "in no group that ran before the search ended"
    untested = [node for node in nodes if states.nodes[node].name == UNTESTED]
    for node, messages in _messages(measurements, untested).items():
        states.nodes[node].reason += f" ({messages})"
    states.unsure = _unsure(explanation, [node for node in nodes if states.nodes[node].name == HEALTHY])
    return states


def _partners(pairs: Iterable[Link]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one, two in pairs:
        found.setdefault(one, []).append(two)
        found.setdefault(two, []).append(one)
    return found


def _unsure(explanation: Explanation, healthy: Sequence[str]) -> list[str]:
    """Healthy nodes with few results for the noise: a slow node may look like them."""
    tuning, good = explanation.tuning, explanation.among_good()
    whole = sum(good.values())
    found = {}
    for node in healthy:
        own = [good[index] for index in explanation.by_node[node] if index in good]
        rest = len(good) - len(own)
        if not own or not rest or len(own) >= tuning.plenty_results or node in explanation.cleared:
            continue
        offset = statistics.fmean(own) - (whole - sum(own)) / rest
        if offset - tuning.sure_score * explanation.noise.error(len(own), rest) < explanation.setting.surely_slow:
            found[node] = len(own)
    return sorted(found, key=found.__getitem__)


def fresh_partners(explanation: Explanation, node: str) -> set[str]:
    """Partners in the tests of this node."""
    return {explanation.partner(index, node) for index in explanation.fresh(node)}


def sentence(explanation: Explanation, indices: Sequence[int], node: str) -> str:
    """Figures, partners, rounds and messages of measurements."""
    soft = [value for index in indices if (value := explanation.relative[index] or 0.0) > HARD]
    failures = [explanation.measurements[index] for index in indices if explanation.is_failure(index)]
    partners = some_of(dict.fromkeys(explanation.partner(index, node) for index in indices))
    how = [f"{percent(statistics.median(soft))} than good pairs"] if soft else []
    if failures:
        how.append(" and ".join(sorted({item.state for item in failures})))
    messages = [message for message in dict.fromkeys(item.message for item in failures) if message]
    tail = "; ".join(map(_short, messages[:MAX_MESSAGES]))
    return f"{', '.join(how)} with {partners} in {_rounds(explanation, indices)}" + (f" ({tail})" if tail else "")


def _rounds(explanation: Explanation, indices: Sequence[int]) -> str:
    rounds = sorted({explanation.measurements[index].round + 1 for index in indices})
    return f"round {some_of(rounds, MAX_ROUNDS)}"


def _short(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARACTERS else f"{message[: MESSAGE_CHARACTERS - 3]}..."


def _implicated(explanation: Explanation, node: str, majority: bool) -> NodeState:
    """`majority`: at least half of the nodes that answered are good."""
    tuning = explanation.tuning
    crossing = [of for boundary, of in explanation.boundaries.items() if boundary.scope != "apart"]
    elsewhere = {index for of in (*explanation.bad_links.values(), *crossing) for index in of} | explanation.outliers
    seen = [
        index
        for index in explanation.by_node[node]
        if index not in elsewhere and explanation.partner(index, node) in explanation.good
    ]
    lows = [index for index in seen if explanation.is_low(index)]
    fresh = [index for index in seen if explanation.measurements[index].is_test_of(node)]
    more = len(fresh) < explanation.most_tests()
    if not seen:
        own = [index for index in explanation.by_node[node] if explanation.is_low(index)]
        return NodeState(SUSPECT, f"{sentence(explanation, own, node)}; no partner is known to be good", open=True)
    if not lows:
        every = sentence(explanation, explanation.by_node[node], node)
        return NodeState(SUSPECT, f"right with good partners, but {every}", open=more)
    reason = f"{sentence(explanation, lows, node)}, known to be good"
    right = len(seen) - len(lows)
    tail = f"; right {right} time(s)" if right else "; not confirmed"
    partners = {explanation.partner(index, node) for index in lows}
    failed = {explanation.partner(index, node) for index in lows if explanation.is_failure(index)}
    confirmed = [index for index in fresh if explanation.is_low(index)]
    needed = min(tuning.partners, len(explanation.good))
    enough = len({explanation.partner(index, node) for index in confirmed}) >= needed
    if failed:
        if len(failed) >= tuning.partners and not right and len(confirmed) >= tuning.partners and enough:
            return NodeState(BAD, reason)
        if right and len(failed) >= tuning.intermittent_partners and len(fresh) >= tuning.partners:
            return NodeState(BAD, f"{reason}; right {right} time(s): intermittent")
        return NodeState(SUSPECT, reason + tail, open=more)
    if len(partners) >= tuning.partners and enough and _is_slow(explanation, node, seen, fresh):
        if majority:
            return NodeState(BAD, reason)
        return NodeState(SUSPECT, f"{reason}; most of the gang is as slow: compare with the hardware's specification")
    noise = explanation.noise
    if noise.sigma > tuning.noisy * noise.expected:
        tail += f"; one measurement has {100 * noise.sigma:.2g} % of noise, {100 * noise.expected:.2g} % is expected"
    return NodeState(SUSPECT, reason + tail, open=more)


def _is_slow(explanation: Explanation, node: str, seen: Sequence[int], fresh: Sequence[int]) -> bool:
    """Whether all results, the fresh ones alone, and those without the worst partner are too slow for chance.

    The mean of the good pairs is itself uncertain, which counts. Two results that were slow by chance must not make a
    mean: a result far below the node's own median counts as less far.
    """
    noise, tuning, margin = explanation.noise, explanation.tuning, explanation.setting.margin
    usual, among = explanation.usual()
    rest = _without_worst_partner(explanation, node, seen)
    whole, new = ([explanation.relative[index] or 0.0 for index in indices] for indices in (seen, fresh))
    is_near = statistics.median(whole) - usual > -tuning.far_margins * margin
    if is_near and noise.known < tuning.known_residuals and len(fresh) < tuning.node_tests:
        return False
    least = statistics.median(whole) - tuning.clip_deviations * noise.sigma

    away, *parts = ([max(value, least) - usual for value in values] for values in (whole, new, rest))
    if statistics.median(rest) > -margin or any(statistics.fmean(values) > -margin for values in (away, *parts)):
        return False
    return noise.score(away, among) <= -noise.bar(tuning.node_bar(len(explanation.by_node)))


def _without_worst_partner(explanation: Explanation, node: str, seen: Sequence[int]) -> list[float]:
    """Results without one partner, the link to which may be bad. At least two partners stay."""
    by_partner: dict[str, list[float]] = {}
    for index in seen:
        by_partner.setdefault(explanation.partner(index, node), []).append(explanation.relative[index] or 0.0)
    ranked = sorted(by_partner.values(), key=statistics.fmean)
    kept = ranked[1:] if len(ranked) > explanation.tuning.partners else ranked
    return [value for values in kept for value in values]


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
    own = explanation.by_node[node]
    right = sum(map(explanation.is_right, own))
    unclear = [index for index in own if explanation.is_low(index) and explanation.partner(index, node) not in bad]
    if unclear and not right:
        return NodeState(SUSPECT, f"{sentence(explanation, unclear, node)}; inconclusive: either node", open=True)
    needed = explanation.tuning.right_results
    return NodeState(UNTESTED, f"too few right results without another explanation: {right}, {needed} needed")


def _boundary(explanation: Explanation, boundary: Boundary) -> NodeState:
    tuning, indices = explanation.tuning, explanation.boundaries[boundary]
    soft = [value for index in indices if (value := explanation.relative[index] or 0.0) > HARD]
    how = f"are {percent(statistics.median(soft))} than good pairs" if soft else "fail"
    reason = f"{len(indices)} pairs across it {how} in {_rounds(explanation, indices)}; each side is healthy by itself"
    if boundary.scope == "apart":
        return NodeState(SUSPECT, f"{reason}; by design, or a fault of what connects them")
    fresh = [index for index in indices if explanation.measurements[index].purpose == "boundary"]
    low = [index for index in fresh if explanation.is_low(index)]
    values = [explanation.relative[index] or 0.0 for index in fresh]
    rounds = {explanation.measurements[index].round for index in fresh}
    enough = len(rounds) >= tuning.partners and len(low) >= min(tuning.boundary_fresh, len(indices) // 2)
    noise = explanation.noise
    if enough and noise.score(values, explanation.usual()[1]) <= -noise.bar(tuning.boundary_score):
        return NodeState(BAD, reason)
    return NodeState(SUSPECT, f"{reason}; not confirmed", open=len(rounds) < tuning.link_tests)


def _messages(measurements: Sequence[Measurement], nodes: Sequence[str]) -> dict[str, str]:
    """By node why results with it are missing, as far as the results contain a message."""
    found: dict[str, dict[str, None]] = {node: {} for node in nodes}
    for item in measurements:
        for node in (item.one, item.two) if item.state == "missing" and item.message else ():
            if node in found:
                found[node][_short(item.message)] = None
    return {node: "; ".join(list(messages)[:MAX_MESSAGES]) for node, messages in found.items() if messages}


def _missing(measurements: Sequence[Measurement], answered: set[str], bad: set[str]) -> list[Link]:
    """Pairs without a result, unless a bad or silent node explains it, or a repetition supplied one.

    Only a group that was run for this reason makes up for a missing result.
    """
    again = {(item.one, item.two) for item in measurements if item.purpose == "repeat" and item.state != "missing"}
    gaps = dict.fromkeys(
        (item.one, item.two)
        for item in measurements
        if item.state == "missing" and item.one in answered and item.two in answered
    )
    return [pair for pair in gaps if pair not in again and not bad & set(pair)]
