"""Which good nodes to measure again beside doubtful ones (docs/design/statistics.md).

    python benchmarks/detection/good_peers.py --fleets 1000

Levels of 16 nodes by nine figures, of which nodes and measurements differ by 0.5 % each, with the product's own limits.
A node that is doubtful at first and well in the second measurement is healthy, or was slow once in four figures.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "collections"))

from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.peer_statistics import (
    NormalNoise,
    Tails,
)

NODES, FIGURES, SPREAD, MARGIN, DEVIATIONS = 16, 9, 0.005, 0.03, 4.5
SLOW_FIGURES = 4
#: From the deviations of a node's figures, what orders nodes: the first two are measured again.
RULES: Mapping[str, Callable[[Sequence[float], random.Random], float]] = {
    "furthest ahead": lambda deviations, _: -max(deviations),
    "nearest the median": lambda deviations, _: max(map(abs, deviations)),
    "at random": lambda _, draw: draw.random(),
}


def draw_fleet(
    draw: random.Random, rule: str, loss: float, *, tails: bool, count: Counter[str], errors: list[float]
) -> None:
    """One fleet; ``count``: results of nodes that were doubtful once."""

    def measured(node: Sequence[float]) -> list[float]:
        return [
            level + SPREAD * draw.gauss(0, 1) / (math.sqrt(draw.gammavariate(1.5, 2) / 3) if tails else 1)
            for level in node
        ]

    truth = [[draw.gauss(1, SPREAD) for _ in range(FIGURES)] for _ in range(NODES)]
    first = [measured(node) for node in truth]
    first[0] = [level - (loss if figure < SLOW_FIGURES else 0) for figure, level in enumerate(first[0])]
    second = [measured(node) for node in truth]
    columns, levels = [*zip(*first, strict=True)], Tails()
    for column in columns:
        levels.add([(str(node), level) for node, level in enumerate(column)], MARGIN, DEVIATIONS, 1)
    middles = [statistics.median(column) for column in columns]
    noises = [NormalNoise.of(column, MARGIN) for column in columns]
    spreads = [noise.relative_deviation for noise in noises]
    limits = [noise.doubtful_limit(0.0) for noise in noises]
    doubtful = {
        node: figures for node in range(NODES)
        if (figures := [at for at in range(FIGURES) if middles[at] - first[node][at] > limits[at]])
    }  # fmt: skip
    deviations = [
        [(level - middle) / spread for level, middle, spread in zip(node, middles, spreads, strict=True)]
        for node in first
    ]
    others = [node for node in range(NODES) if node not in doubtful]
    good = sorted(others, key=lambda node: RULES[rule](deviations[node], draw))[:2]
    for node in (*good, *doubtful):
        pairs = zip(first[node], second[node], spreads, strict=True)
        changes = (abs(now - then) / spread for then, now, spread in pairs)
        levels.changes[str(node)] = {str(at): change for at, change in enumerate(changes)}
    levels.far |= {str(node) for node in doubtful}
    for node, figures in doubtful.items():
        changed = levels.changes[str(node)]
        beyond = max(
            sum(changed[at] > most for most in levels.healthy_changes(str(node), at)[:2]) for at in map(str, figures)
        )
        if all(middles[at] - second[node][at] <= limits[at] for at in figures):
            count[("pass", "warned", "INCOMPLETE")[beyond]] += 1
    errors += [levels.error() * statistics.median(spreads) / SPREAD] if doubtful else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=1000)
    options = parser.parse_args()
    print("| measurements | node 0, once | measured again | doubtful once | pass / warned / INCOMPLETE, % | "
          "estimated error, of the true one |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    for tails, loss in ((True, 0.0), (False, 0.05), (False, 0.06)):
        for rule in RULES:
            draw = random.Random(f"{tails} {loss} {rule}")  # noqa: S311 - the same draws again, no secret
            count: Counter[str] = Counter()
            errors: list[float] = []
            for _ in range(options.fleets):
                draw_fleet(draw, rule, loss, tails=tails, count=count, errors=errors)
            total = max(1, count.total())
            shares = " / ".join(f"{100 * count[what] / total:.1f}" for what in ("pass", "warned", "INCOMPLETE"))
            what = f"-{100 * loss:g} % in {SLOW_FIGURES} figures" if loss else "healthy"
            kind, error = "t, 3 degrees" if tails else "normal", statistics.median(errors or [0.0])
            print(f"| {kind} | {what} | {rule} | {total} | {shares} | {error:.2f} |", flush=True)


if __name__ == "__main__":
    main()
