"""What the shipped criteria find of planted defects, beside a fixed threshold and a mean-based variance rule.

    python benchmarks/detection/run.py --nodes 100,1000 --fleets 3

Every verdict is that of the product's own judge with the criteria as shipped; nothing is measured again.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT)]

import fleets
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria, verdict

CVS = (0.005, 0.015)
REPEATS = (0.003, 0.01)
RULES = ("criteria", "fixed", "variance")
MARGIN = 0.05
#: The target: what must be found of a part that is 5 % slower, and how many healthy nodes may fail.
RECALL, FALSE = 0.99, 0.001


class Tally:
    """Counts over the fleets of one setting."""

    def __init__(self) -> None:
        self.planted: Counter[tuple[str, float | None]] = Counter()
        self.found: dict[str, Counter[tuple[str, float | None]]] = {rule: Counter() for rule in RULES}
        self.named: Counter[tuple[str, float | None]] = Counter()
        self.healthy = 0
        self.failed: Counter[str] = Counter()
        self.accusing: Counter[str] = Counter()
        self.finding: dict[tuple[str, float | None], Counter[str]] = defaultdict(Counter)
        #: By effect racks that are bad, and those of them that the analysis names; groups that it names and are not.
        self.racks: Counter[float] = Counter()
        self.racks_named: Counter[float] = Counter()
        self.groups_wrong = 0

    def add(self, fleet: fleets.Fleet, checks: criteria.Criteria) -> None:
        report = verdict.judge(fleet.run, fleet.evidence, checks, judged_at="2026-11-02T10:00:00Z")
        nodes = {node["name"]: node for node in report["nodes"]}
        self._add_racks(fleet, report)
        rejected = {
            "criteria": {name for name, node in nodes.items() if node["verdict"] != "PASS"},
            "fixed": fleets.under(fleet, {key: (1 - MARGIN) * value for key, value in fleet.nominal.items()}),
            "variance": fleets.under(fleet, {key: (1 - MARGIN) * value for key, value in fleets.means(fleet).items()}),
        }
        for name, node in nodes.items():
            defect = fleet.defects.get(name)
            if defect is None:
                self.healthy += 1
                self.failed.update(rule for rule in RULES if name in rejected[rule])
                self.accusing.update(set(_against(node)))
                continue
            key = defect.kind, defect.effect
            self.planted[key] += 1
            for rule in RULES:
                self.found[rule][key] += name in rejected[rule]
            against = _against(node)
            self.finding[key].update(set(against))
            self.named[key] += bool(against) and (
                defect.part is None or any(defect.part in parts for parts in against.values())
            )

    def _add_racks(self, fleet: fleets.Fleet, report: dict) -> None:
        bad = {
            fleet.run["nodes"][name]["labels"]["rack"]: defect.effect
            for name, defect in fleet.defects.items()
            if defect.kind == "bad rack of 8"
        }
        named = {(one["by"], one["value"]) for one in report["fleet"]["analysis"]["findings"]}
        self.racks.update(bad.values())
        self.racks_named.update(effect for rack, effect in bad.items() if ("rack", rack) in named)
        self.groups_wrong += len(named - {("rack", rack) for rack in bad})


def _against(node: dict) -> dict[str, set[str]]:
    """The required checks that do not pass, each with the parts it names."""
    found: dict[str, set[str]] = defaultdict(set)
    for check in node["checks"]:
        if check["severity"] == "required" and check["verdict"] in ("fail", "missing"):
            found[check["name"]].add(check["part"])
    return found


def main() -> int:
    options = arguments()
    checks = criteria.load(criteria.shipped_files())
    results = []
    for title, draw in settings(options):
        started, tally = time.monotonic(), Tally()
        for seed in range(options.seed, options.seed + options.fleets):
            tally.add(draw(seed), checks)
        print("\n".join(table(title, tally, time.monotonic() - started, options.explain)), flush=True)
        results.append({"setting": title, **document(tally)})
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0


def settings(options: argparse.Namespace) -> Iterator[tuple[str, object]]:
    for nodes in options.nodes:
        each = max(1, nodes // 160)
        for cv in options.cv:
            for repeat in options.noise:
                for gpus in options.gpu_cv:
                    title = f"{nodes} nodes, CV {cv:.1%}, GPUs {gpus:.1%}, repeats {repeat:.1%}"
                    yield title, functools.partial(_drawn, nodes, cv, repeat, each, gpus)
        for repeat in options.noise if options.replay else ():
            title = f"{nodes} nodes replayed from real H200, repeats {repeat:.1%}"
            yield title, lambda seed, n=nodes, r=repeat, e=each: fleets.replayed(n, r, seed, each=e)


def table(title: str, tally: Tally, seconds: float, explain: bool) -> list[str]:
    lines = [
        f"\n### {title}\n",
        f"{tally.healthy} healthy nodes, {sum(tally.planted.values())} bad ones; {seconds:.0f} s",
    ]
    lines += [
        "",
        "| | planted | criteria | part named | fixed threshold | variance rule | |",
        "|---|---|---|---|---|---|---|",
    ]
    for key in fleets.kinds():
        planted = tally.planted[key]
        if not planted:
            continue
        kind, effect = key
        recalls = {rule: tally.found[rule][key] / planted for rule in RULES}
        must = effect is None or effect >= 0.05
        missed = must and recalls["criteria"] < (RECALL if effect else 1)
        what = kind + (f", {effect:.0%}" if effect else "")
        named = f"{tally.named[key] / planted:.1%}"
        lines.append(
            f"| {what} | {planted} | {recalls['criteria']:.1%} | {named} | {recalls['fixed']:.1%} | "
            f"{recalls['variance']:.1%} | {'**under the target**' if missed else ''} |"
        )
        if explain:
            lines.append(f"    {dict(tally.finding[key].most_common(6))}")
    false = {rule: tally.failed[rule] / tally.healthy for rule in RULES}
    missed = "**over the target**" if false["criteria"] > FALSE else ""
    lines.append(
        f"| healthy nodes failed | {tally.healthy} | {false['criteria']:.2%} | | {false['fixed']:.2%} | "
        f"{false['variance']:.2%} | {missed} |"
    )
    if explain:
        lines.append(f"    {dict(tally.accusing.most_common(12))}")
    racks = ", ".join(
        f"{tally.racks_named[effect]} of {tally.racks[effect]} at {effect:.0%}" for effect in sorted(tally.racks)
    )
    lines += ["", f"Racks that the analysis names: {racks}. Groups named that are not bad: {tally.groups_wrong}."]
    return lines


def document(tally: Tally) -> dict:
    return {
        "healthy": tally.healthy,
        "failed": dict(tally.failed),
        "accusing": dict(tally.accusing),
        "racks": [[effect, tally.racks[effect], tally.racks_named[effect]] for effect in sorted(tally.racks)],
        "groups_wrong": tally.groups_wrong,
        "defects": [
            {"kind": kind, "effect": effect, "planted": tally.planted[kind, effect], "named": tally.named[kind, effect],
             "found": {rule: tally.found[rule][kind, effect] for rule in RULES}}
            for kind, effect in fleets.kinds()
        ],
    }  # fmt: skip


def _drawn(nodes: int, cv: float, repeat: float, each: int, gpu_cv: float, seed: int) -> fleets.Fleet:
    return fleets.drawn(nodes, cv, repeat, seed, each=each, gpu_cv=gpu_cv)


def arguments() -> argparse.Namespace:
    def numbers(kind):
        return lambda text: [kind(one) for one in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=numbers(int), default=[100, 1000], help="sizes of fleets (%(default)s)")
    parser.add_argument("--fleets", type=int, default=1, help="fleets of each setting (%(default)s)")
    parser.add_argument("--cv", type=numbers(float), default=list(CVS), help="node-to-node (%(default)s)")
    parser.add_argument("--gpu-cv", type=numbers(float), default=[0.0], help="GPU-to-GPU in a node (%(default)s)")
    parser.add_argument("--noise", type=numbers(float), default=list(REPEATS), help="of repeats (%(default)s)")
    parser.add_argument("--no-replay", dest="replay", action="store_false", help="leave out replays of real records")
    parser.add_argument("--explain", action="store_true", help="show which checks decided")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the counts to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
