"""What the analysis finds of bad groups of nodes, and how often it names one in a fleet that has none.

    python benchmarks/detection/groups.py --fleets 200

Fleets of one SKU in racks of 8, four racks a row, with versions and power feeds at random; every node reports what
tests/unit/judge draws. A bad group has all its cores slower. Nothing is judged: the analysis alone is run.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT)]

import fleets
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.analysis.fleet import analyse

SETTINGS = ((0.005, 0.003), (0.005, 0.01), (0.015, 0.003), (0.015, 0.01))
EFFECTS = (0.02, 0.03, 0.05, 0.1)


def properties_of(nodes: int, seed: int) -> list[dict[str, str]]:
    """Where each node stands, and what it has; a driver on a fifth of the nodes, the rest by halves and thirds."""
    draw = random.Random(f"properties {nodes} {seed}")  # noqa: S311  (the same fleet again, no secret)
    return [
        {
            "rack": fleets.rack_of(number),
            "row": f"row-{number // (4 * fleets.RACK)}",
            "pdu": str(draw.randrange(3)),
            "driver": draw.choices(("580.159.04", "580.82.07"), (4, 1))[0],
            "vbios": draw.choice(("96.00.A5", "96.00.B3")),
            "bios": draw.choice(("2.4.1", "2.5.0", "2.5.2")),
            "kernel": draw.choice(("6.8.0-87", "6.8.0-90")),
        }
        for number in range(nodes)
    ]


def report_nodes(fleet: fleets.Fleet) -> list[dict]:
    """The nodes of a report, as far as the analysis looks at them."""
    return [
        {
            "name": name,
            "accelerator": "nvidia",
            "catalogue_sku": "h200",
            "identity": {},
            "stages": [{"name": stage, "state": "success", "workload": stage} for stage in stages],
            "metrics": {stage: record["metrics"] for stage, record in stages.items()},
        }
        for name, stages in fleet.evidence.records.items()
    ]


def one(nodes: int, setting: tuple[float, float], seed: int, bad: tuple[str, str] | None, effect: float) -> set:
    """The groups that are named."""
    properties = properties_of(nodes, seed)
    slow = [f"node-{at:04}" for at, its in enumerate(properties) if bad and its[bad[0]] == bad[1]]
    planted = {name: fleets.Defect("slow node", effect) for name in slow}
    fleet = fleets.drawn(nodes, *setting, seed, each=0, planted=planted, skus=("h200",))
    analysis = analyse(report_nodes(fleet), properties)
    return {(found["by"], found["value"]) for found in analysis["findings"]}


def upper(count: int, total: int) -> float:
    """The upper end of the 95 % interval of a share (Wilson)."""
    z, share = 1.96, count / total
    root = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return (share + z * z / (2 * total) + root) / (1 + z * z / total)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100, help="size of a fleet (%(default)s)")
    parser.add_argument("--fleets", type=int, default=200, help="clean fleets of each setting (%(default)s)")
    parser.add_argument("--bad", type=int, default=20, help="fleets for each bad group and effect (%(default)s)")
    options = parser.parse_args()
    groups = (("rack", "r005"), ("driver", "580.82.07"))
    head = [f"{by} {effect:.0%}" for by, _ in groups for effect in EFFECTS]
    print(f"| node CV, repeats | clean fleets with a finding | {' | '.join(head)} | others named | s |")
    print("|---" * (len(head) + 4) + "|", flush=True)
    for setting in SETTINGS:
        begin, wrong = time.monotonic(), 0
        for seed in range(options.fleets):
            wrong += bool(one(options.nodes, setting, seed, None, 0))
        cells, others = [], Counter()
        for group in groups:
            for effect in EFFECTS:
                at = 10_000 + 100 * len(cells)  # other fleets for each
                found = [one(options.nodes, setting, at + seed, group, effect) for seed in range(options.bad)]
                cells.append(f"{sum(group in named for named in found)} of {options.bad}")
                others.update(name for named in found for name in named - {group})
        clean = f"{wrong} of {options.fleets} (at most {upper(wrong, options.fleets):.1%})"
        title = f"{setting[0]:.1%}, {setting[1]:.1%}"
        print(
            f"| {title} | {clean} | {' | '.join(cells)} | {others.total()} | {time.monotonic() - begin:.0f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
