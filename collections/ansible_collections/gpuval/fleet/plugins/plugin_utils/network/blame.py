"""The node or link that explains failures between pairs of nodes. Pure.

A node that fails with most of its partners is one finding, not one for each partner; other findings are about links.
"""

from collections.abc import Mapping
from dataclasses import dataclass

#: A node is implicated if this share of its links failed, with two partners or more.
SHARE = 0.6
LEAST = 2

Pair = tuple[str, str]  # source and target


@dataclass(frozen=True)
class ImplicatedNode:
    """A node that explains failures: as target of pairs (`to`), as source (`from`), or as both. `bad` and `tried` count
    its failed and all its pairs."""

    node: str
    side: str
    bad: int
    tried: int


def blame(tried: Mapping[Pair, bool]) -> tuple[list[ImplicatedNode], list[Pair]]:
    """Return the nodes that explain failed pairs, worst first, and the failed pairs that no node explains. `tried`: by
    pair, whether it failed."""
    open_pairs = {pair for pair, bad in tried.items() if bad}
    live = dict(tried)
    implicated: list[ImplicatedNode] = []
    while open_pairs:
        candidates = _candidates(live, open_pairs)
        if not candidates:
            break
        _rank, worst = max(candidates, key=lambda item: item[0])  # of equal candidates the first by name
        implicated.append(worst)
        ends = {"from": (0,), "to": (1,), "both": (0, 1)}[worst.side]
        explained = {pair for pair in live if worst.node in [pair[end] for end in ends]}
        open_pairs -= explained
        live = {pair: bad for pair, bad in live.items() if pair not in explained}
    return implicated, sorted(open_pairs)


def both_ways(pairs: list[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Return the links whose pairs failed in both directions, each once, and the pairs that failed in one only."""
    linked = set(pairs)
    mutual = [(source, target) for source, target in pairs if source < target and (target, source) in linked]
    return mutual, [(source, target) for source, target in pairs if (target, source) not in linked]


def _candidates(live: Mapping[Pair, bool], open_pairs: set[Pair]) -> list[tuple[tuple[float, int], ImplicatedNode]]:
    into: dict[str, list[bool]] = {}
    out: dict[str, list[bool]] = {}
    for (source, target), bad in live.items():
        out.setdefault(source, []).append(bad)
        into.setdefault(target, []).append(bad)
    candidates = []
    for node in sorted({name for pair in open_pairs for name in pair}):
        sides = {"to": into.get(node, []), "from": out.get(node, [])}
        guilty = {
            side: tries for side, tries in sides.items() if sum(tries) >= LEAST and sum(tries) / len(tries) >= SHARE
        }
        if len(guilty) == 2:
            guilty = {"both": [*sides["to"], *sides["from"]]}
        for side, tries in guilty.items():
            count = sum(tries)
            candidates.append(((count / len(tries), count), ImplicatedNode(node, side, count, len(tries))))
    return candidates
