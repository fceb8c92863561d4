"""How long a validation takes at simulated pace: the controller's own code, nodes that only take their time.

    python benchmarks/pace/run.py --nodes 100

Nodes of eight H200 run the profile by the shipped declarations, as long as their plans expect. Five of them have a
fault. The watch, its retries and second measurements, the gangs with their search, judge and report are the product's.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

_AnsibleCollectionFinder(paths=[str(Path(__file__).resolve().parents[2] / "collections")])._install()

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import units
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import document as gang_document
from bench import GOAL_SECONDS, Bench, Scene, figures, figures_apart


def tables(bench: Bench, report: Mapping[str, Any]) -> Iterator[str]:
    nodes = {node["name"]: node for node in report["nodes"]}
    yield from (line for line in bench.lines if "by the plan" in line or "measured again" in line)
    yield "\n| stage | by the plan, s | longest, s |\n|---|---|---|"
    for stage, seconds in bench.fleet.seconds.items():
        yield f"| {stage} | {bench.workloads[stage]['expected_seconds']:.0f} | {seconds:.0f} |"
    yield "\n| phase | takes | controller's processor |\n|---|---|---|"
    for title, seconds in bench.phases.items():
        cpu = f"{bench.cpu[title]:.1f} s" if title in bench.cpu else "(above)"
        yield f"| {title} | {units.duration(seconds)} | {cpu} |"
    yield f"| all | {units.duration(bench.total)} | {sum(bench.cpu.values()):.1f} s |"
    searches = [seconds for name, seconds in bench.rounds.items() if name.startswith(gang_document.SEARCH)]
    yield f"\nsearch: {len(searches)} rounds, {units.duration(sum(searches))}"
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    yield f"memory: judge, report {bench.memory / 1e6:.0f} MB; watch and gangs, with the simulation, {own / 1e6:.0f} MB"
    yield "\n| fault | node | verdict | class |\n|---|---|---|---|"
    titles = bench.faults.titles()
    for name, title in titles.items():
        yield f"| {title} | {name} | {nodes[name]['verdict']} | {nodes[name]['class']} |"
    others = Counter(f"{node['verdict']} {node['class'] or ''}" for name, node in nodes.items() if name not in titles)
    yield f"\nthe other nodes: {', '.join(f'{count} {what.strip()}' for what, count in others.items())}"
    yield f"within {units.duration(GOAL_SECONDS)}: {'yes' if bench.total <= GOAL_SECONDS else 'no'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Scene):
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=type(field.default), default=field.default, help="%(default)s")
    parser.add_argument("--explain", action="store_true", help="the console's lines too")
    parser.add_argument("--results", type=Path, help="keep the run there")
    parser.add_argument("--step", choices=("judge", "report"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = vars(parser.parse_args())
    show, results, step, folder = (options.pop(name) for name in ("explain", "results", "step", "folder"))
    if step:
        with figures_apart():
            {"judge": figures.judge, "report": figures.report}[step](folder)
        return 0
    with tempfile.TemporaryDirectory(prefix="gpuval-pace-") as temporary:
        bench = Bench(Scene(**options), results or Path(temporary), print if show else lambda _line: None)
        for line in tables(bench, bench.run()):
            print(line)
    return 0 if bench.total <= GOAL_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
