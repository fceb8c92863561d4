"""What comparing nodes finds, and fails wrongly, in fleets that are not one normal population.

    python benchmarks/detection/populations.py --fleets 20

Three tables: healthy fleets with long tails or with GPUs that differ, fleets with a slow batch of 5 to 50 %, and fleets
of 1 to 7 nodes. The nodes are those of fleets.py, H200; the product's own judge decides, by the shipped criteria that
compare nodes or parts, since fixed floors know nothing of populations.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT)]

import fleets
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria, verdict

#: Name, and how the fleet is drawn.
HEALTHY = (
    ("normal, CV 0.5 %", {"node_cv": 0.005}),
    ("normal, CV 1.5 %", {"node_cv": 0.015}),
    ("normal, CV 0.5 %, GPUs 1.5 %", {"node_cv": 0.005, "gpu_cv": 0.015}),
    ("nodes t3, scale 0.5 %", {"node_cv": 0.005, "tails": 3}),
    ("nodes t3, scale 1 %", {"node_cv": 0.01, "tails": 3}),
    ("nodes and GPUs t3, scale 0.5 %", {"node_cv": 0.005, "gpu_cv": 0.005, "tails": 3}),
    ("measurements t3, scale 0.5 %; nodes normal, CV 0.5 %", {"node_cv": 0.005, "disturbed": 0.005}),
)
#: A node that is really this much slower is no healthy one: the margin of the comparisons.
MARGIN = 0.03
SHARES = (0.05, 0.1, 0.25, 0.37, 0.5)
FEW = (("slow GPU", 0.05), ("slow link", 0.05), ("slow link", 0.1), ("slow node", 0.05))
SLOW = 0.05


def judged(fleet: fleets.Fleet, checks: criteria.Criteria) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """The nodes of the report by name, and the entries of the fleet."""
    report = verdict.judge(fleet.run, fleet.evidence, checks, judged_at="2026-11-02T10:00:00Z")
    return {node["name"]: node for node in report["nodes"]}, report["fleet"]["checks"]


def named(node: Mapping[str, Any], part: str | None, *verdicts: str) -> bool:
    """Whether an entry of these verdicts names the part; None is the node as a whole."""
    return any(one["part"] == (part or "node") for one in node["checks"] if one["verdict"] in verdicts)


def healthy(options: argparse.Namespace, checks: criteria.Criteria) -> Iterator[str]:
    yield "| healthy fleets | nodes | failed or incomplete | of these within 3 % | warned |\n|---|---|---|---|---|"
    for title, fields in HEALTHY:
        if options.only not in title:
            continue
        for size in options.nodes:
            count: Counter[str] = Counter()
            for seed in range(max(1, options.fleets * 16 // size)):
                fleet = fleets.drawn(
                    size, repeat=options.noise, seed=seed, each=0, planted={}, skus=("h200",), **fields
                )
                for name, node in judged(fleet, checks)[0].items():
                    warned = any(one["verdict"] == "warn" for one in node["checks"])
                    failed = node["verdict"] != "PASS"
                    wrong = failed and fleet.speeds[name] > 1 - MARGIN
                    count.update(nodes=1, failed=failed, wrong=wrong, warned=warned)
            rates = " | ".join(_share(count, what) for what in ("failed", "wrong", "warned"))
            yield f"| {title}, fleets of {size} | {count['nodes']} | {rates} |"


def shares(options: argparse.Namespace, checks: criteria.Criteria) -> Iterator[str]:
    yield "| slow nodes | of nodes | failed or incomplete | the node named | other nodes failed | batch named |"
    yield "|---|---|---|---|---|---|"
    for size in options.nodes:
        for share in SHARES:
            hit = round(share * size)
            if not hit:
                continue
            count: Counter[str] = Counter()
            for seed in range(max(1, options.fleets * 16 // size)):
                planted = fleets.planted("slow node", SLOW, size, hit, seed)
                fleet = fleets.drawn(size, 0.005, options.noise, seed, each=0, planted=planted, skus=("h200",))
                for number, node in enumerate(fleet.run["nodes"].values()):
                    node["labels"] = {"batch": "b1" if number < hit else "b2", "power": f"p{number % 3}"}
                nodes, entries = judged(fleet, checks)
                count.update(fleets=1, listed=any("not one population" in one["reason"] and "batch b1" in one["reason"]
                                                for one in entries))  # fmt: skip
                for name, node in nodes.items():
                    if name not in planted:
                        count.update(others=1, wrong=node["verdict"] != "PASS")
                        continue
                    by_name = named(node, None, "fail", "warn", "missing")
                    count.update(nodes=1, failed=node["verdict"] != "PASS", named=by_name)
            yield (
                f"| {hit} of {size} | {count['nodes']} | {_share(count, 'failed')} | "
                f"{_share(count, 'named')} | {_share(count, 'wrong', 'others')} | {_share(count, 'listed', 'fleets')} |"
            )


def few(options: argparse.Namespace, checks: criteria.Criteria) -> Iterator[str]:
    yield "| defect on one node | fleets | named (warn or FAIL) | FAIL | other nodes failed | other nodes warned |"
    yield "|---|---|---|---|---|---|"
    for kind, effect in FEW:
        for size in range(1, 9):
            count: Counter[str] = Counter()
            for seed in range(4 * options.fleets):
                planted = fleets.planted(kind, effect, size, 1, seed)
                fleet = fleets.drawn(size, 0.005, options.noise, seed, each=0, planted=planted, skus=("h200",))
                for name, node in judged(fleet, checks)[0].items():
                    if name in planted:
                        part = planted[name].part
                        count.update(nodes=1, named=named(node, part, "fail", "warn"), failed=named(node, part, "fail"))
                    else:
                        warned = any(one["verdict"] == "warn" for one in node["checks"])
                        count.update(others=1, wrong=node["verdict"] != "PASS", warned=warned)
            rates = [_share(count, "named"), _share(count, "failed")]
            rates += [_share(count, what, "others") for what in ("wrong", "warned")]
            yield f"| {kind}, {effect:.0%}, {size} nodes | {count['nodes']} | {' | '.join(rates)} |"


def _share(count: Counter[str], what: str, of: str = "nodes") -> str:
    return f"{count[what] / count[of]:.2%}" if count[of] else "-"


def main() -> int:
    options = arguments()
    checks = criteria.load(criteria.shipped_files())
    comparing = criteria.Criteria([one for one in checks if one.kind == "outlier"])
    for name in options.tables:
        for line in {"healthy": healthy, "shares": shares, "few": few}[name](options, comparing):
            print(line, flush=True)
        print()
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def sizes(text: str) -> list[int]:
        return [int(one) for one in text.split(",")]

    parser.add_argument("--nodes", type=sizes, default=[8, 16, 32, 100], help="sizes of fleets (%(default)s)")
    parser.add_argument("--fleets", type=int, default=10, help="fleets of 16 nodes of each setting, or as many nodes")
    parser.add_argument("--noise", type=float, default=0.003, help="of repeats (%(default)s)")
    parser.add_argument("--only", default="", help="healthy fleets whose title has this text")
    tables = ["healthy", "shares", "few"]
    parser.add_argument("--tables", type=lambda text: text.split(","), default=tables, help="%(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
