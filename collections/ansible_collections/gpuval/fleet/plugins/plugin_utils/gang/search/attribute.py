"""Attribute low results to boundaries, links and nodes; pure.

What explains most comes first: boundaries with healthy nodes on both sides, links that stay low between good nodes,
then nodes, the worst first. What one cause explains does not count against any other.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from .explanation import Boundary, Explanation, Link, Measurement
from .statistics import HARD, middle
from .topology import LEVELS, Topology


def attribute(explanation: Explanation, nodes: Sequence[str], topology: Topology) -> None:
    """Fill in boundaries, links, implicated, cleared and good nodes of the explanation."""
    for level in LEVELS:
        _boundaries(explanation, nodes, topology, level)
    _bad_links(explanation)
    _outlying_pairs(explanation)
    _nodes(explanation, nodes)
    _open_links(explanation)


def _boundaries(explanation: Explanation, nodes: Sequence[str], topology: Topology, level: str) -> None:
    groups = topology.groups(level, nodes)
    if len(groups) < 2:
        return
    place = {node: topology.place(node, level) for node in nodes}
    crossing = [
        index
        for index, item in enumerate(explanation.measurements)
        if explanation.relative[index] is not None and index not in explanation.explained and _differ(place, item)
    ]
    if sum(map(explanation.is_low, crossing)) < explanation.tuning.boundary_results:
        return
    around: dict[str, list[int]] = {}
    between: dict[Link, list[int]] = {}
    for index in crossing:
        item = explanation.measurements[index]
        one, two = sorted((place[item.one], place[item.two]))
        between.setdefault((one, two), []).append(index)
        around.setdefault(one, []).append(index)
        around.setdefault(two, []).append(index)
    if len(groups) > 2:
        for name, indices in around.items():
            _add_boundary(explanation, Boundary(level, (name,), "around"), indices, place)
    for names, indices in between.items():
        rest = [index for index in indices if index not in explanation.explained]
        _add_boundary(explanation, Boundary(level, names, "between"), rest, place)


def _differ(place: Mapping[str, str], item: Measurement) -> bool:
    one, two = place[item.one], place[item.two]
    return bool(one) and bool(two) and one != two


def _add_boundary(
    explanation: Explanation, boundary: Boundary, indices: Sequence[int], place: Mapping[str, str]
) -> None:
    """Add the boundary if nodes that are fine elsewhere are low across it."""
    tuning = explanation.tuning
    lows = [index for index in indices if explanation.is_low(index)]
    if len(lows) < tuning.boundary_results:
        return
    across = set(indices)
    fine: dict[str, bool] = {}

    def is_fine(node: str) -> bool:
        if node not in fine:
            elsewhere = [index for index in explanation.by_node[node] if index not in across]
            right = sum(map(explanation.is_right, elsewhere))
            fine[node] = right > 0 and 2 * right >= len(elsewhere)
        return fine[node]

    # Both sides have to be fine: with one alone, the partner may be the bad node.
    clear = [
        index
        for index in indices
        if is_fine(explanation.measurements[index].one) and is_fine(explanation.measurements[index].two)
    ]
    low = [index for index in clear if explanation.is_low(index)]
    if len(low) < tuning.boundary_results or len(low) < tuning.boundary_share * len(clear):
        return
    sides: tuple[set[str], set[str]] = (set(), set())
    for index in low:
        for node in (explanation.measurements[index].one, explanation.measurements[index].two):
            sides[place[node] == boundary.names[0]].add(node)
    if min(map(len, sides)) < 2:
        return
    explanation.boundaries[boundary] = list(indices)
    explanation.explained.update(lows)


def _bad_links(explanation: Explanation) -> None:
    """Links that were measured again because they were low, and are low each time, between nodes that are fine."""
    tuning, margin, noise = explanation.tuning, explanation.setting.margin, explanation.noise
    repeats: dict[Link, list[int]] = {}
    for index, item in enumerate(explanation.measurements):
        if item.purpose == "link" and explanation.relative[index] is not None and index not in explanation.explained:
            repeats.setdefault((item.one, item.two), []).append(index)
    for pair, fresh in repeats.items():
        values = [explanation.relative[index] or 0.0 for index in fresh]
        soft = sorted(value for value in values if value > HARD)
        whole = [index for index in explanation.by_node[pair[0]] if explanation.partner(index, pair[0]) == pair[1]]
        if len(soft) == len(values) > tuning.partners:
            rest = soft[1:]  # one result may be slow by chance, however slow
            level, others = statistics.median(rest), len(explanation.measurements) - len(whole)
            is_low = level < -margin and noise.score(rest, others) <= -noise.bar(tuning.link_score)
        else:
            level, is_low = HARD, not soft and len(values) >= tuning.link_failures
        if not is_low:
            continue
        each_time = all((explanation.relative[index] or 0.0) <= level / tuning.worst_times for index in whole)
        elsewhere = [_elsewhere(explanation, node, pair) for node in pair]
        if all(
            _are_right(own, margin, level) or (each_time and _are_far_above(explanation, own, level))
            for own in elsewhere
        ):
            explanation.bad_links[pair] = whole
            explanation.explained.update(whole)


def _elsewhere(explanation: Explanation, node: str, pair: Link) -> list[float]:
    """The node's unexplained results with other partners: a slow node may look like a slow link by chance."""
    return [
        value
        for index in explanation.by_node[node]
        if index not in explanation.explained
        and pair != (explanation.measurements[index].one, explanation.measurements[index].two)
        and (value := explanation.relative[index]) is not None
    ]


def _are_right(values: Sequence[float], margin: float, level: float) -> bool:
    """Whether most of a node's other results are right, and their mean too, unless the pair fails."""
    right = sum(value >= -margin for value in values)
    soft = [value for value in values if value > HARD]
    return 2 * right > len(values) and (level == HARD or statistics.fmean(soft) > -margin / 2)


def _are_far_above(explanation: Explanation, values: Sequence[float], level: float) -> bool:
    """Whether a pair is so much lower than its node's other results that it is the link, however noisy."""
    tuning = explanation.tuning
    level = -tuning.gross * tuning.link_times if level == HARD else level
    return (
        bool(values)
        and min(values) > level / tuning.worst_times
        and statistics.fmean(values) > level / tuning.link_times
    )


def _outlying_pairs(explanation: Explanation) -> None:
    """Pairs far lower than both nodes together explain: noise elsewhere must not turn such a link into a bad node.

    A node that is also low, or fails, with another partner may be slow with some partners only, or intermittent.
    """
    least, partners = explanation.tuning.gross, explanation.tuning.partners
    of_pair: dict[Link, dict[int, float]] = {}
    for index, (item, value) in enumerate(zip(explanation.measurements, explanation.relative)):
        if value is not None and index not in explanation.explained:
            of_pair.setdefault((item.one, item.two), {})[index] = value
    of_node: dict[str, dict[Link, float]] = {}
    failing: Counter[str] = Counter()
    for pair, values in of_pair.items():
        for node in pair:
            of_node.setdefault(node, {})[pair] = statistics.fmean(values.values())
            failing[node] += HARD in values.values()
    found: list[Link] = []
    for pair, values in of_pair.items():
        highest, has_failed = max(values.values()), HARD in values.values()
        if highest >= -least or any(failing[node] > has_failed for node in pair):
            continue
        others = [[value for other, value in of_node[node].items() if other != pair] for node in pair]
        if all(len(means) >= partners for means in others):
            explained = sum(min(0.0, middle(means)) for means in others)
            if highest - explained < -least:
                found.append(pair)
    count = Counter(node for pair in found for node in pair)
    for pair in found:
        if all(count[node] == 1 for node in pair):
            explanation.outliers.update(of_pair[pair])


def _nodes(explanation: Explanation, nodes: Sequence[str]) -> None:
    """Implicate the worst node first, until no node is worse than its partners explain."""
    aside = explanation.explained | explanation.outliers
    live = {node: [index for index in explanation.by_node[node] if index not in aside] for node in nodes}
    candidates = {node: badness for node in nodes if (badness := _badness(explanation, node, live[node]))}
    while candidates:
        node = max(candidates, key=candidates.__getitem__)
        explanation.implicated.append(node)
        del candidates[node]
        for index in filter(explanation.is_low, live[node]):
            partner = explanation.partner(index, node)
            explanation.explained.add(index)
            live[partner] = [one for one in live[partner] if one != index]
            if partner in candidates:
                badness = _badness(explanation, partner, live[partner])
                if badness:
                    candidates[partner] = badness
                else:
                    del candidates[partner]
    implicated, needed = set(explanation.implicated), explanation.tuning.right_results
    explanation.good = {
        node for node in nodes if node not in implicated and sum(map(explanation.is_right, live[node])) >= needed
    }


def _badness(explanation: Explanation, node: str, indices: Sequence[int]) -> tuple[float, ...] | None:
    """None for a node that is not implicated, else a sort key: share of partners that saw it low, then how low."""
    if not any(map(explanation.is_low, indices)):
        return None
    if _is_cleared(explanation, node, indices):
        explanation.cleared.add(node)
        return None
    partners: dict[str, list[float]] = {}
    is_named = False
    for index in indices:
        item, value = explanation.measurements[index], explanation.relative[index]
        if value is not None:
            partners.setdefault(item.other(node), []).append(value)
            is_named = is_named or (value == HARD and node in item.culprits)
    if not partners:
        return None
    margin = explanation.setting.margin
    values = [statistics.fmean(given) for given in partners.values()]
    failing = sum(min(given) == HARD for given in partners.values())
    where = middle(values)
    if where >= -margin and failing < explanation.tuning.partners:
        return None
    share = sum(value < -margin for value in values) / len(values)
    return share, float(is_named), float(len(values)), -where


def _is_cleared(explanation: Explanation, node: str, indices: Sequence[int]) -> bool:
    """Whether the fresh results alone show that the node is not slow: surely, or after all tests by their mean.

    This covers chance in figures only: a node that failed is never cleared.
    """
    tuning, margin = explanation.tuning, explanation.setting.margin
    fresh = [
        value
        for index in indices
        if explanation.measurements[index].is_test_of(node) and (value := explanation.relative[index]) is not None
    ]
    needed = tuning.partners + 1 if len(explanation.by_node) > tuning.small_gang else tuning.node_tests
    if len(fresh) < needed or any(map(explanation.is_failure, indices)):
        return False
    if len(fresh) >= tuning.node_tests:
        return statistics.fmean(fresh) >= -margin
    others = len(explanation.measurements) - len(explanation.by_node[node])
    least = explanation.setting.surely_slow + tuning.sure_score * explanation.noise.error(len(fresh), others)
    return statistics.fmean(fresh) >= max(-margin, least)


def _open_links(explanation: Explanation) -> None:
    """Pairs that are low although both nodes are fine: a bad link, chance, or an intermittent node."""
    tuning, margin = explanation.tuning, explanation.setting.margin
    many = len(explanation.measurements) >= tuning.many_measurements
    noisier = max(0.0, explanation.sigma / explanation.noise.expected - 1) if many else 0.0
    deviations = min(tuning.max_link_deviations, tuning.link_deviations + tuning.link_noise_deviations * noisier)
    bound = max(margin, deviations * explanation.sigma)
    bounds = {"pair": bound, "link": margin, "control": 2 * bound, "vouch": 2 * bound if many else bound}
    implicated = set(explanation.implicated)
    found: dict[Link, list[int]] = {}
    tested: dict[Link, list[float]] = {}
    for index, item in enumerate(explanation.measurements):
        value = explanation.relative[index]
        is_of_node = (item.one in implicated or item.two in implicated) and index not in explanation.outliers
        if value is None or index in explanation.explained or is_of_node:
            continue
        if item.purpose == "link":
            tested.setdefault((item.one, item.two), []).append(value)
        if value < -bounds.get(item.purpose, bound):
            found.setdefault((item.one, item.two), []).append(index)
    for pair, low in found.items():
        fresh = tested.get(pair)
        if any(map(explanation.is_failure, low)) or not fresh or statistics.fmean(fresh) < -margin:
            explanation.open_links[pair] = low
