"""Where each node stands by what was measured so far, and what must be measured before more can be said; pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.text import some_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.explain import (
    ACROSS_FRESH,
    CONFIRMED,
    NODE_TESTS,
    SEEN_FAILING,
    SURE_DEVIATIONS,
    VOUCHED,
    Boundary,
    Measure,
    Picture,
    most_tests,
    surely_slow,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.statistics import HARD, NOISY, percent

HEALTHY, BAD, SUSPECT, UNTESTED = "healthy", "bad", "suspect", "untested"
#: A link, a missing result, a node that does not answer is not asked for more tests than these.
LINK_TESTS, REPEATS = 6, 2
#: Deviations beyond which the mean of a node is no chance: of one of three, so much more for each twofold number of
#: nodes, and at most; of its fresh results alone, and of those without its worst partner.
NODE_SCORE, SCORE_PER_TWOFOLD, MOST_SCORE, PART_SCORE = 3.5, 0.9, 5.5, 3.0
#: Who is slower by less than so many margins is bad only when the noise is known from so many results, or when the
#: node had all its tests.
FAR_MARGINS, KNOWN = 4.0, 20
#: A result lies at most so many deviations below the node's median when a mean is taken.
OUTLYING = 2.0
#: A boundary is looked for among all of them.
BOUNDARY_SCORE = 5.5
#: A node that has so many results is not asked for more because of the noise.
PLENTY = 12

#: Of the words that failed results came with so many are told, each so long.
MOST_MESSAGES, MESSAGE_CHARACTERS = 2, 160

Link = tuple[str, str]


@dataclass
class Standing:
    """Class of a node with its reason. `open`: another test with a good partner may settle it."""

    name: str
    reason: str = ""
    open: bool = False


@dataclass
class Standings:
    """Of all nodes, of boundaries (bad, or suspect), and what is missing."""

    nodes: dict[str, Standing]
    boundaries: dict[Boundary, Standing]
    missing: list[Link] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    #: Nodes that are not looked at and have too few right results to be called healthy.
    unvouched: list[str] = field(default_factory=list)
    #: Healthy nodes that may yet be slow as far as noise goes, those with the fewest results first.
    unsure: list[str] = field(default_factory=list)


def stand(nodes: Sequence[str], picture: Picture, all_measures: Sequence[Measure], margin: float) -> Standings:
    """`all_measures` are those of the picture, results that are missing among them."""
    answered = {node for node in nodes if picture.of_node[node]}
    found = Standings({}, {boundary: _boundary(picture, boundary, margin) for boundary in picture.boundaries})
    majority = 2 * len(picture.good) >= len(answered)
    for node in picture.accused:
        found.nodes[node] = _accused(picture, node, margin, majority)
    bad = {node for node, standing in found.nodes.items() if standing.name == BAD}
    found.silent = [node for node in nodes if node not in answered]
    ran = {node for item in all_measures for node in (item.one, item.two)}
    found.missing = _missing(all_measures, answered, bad)
    gaps: dict[str, list[str]] = {}
    for one, two in found.missing:
        gaps.setdefault(one, []).append(two)
        gaps.setdefault(two, []).append(one)
    failed: dict[str, list[str]] = {}
    for (one, two), low in picture.open_links.items():
        if any(picture.relative[index] == HARD for index in low):
            failed.setdefault(one, []).append(two)
            failed.setdefault(two, []).append(one)
    for node in nodes:
        if node not in found.nodes:
            found.nodes[node] = _other(picture, node, answered, gaps, failed, bad, margin)
            right = sum(picture.is_right(index, margin) for index in picture.of_node[node])
            if node in answered and right < VOUCHED:
                found.unvouched.append(node)
    for node in set(found.silent) - ran:
        found.nodes[node].reason = "it was in no group that ran before the search ended"
    for node, said in _words(all_measures, [n for n in nodes if found.nodes[n].name == UNTESTED]).items():
        found.nodes[node].reason += f" ({said})"
    found.unsure = _unsure(picture, [node for node in nodes if found.nodes[node].name == HEALTHY], margin)
    return found


def _unsure(picture: Picture, healthy: Sequence[str], margin: float) -> list[str]:
    """Nodes that have few results for the noise that there is: a slow one may look as they do."""
    among = picture.among_good()
    whole = sum(among.values())
    found = {}
    for node in healthy:
        own = [among[index] for index in picture.of_node[node] if index in among]
        rest = len(among) - len(own)
        if not own or not rest or len(own) >= PLENTY or node in picture.cleared:
            continue
        lies = statistics.fmean(own) - (whole - sum(own)) / rest
        if lies - SURE_DEVIATIONS * picture.noise.error(len(own), rest) < surely_slow(margin):
            found[node] = len(own)
    return sorted(found, key=found.__getitem__)


def fresh_partners(picture: Picture, node: str) -> set[str]:
    """Partners of the tests that were made of this node."""
    return {
        picture.measures[index].other(node)
        for index in picture.of_node[node]
        if picture.measures[index].is_test_of(node)
    }


def told(picture: Picture, indices: Sequence[int], node: str) -> str:
    """Rounds, figures and partners of measurements, as a sentence's end."""
    soft = [picture.relative[index] for index in indices if (picture.relative[index] or 0.0) > HARD]
    states = sorted({picture.measures[index].state for index in indices if picture.relative[index] == HARD})
    rounds = some_of((number + 1 for number in sorted({picture.measures[index].round for index in indices})), 12)
    partners = some_of(dict.fromkeys(picture.measures[index].other(node) for index in indices))
    how = []
    if soft:
        how.append(f"{percent(statistics.median(value for value in soft if value is not None))} than good pairs")
    if states:
        how.append(" and ".join(states))
    messages = dict.fromkeys(picture.measures[index].message for index in indices if picture.relative[index] == HARD)
    said = "; ".join(_short(message) for message in [one for one in messages if one][:MOST_MESSAGES])
    return f"{', '.join(how)} with {partners} in round {rounds}" + (f" ({said})" if said else "")


def _short(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARACTERS else f"{message[: MESSAGE_CHARACTERS - 3]}..."


def _accused(picture: Picture, node: str, margin: float, majority: bool) -> Standing:
    crossing = [of for boundary, of in picture.boundaries.items() if boundary.scope != "apart"]
    elsewhere = {index for of in (*picture.links.values(), *crossing) for index in of} | picture.outstanding
    seen = [
        index
        for index in picture.of_node[node]
        if index not in elsewhere and picture.measures[index].other(node) in picture.good
    ]
    lows = [index for index in seen if picture.is_low(index, margin)]
    fresh = [index for index in seen if picture.measures[index].is_test_of(node)]
    more = len(fresh) < most_tests(picture)
    if not seen:
        own = [index for index in picture.of_node[node] if picture.is_low(index, margin)]
        return Standing(SUSPECT, f"{told(picture, own, node)}; no partner is known to be good", open=True)
    if not lows:
        return Standing(
            SUSPECT, f"right with good partners, but {told(picture, picture.of_node[node], node)}", open=more
        )
    reason = f"{told(picture, lows, node)}, known to be good"
    right = len(seen) - len(lows)
    failed = {picture.measures[index].other(node) for index in lows if picture.relative[index] == HARD}
    partners = {picture.measures[index].other(node) for index in lows}
    confirmed = [index for index in fresh if index in set(lows)]
    enough = len({picture.measures[index].other(node) for index in confirmed}) >= min(CONFIRMED, len(picture.good))
    if failed:
        if len(failed) >= CONFIRMED and not right and len(confirmed) >= CONFIRMED and enough:
            return Standing(BAD, reason)
        if right and len(failed) >= SEEN_FAILING and len(fresh) >= CONFIRMED:
            return Standing(BAD, f"{reason}; right {right} time(s): it comes and goes")
        tail = f"; right {right} time(s)" if right else "; not confirmed"
        return Standing(SUSPECT, reason + tail, open=more)
    certain = len(partners) >= CONFIRMED and enough and _is_slow(picture, node, seen, fresh, margin)
    if certain and not majority:
        return Standing(SUSPECT, f"{reason}; but so is most of the gang: compare with what the hardware should reach")
    if certain:
        return Standing(BAD, reason)
    tail = f"; right {right} time(s)" if right else "; not confirmed"
    noise = picture.noise
    if noise.sigma > NOISY * noise.expected:
        tail += f"; one measurement has a noise of {100 * noise.sigma:.2g} %, {100 * noise.expected:.2g} % is expected"
    return Standing(SUSPECT, reason + tail, open=more)


def _is_slow(picture: Picture, node: str, seen: Sequence[int], fresh: Sequence[int], margin: float) -> bool:
    """Whether all results, the fresh ones alone, and those without the worst partner are too slow for chance.

    The others count as well: of few good pairs nobody knows to a hair where they lie. Two results that were slow by
    chance, however slow, do not make a mean: what is far below the node's own median counts as not so far.
    """
    noise, (usual, among) = picture.noise, picture.usual()
    asked = min(MOST_SCORE, NODE_SCORE + SCORE_PER_TWOFOLD * math.log2(max(1.0, len(picture.of_node) / 3)))
    rest = _without_the_worst_partner(picture, node, seen)
    whole, new = ([picture.relative[index] or 0.0 for index in indices] for indices in (seen, fresh))
    if noise.known < KNOWN and len(fresh) < NODE_TESTS and statistics.median(whole) - usual > -FAR_MARGINS * margin:
        return False

    least = statistics.median(whole) - OUTLYING * noise.sigma

    def is_off(values: Sequence[float], deviations: float) -> bool:
        away = [max(value, least) - usual for value in values]
        return statistics.fmean(away) <= -margin and noise.score(away, among) <= -noise.bar(deviations)

    is_usually_low = statistics.median(rest) <= -margin
    return is_usually_low and is_off(whole, asked) and is_off(new, PART_SCORE) and is_off(rest, PART_SCORE)


def _without_the_worst_partner(picture: Picture, node: str, seen: Sequence[int]) -> list[float]:
    """One partner alone is no proof: the link to it may be bad. Two are left at least."""
    by_partner: dict[str, list[float]] = {}
    for index in seen:
        by_partner.setdefault(picture.measures[index].other(node), []).append(picture.relative[index] or 0.0)
    ranked = sorted(by_partner.values(), key=statistics.fmean)
    return [value for values in (ranked[1:] if len(ranked) > CONFIRMED else ranked) for value in values]


def _other(
    picture: Picture,
    node: str,
    answered: set[str],
    gaps: Mapping[str, list[str]],
    failed: Mapping[str, list[str]],
    bad: set[str],
    margin: float,
) -> Standing:
    if node not in answered:
        return Standing(UNTESTED, "no result came of any group that it was in: a node that is silent proves nothing")
    if node in failed:
        return Standing(SUSPECT, f"failed with {some_of(failed[node])}: either may be it, or the link")
    if node in gaps:
        return Standing(UNTESTED, f"the result with {some_of(gaps[node])} is missing")
    if node in picture.good:
        return Standing(HEALTHY)
    lows = [index for index in picture.of_node[node] if picture.is_low(index, margin)]
    right = sum(picture.is_right(index, margin) for index in picture.of_node[node])
    unclear = [index for index in lows if picture.measures[index].other(node) not in bad]
    if unclear and not right:
        return Standing(SUSPECT, f"{told(picture, unclear, node)}: which of them is not told", open=True)
    return Standing(UNTESTED, f"too few right results that nothing else explains: {right}, {VOUCHED} are needed")


def _boundary(picture: Picture, boundary: Boundary, margin: float) -> Standing:
    indices = picture.boundaries[boundary]
    values = [picture.relative[index] or 0.0 for index in indices]
    soft = [value for value in values if value > HARD]
    rounds = some_of((number + 1 for number in sorted({picture.measures[index].round for index in indices})), 12)
    how = f"{percent(statistics.median(soft))} than good pairs" if soft else "fail"
    reason = f"{len(indices)} pairs across it: {how}, in round {rounds}; both sides are fine in themselves"
    if boundary.scope == "apart":
        return Standing(SUSPECT, f"{reason}; by design, or what joins them")
    fresh = [index for index in indices if picture.measures[index].purpose == "boundary"]
    low = [index for index in fresh if picture.is_low(index, margin)]
    seen = [picture.relative[index] or 0.0 for index in fresh]
    rounds_of = {picture.measures[index].round for index in fresh}
    needed = min(ACROSS_FRESH, len(indices) // 2)
    enough = len(rounds_of) >= CONFIRMED and len(low) >= needed
    if enough and picture.noise.score(seen, picture.usual()[1]) <= -picture.noise.bar(BOUNDARY_SCORE):
        return Standing(BAD, reason)
    return Standing(SUSPECT, f"{reason}; not confirmed", open=len(rounds_of) < LINK_TESTS)


def _words(measures: Sequence[Measure], nodes: Sequence[str]) -> dict[str, str]:
    """By node why results with it are missing, as far as they say it."""
    said: dict[str, dict[str, None]] = {node: {} for node in nodes}
    for item in measures:
        for node in (item.one, item.two) if item.state == "missing" and item.message else ():
            if node in said:
                said[node][_short(item.message)] = None
    return {node: "; ".join(list(words)[:MOST_MESSAGES]) for node, words in said.items() if words}


def _missing(measures: Sequence[Measure], answered: set[str], bad: set[str]) -> list[Link]:
    """Pairs without a result, but for those that a node explains that is bad or never answered, or that came later.

    Only a group that was run for this very reason makes up for a missing result.
    """
    again = {(item.one, item.two) for item in measures if item.purpose == "repeat" and item.state != "missing"}
    gaps = [
        (item.one, item.two)
        for item in measures
        if item.state == "missing" and item.one in answered and item.two in answered
    ]
    return [pair for pair in dict.fromkeys(gaps) if pair not in again and not bad & set(pair)]
