"""Whether the smallest losses that a report states are named, and smaller ones are not (docs/design/statistics.md).

    python benchmarks/detection/power.py --draws 1000

Fleets of H200 (goals.py) are judged, with the losses that the report says of each figure. Then a part, or a node, that
is drawn loses so much in the run's own records, which go through intake to the judge again. One draw has a fault of
each figure, each on a node of its own choice; whole nodes have draws of their own.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT)]

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.laps import median_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.analysis import fleet as analysis
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.criteria import Criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.kinds import JudgeContext
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.node_checks import JudgedRun, NodeCase, checks_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.subjects import subjects_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence
from goals import FIGURE_STAGES, SETTINGS, Fleet, share

from tests.kit.builders import SHIPPED, TIME

#: Figures by their titles in the report, and what loses speed; "node" is all parts of one.
PARTS = (("GPU products", "part"), ("device memory", "part"), ("link", "part"), ("all-reduce", "node"),
         ("training", "node"))  # fmt: skip
WHOLE = (("GPU products", "node"),)
Target = tuple[str, str]
#: The smaller loss is drawn once in so many draws.
SMALLER_OF = 5
#: Draws of one fleet, by its size.
DRAWS_OF_A_FLEET = {4: 10, 8: 20, 16: 25, 64: 50}


def criteria(metrics: set[str]) -> Criteria:
    """The shipped checks of these figures, and those that they require: none of the others can name them."""
    required = {name for check in SHIPPED if check.metric in metrics for name in check.requires}
    return Criteria([check for check in SHIPPED if check.metric in metrics or check.name in required])


def losses_of(fleet: Fleet) -> tuple[dict[Target, float | None], dict[str, Mapping[str, Any]]]:
    """By figure the smallest losses of one part and of a node, and the report's entries by title."""
    with mock.patch.object(analysis, "analyse", lambda *_: None):
        report = verdict.judge(fleet.run, fleet.evidence, SHIPPED, judged_at=TIME)
    entries = {entry["title"]: entry for entry in report["fleet"]["power"]}
    return {(title, what): entries[title][what] for title, what in (*PARTS, *WHOLE)}, entries


def victim(draw: random.Random, fleet: Fleet, entry: Mapping[str, Any], what: str) -> tuple[str, str]:
    """A node, and one of its parts that report the figure; "" is all of them."""
    name = draw.choice(list(fleet.nodes))
    metrics = fleet.evidence.records[name][entry["stage"]]["metrics"]
    parts = [metric["scope"] for metric in metrics if metric["name"] == entry["metric"]]
    return name, draw.choice(parts) if what == "part" else ""


def named(
    fleet: Fleet, faults: Mapping[Target, tuple[str, str, float]], entries: Mapping[str, Any], checks: Criteria
) -> Iterator[Target]:
    """The faults that are named: (node, part, loss) by target, put into the run's own records."""
    before = fleet.evidence
    fleet.evidence = RunEvidence(
        launches=before.launches, records={name: dict(its) for name, its in before.records.items()}
    )
    for (title, _), (name, part, loss) in faults.items():
        entry = entries[title]
        record = fleet.evidence.records[name].pop(entry["stage"])
        slowed = (entry["metric"], median_of(entry["metric"]))
        metrics = [
            {**metric, "value": metric["value"] * (1 - loss)}
            if metric["name"] in slowed and part in ("", metric["scope"])
            else metric
            for metric in record["metrics"]
        ]
        fleet.put(name, {entry["stage"]: {**record, "metrics": metrics, "exit_code": 0}})
    judged = JudgedRun(fleet.run, fleet.evidence, JudgeContext(checks), subjects_of(fleet.run, fleet.evidence))
    judged.compare_nodes()
    nodes = {name: checks_of(NodeCase(name, judged)) for name in {name for name, *_ in faults.values()}}
    fleet.evidence = before
    for target, (name, part, _) in faults.items():
        metric = entries[target[0]]["metric"]
        if any(
            check["metric"] == metric and check["verdict"] in ("fail", "warn", "missing")
            and (not part or part == check["part"])
            for check in nodes[name]
        ):  # fmt: skip
            yield target


def cell(setting: str, size: int, options: argparse.Namespace) -> Iterator[str]:
    """The rows of one size of fleets in one setting."""
    found: dict[float, Counter[Target]] = {1.0: Counter(), options.smaller: Counter()}
    drawn: Counter[tuple[Target, float]] = Counter()
    known_losses: dict[Target, list[float]] = {}
    of_fleet = min(options.draws, DRAWS_OF_A_FLEET.get(size, 10))
    for seed in range(-(-options.draws // of_fleet)):
        fleet = Fleet(size, SETTINGS[setting], FIGURE_STAGES, f"power {setting} {size} {seed}", None)
        losses, entries = losses_of(fleet)
        checks = criteria({entry["metric"] for entry in entries.values()})
        draw = random.Random(f"{setting} {size} {seed}")  # noqa: S311 - the same draws again, no secret
        for target, loss in losses.items():
            known_losses.setdefault(target, []).extend([loss] if loss is not None else [])
        for number in range(of_fleet):
            for targets in (PARTS, WHOLE):
                known = [target for target in targets if losses[target] is not None]
                hit = {target: victim(draw, fleet, entries[target[0]], target[1]) for target in known}
                for factor in found if number % SMALLER_OF == 0 else (1.0,):
                    drawn.update((target, factor) for target in known)
                    faults = {target: (*hit[target], factor * losses[target]) for target in known}
                    found[factor].update(named(fleet, faults, entries, checks))
        gc.collect()
    for target in (*PARTS, *WHOLE):
        some = sorted(known_losses[target]) or [float("nan")]
        shares = " | ".join(share(count[target], drawn[target, factor]) for factor, count in found.items())
        title = f"{target[0]}, whole node" if target in WHOLE else target[0]
        middle, ends = some[len(some) // 2], (some[0], some[-1])
        yield (
            f"| {title} | {setting} | {size} | {100 * middle:.3g} ({100 * ends[0]:.3g} to {100 * ends[1]:.3g}) | "
            f"{drawn[target, 1.0]} | {shares} |"
        )


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[4, 8, 16, 64])
    parser.add_argument("--settings", type=lambda text: text.split(","), default=[*SETTINGS])
    parser.add_argument("--smaller", type=float, default=0.8, help="a loss of so much of the smallest one, too")
    return parser.parse_args(given)


def main() -> None:
    options = arguments()
    gc.disable()
    print(f"| figure | fleet | nodes | smallest loss reported, % (median, range) | draws | named, % | "
          f"named at {options.smaller:g} of it, % |\n|---|---|---|---|---|---|---|")  # fmt: skip
    for setting in options.settings:
        for size in options.sizes:
            for line in cell(setting, size, options):
                print(line, flush=True)


if __name__ == "__main__":
    main()
