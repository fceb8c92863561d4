"""Attribute low results to boundaries, links and nodes; pure.

What explains most comes first: boundaries with healthy nodes on both sides, links that stay low between good nodes,
then nodes, the worst first. What one cause explains does not count against any other.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from .explanation import Boundary, Explanation, Link, Measurement
from .statistics import HARD, middle
from .topology import LEVELS, Topology


def attribute(explanation: Explanation, topology: Topology) -> None:
    """Fill in boundaries, links, implicated, cleared and good nodes of the explanation."""
    for level in LEVELS:
        _boundaries(explanation, topology, level)
    _bad_links(explanation)
    _outlying_pairs(explanation)
    _nodes(explanation)
    _open_links(explanation)


def _boundaries(explanation: Explanation, topology: Topology, level: str) -> None:
    groups = topology.groups(level, explanation.nodes)
    if len(groups) < 2:
        return
    group_of = {node: name for name, nodes in groups.items() for node in nodes}
    grouped = (item for item in explanation.unexplained() if item.one in group_of and item.two in group_of)
    crossing = [item for item in grouped if group_of[item.one] != group_of[item.two]]
    if sum(item.is_low for item in crossing) < explanation.tuning.several:
        return
    around: dict[str, list[Measurement]] = defaultdict(list)
    between: dict[Link, list[Measurement]] = defaultdict(list)
    for item in crossing:
        first, two = sorted((group_of[item.one], group_of[item.two]))
        between[first, two].append(item)
        around[first].append(item)
        around[two].append(item)
    if len(groups) > 2:
        for name, items in around.items():
            _add_boundary(explanation, Boundary(level, (name,), "around"), items, group_of)
    for names, items in between.items():
        unexplained = [item for item in items if item not in explanation.explained]
        _add_boundary(explanation, Boundary(level, names, "between"), unexplained, group_of)


def _add_boundary(
    explanation: Explanation, boundary: Boundary, items: list[Measurement], group_of: Mapping[str, str]
) -> None:
    """Add the boundary if nodes that are fine elsewhere are low across it."""
    tuning, across = explanation.tuning, set(items)
    lows = [item for item in items if item.is_low]
    if len(lows) < tuning.several:
        return
    fine = set()
    for node in {node for item in items for node in item.pair}:
        elsewhere = [item.is_right for item in explanation.by_node[node] if item not in across]
        if any(elsewhere) and 2 * sum(elsewhere) >= len(elsewhere):
            fine.add(node)
    # Both sides have to be fine: with one alone, the partner may be the bad node.
    clear = [item for item in items if fine.issuperset(item.pair)]
    low = [item for item in clear if item.is_low]
    if len(low) < tuning.several or len(low) < tuning.share * len(clear):
        return
    is_inside = {node: group_of[node] == boundary.names[0] for item in low for node in item.pair}
    if 2 <= sum(is_inside.values()) <= len(is_inside) - 2:
        explanation.boundaries[boundary] = items
        explanation.explained.update(lows)


def _bad_links(explanation: Explanation) -> None:
    """Links that were measured again because they were low, and are low each time, between nodes that are fine."""
    tuning, margin, noise = explanation.tuning, explanation.setting.margin, explanation.noise
    repeats: dict[Link, list[float]] = defaultdict(list)
    for item in explanation.unexplained():
        if item.purpose == "link":
            repeats[item.pair].append(item.relative)
    for pair, values in repeats.items():
        soft = sorted(value for value in values if value > HARD)
        of_pair = [item for item in explanation.by_node[pair[0]] if item.pair == pair]
        if len(soft) == len(values) > tuning.partners:
            again = soft[1:]  # one result may be slow by chance, however slow
            level, distant = statistics.median(again), explanation.count - len(of_pair)
            is_low = level < -margin and noise.score(again, distant) <= -noise.bar(tuning.score)
        else:
            level, is_low = HARD, not soft and len(values) >= tuning.several
        if not is_low:
            continue
        each_time = all(item.relative <= level / (tuning.link_times / 2) for item in of_pair)
        # With other partners: a slow node may look like a slow link by chance.
        aside = explanation.explained.union(of_pair)
        elsewhere = ([item.relative for item in explanation.by_node[node] if item not in aside] for node in pair)
        if all(
            _are_right(own, margin, level) or (each_time and _are_far_above(explanation, own, level))
            for own in elsewhere
        ):
            explanation.bad_links[pair] = of_pair
            explanation.explained.update(of_pair)


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
        and min(values) > level / (tuning.link_times / 2)
        and statistics.fmean(values) > level / tuning.link_times
    )


def _outlying_pairs(explanation: Explanation) -> None:
    """Pairs far lower than both nodes together explain: noise elsewhere must not turn such a link into a bad node.

    A node that is also low, or fails, with another partner may be slow with some partners only, or intermittent.
    """
    least, partners = explanation.tuning.gross, explanation.tuning.partners
    of_pair: dict[Link, list[Measurement]] = defaultdict(list)
    for item in explanation.unexplained():
        of_pair[item.pair].append(item)
    of_node: dict[str, dict[Link, float]] = defaultdict(dict)
    for pair, items in of_pair.items():
        for node in pair:
            of_node[node][pair] = statistics.fmean(item.relative for item in items)
    failing = Counter(
        node for pair, items in of_pair.items() if any(item.has_failed for item in items) for node in pair
    )
    outliers: list[Link] = []
    for pair, items in of_pair.items():
        highest, has_failed = max(item.relative for item in items), any(item.has_failed for item in items)
        if highest >= -least or any(failing[node] > has_failed for node in pair):
            continue
        partner_means = [[value for other, value in of_node[node].items() if other != pair] for node in pair]
        if all(len(means) >= partners for means in partner_means):
            explained = sum(min(0.0, middle(means)) for means in partner_means)
            if highest - explained < -least:
                outliers.append(pair)
    count = Counter(node for pair in outliers for node in pair)
    for pair in outliers:
        if all(count[node] == 1 for node in pair):
            explanation.outliers.update(of_pair[pair])


def _nodes(explanation: Explanation) -> None:
    """Implicate the worst node first, until no node is worse than its partners explain."""
    aside = explanation.explained | explanation.outliers
    live = {node: [item for item in items if item not in aside] for node, items in explanation.by_node.items()}
    candidates = {node: badness for node in live if (badness := _badness(explanation, node, live[node]))}
    while candidates:
        node = max(candidates, key=candidates.__getitem__)
        explanation.implicated.append(node)
        del candidates[node]
        for item in live[node]:
            if not item.is_low:
                continue
            partner = item.other(node)
            explanation.explained.add(item)
            live[partner].remove(item)
            if partner in candidates:
                badness = _badness(explanation, partner, live[partner])
                if badness:
                    candidates[partner] = badness
                else:
                    del candidates[partner]
    right = {node: sum(item.is_right for item in items) for node, items in live.items()}
    needed = explanation.tuning.partners
    explanation.good = {node for node in live if right[node] >= needed} - set(explanation.implicated)


def _badness(explanation: Explanation, node: str, items: Sequence[Measurement]) -> tuple[float, ...] | None:
    """None for a node that is not implicated, else a sort key: share of partners that saw it low, then how low."""
    if not any(item.is_low for item in items):
        return None
    if _is_cleared(explanation, node, items):
        explanation.cleared.add(node)
        return None
    partners: dict[str, list[float]] = defaultdict(list)
    for item in items:
        partners[item.other(node)].append(item.relative)
    is_named = any(item.has_failed and node in item.culprits for item in items)
    margin = explanation.setting.margin
    values = [statistics.fmean(given) for given in partners.values()]
    failing = sum(min(given) == HARD for given in partners.values())
    where = middle(values)
    if where >= -margin and failing < explanation.tuning.partners:
        return None
    share = sum(value < -margin for value in values) / len(values)
    return share, float(is_named), float(len(values)), -where


def _is_cleared(explanation: Explanation, node: str, items: Sequence[Measurement]) -> bool:
    """Whether the fresh results alone show that the node is not slow: surely, or after all tests by their mean.

    This covers chance in figures only: a node that failed is never cleared.
    """
    tuning, margin = explanation.tuning, explanation.setting.margin
    fresh = [item.relative for item in items if item.is_test_of(node)]
    needed = tuning.partners + 1 if len(explanation.nodes) > tuning.small_gang else tuning.tests
    if len(fresh) < needed or any(item.has_failed for item in items):
        return False
    if len(fresh) >= tuning.tests:
        return statistics.fmean(fresh) >= -margin
    elsewhere = explanation.count - len(explanation.by_node[node])
    least = explanation.setting.surely_slow + tuning.sure_score * explanation.noise.error(len(fresh), elsewhere)
    return statistics.fmean(fresh) >= max(-margin, least)


def _open_links(explanation: Explanation) -> None:
    """Pairs that are low although both nodes are fine: a bad link, chance, or an intermittent node."""
    tuning, margin = explanation.tuning, explanation.setting.margin
    bound = max(margin, tuning.link_deviations * explanation.sigma)
    bounds = {"link": margin, "control": 2 * bound}
    by_pair: dict[Link, list[Measurement]] = defaultdict(list)
    tested: dict[Link, list[float]] = defaultdict(list)
    for item in explanation.unexplained():
        if item not in explanation.outliers and not set(item.pair).isdisjoint(explanation.implicated):
            continue
        if item.purpose == "link":
            tested[item.pair].append(item.relative)
        if item.relative < -bounds.get(item.purpose, bound):
            by_pair[item.pair].append(item)
    for pair, low in by_pair.items():
        fresh = tested.get(pair)
        if any(item.has_failed for item in low) or not fresh or statistics.fmean(fresh) < -margin:
            explanation.open_links[pair] = low
