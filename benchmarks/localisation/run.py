"""How well the search finds the bad node or link of a gang: rounds, duration, detection, false accusations.

    python benchmarks/localisation/run.py
    python benchmarks/localisation/run.py --nodes 232 --faults "1 bad node" --fleets 200 --clean 0
    python benchmarks/localisation/run.py --nodes 8,64 --set score=3 --set round_pairs=0

Everything is drawn from --seed; nothing is measured on nodes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(Path(__file__).resolve().parent)]

# Not at the top ("path"): they are found by what is put into sys.path above, and not installed.
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.search_findings import SearchFindings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.search_limits import TUNING, SearchLimits
from gangs import DEADLINE_SECONDS, USUAL, Gang, build, find
from localisation_kinds import KINDS

SIZES = (3, 4, 6, 8, 16, 64, 232, 256)
#: The smallest gang that a kind of fault is planted into; others need LEAST.
SMALLEST = {"none": 3, "1 bad node": 3, "1 node 10 % slower": 3, "1 bad link of the ring": 4, "1 link 10 % slower": 4}
LEAST = 8
#: Clean fleets that are larger are fewer.
MANY_NODES, FEWER = 16, 5


@dataclass
class Tally:
    """Over the fleets of one size and kind. `planted`: nodes, links and racks that are bad."""

    fleets: int = 0
    planted: int = 0
    found: int = 0
    seen: int = 0
    healthy: int = 0
    accused: int = 0
    suspected: int = 0
    untested: int = 0
    wrong_links: int = 0
    called_clean: int = 0
    rounds: list[int] = field(default_factory=list)
    pairs: list[int] = field(default_factory=list)
    walls: list[float] = field(default_factory=list)

    def add(self, gang: Gang, finding: SearchFindings) -> None:
        self.fleets += 1
        bad, suspect = set(finding.of_class("bad")), set(finding.of_class("suspect"))
        bad_links = {frozenset(pair) for pair in finding.bad_links}
        maybe_links = bad_links | {frozenset(pair) for pair in finding.suspect_links}
        racks = {name for boundary in finding.bad_boundaries for name in boundary.names}
        maybe_racks = racks | {name for boundary in finding.suspect_boundaries for name in boundary.names}
        for planted, sure, maybe in (
            (set(gang.bad), bad, bad | suspect),
            (set(gang.links), bad_links, maybe_links),
            (set(gang.racks), racks, maybe_racks),
        ):
            self.planted += len(planted)
            self.found += len(planted & sure)
            self.seen += len(planted & maybe)
        two = len({gang.topology.place(node, "rack") for node in gang.nodes}) == 2
        innocent = set() if two and gang.racks else maybe_racks - set(gang.racks)
        self.wrong_links += len(bad_links - set(gang.links)) + len(innocent)
        self.healthy += len(gang.nodes) - len(gang.bad)
        self.accused += len(bad - set(gang.bad))
        self.suspected += len(suspect - set(gang.bad))
        self.untested += len(set(finding.of_class("untested")) - set(gang.bad))
        self.called_clean += finding.clean
        self.rounds.append(finding.rounds)
        self.pairs.append(finding.pairs)
        self.walls.append(finding.seconds)

    def row(self) -> list[str]:
        return [
            f"{statistics.median(self.rounds):g} ({max(self.rounds)})",
            f"{statistics.median(self.walls) / 60:.1f} ({max(self.walls) / 60:.1f})",
            _share(self.found, self.planted),
            _share(self.seen, self.planted),
            f"{self.accused}, {self.suspected}, {self.untested} of {self.healthy}",
            str(self.wrong_links),
            f"{100 * self.called_clean / self.fleets:.3g}",
        ]


HEAD = [
    "rounds",
    "wall, min",
    "found, %",
    "or suspected, %",
    "healthy nodes called bad, suspect, untested",
    "links and racks accused wrongly",
    "fleets called clean, %",
]
CLEAN_HEAD = [
    "nodes",
    "fleets",
    "nodes called bad, suspect, untested",
    "links and racks accused",
    "fleets called clean, %",
    "rounds",
    "wall, min",
]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g}" if whole else "-"


def tally(kind: str, size: int, seeds: range, options: argparse.Namespace) -> Tally:
    found = Tally()
    vars(TUNING).update(dict(options.set))
    limits = SearchLimits(deadline_seconds=DEADLINE_SECONDS, floor_bytes_per_second=options.floor * USUAL or None)
    for seed in seeds:
        gang = build(size, seed, noise=options.noise, tail=options.tail, rack=options.rack)
        gang.fall = options.fall
        drawn = random.Random(f"{kind} {size} {seed}")  # noqa: S311 - a drawn fleet, no secret
        for plant in KINDS[kind]:
            plant(gang, drawn)
        found.add(gang, find(gang, limits))
        if options.explain and (found.accused or found.wrong_links or found.found < found.planted):
            print(f"{kind}, {size} nodes, seed {seed}")
    return found


def main() -> int:
    options = arguments()
    begun = time.process_time()
    if options.clean:
        clean(options)
    if not options.fleets:
        return 0
    print(f"\n{options.fleets} fleets for each line, noise {100 * options.noise:g} %: median (worst)\n")
    print(_line(["fault", "nodes", *HEAD]))
    print("|---" * (2 + len(HEAD)) + "|")
    for kind in options.faults:
        for size in options.nodes:
            if size >= SMALLEST.get(kind, LEAST) and (kind != "bad switch of a rack" or options.rack != 0):
                found = tally(kind, size, range(options.seed, options.seed + options.fleets), options)
                print(_line([kind, str(size), *found.row()]), flush=True)
    print(f"\n{time.process_time() - begun:.0f} s of CPU")
    return 0


def clean(options: argparse.Namespace) -> None:
    """Clean fleets of each size."""
    drawn = ", ".join(f"{name} {100 * getattr(options, name):g} %" for name in ("noise", "tail", "fall"))
    print(f"\nClean fleets, {drawn}: rounds median (worst)\n")
    print(_line(CLEAN_HEAD))
    print("|---" * len(CLEAN_HEAD) + "|")
    for size in options.nodes:
        each = options.clean if size <= MANY_NODES else -(-options.clean // FEWER)
        found = tally("none", size, range(options.seed + 10_000, options.seed + 10_000 + each), options)
        rounds, wall, _found, _seen, classes, links, share = found.row()
        print(_line([str(size), str(found.fleets), classes, links, share, rounds, wall]), flush=True)


def tuned(text: str) -> tuple[str, float]:
    """Raises ValueError, which argparse reports."""
    name, _, value = text.partition("=")
    if not hasattr(TUNING, name):
        raise ValueError(f"{name}: no field of SearchTuning")
    return name, type(getattr(TUNING, name))(value)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=lambda text: [int(part) for part in text.split(",")], default=SIZES)
    parser.add_argument("--faults", type=lambda text: text.split(";"), default=list(KINDS), help="separated by ;")
    parser.add_argument("--fleets", type=int, default=10, help="for each size and fault")
    parser.add_argument("--clean", type=int, default=1000, help="clean fleets of each size, a fifth above 16 nodes")
    parser.add_argument("--noise", type=float, default=0.03)
    parser.add_argument(
        "--tail", type=float, default=0.0, help="share of results that are 10 to 40 %% slower by chance"
    )
    parser.add_argument("--fall", type=float, default=0.0, help="share that twice the nodes cost by nature")
    parser.add_argument("--floor", type=float, default=0.0, help="what is expected of two nodes, of the usual speed")
    parser.add_argument("--rack", type=int, help="nodes of a rack; 0: racks are unknown")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--set",
        type=tuned,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a field of gang/search/search_limits.py",
    )
    parser.add_argument("--explain", action="store_true", help="name fleets with something wrong or not found")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
