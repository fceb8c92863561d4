"""What an evidence bundle of a fleet costs: seconds, memory and sizes of making, verifying and renaming it.

    python benchmarks/evidence/run.py --nodes 100,1000

Each fleet is that of benchmarks/report, judged as a run is. The playbooks then work on it as users call them, each as a
process of its own, on two processors.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "report"))

import fleet
import steps
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

PROCESSORS = 2
#: Goals for a thousand nodes.
MAX_VERIFY_SECONDS, MAX_VERIFY_BYTES = 300, 500e6
#: Commands in their order, each with the playbook and its variables.
COMMANDS = {
    "key": ("keys", {"ssh_keys_signing": True}),
    "evidence": ("evidence", {}),
    "verify": ("verify", {"verify_folder": "evidence_bundle"}),
    "renamed": ("evidence", {"evidence_renamed": True}),
    "verify renamed": ("verify", {"verify_folder": "evidence_bundle_renamed"}),
}


def costs_of_fleet(nodes: int, points: int, scratch: Path | None) -> dict[str, dict[str, float]]:
    """The costs of judging a fleet and of each command; ``bundle``: its files and bytes."""
    with tempfile.TemporaryDirectory(prefix="gpuval-evidence-", dir=scratch) as temporary:
        place = Path(temporary)
        folder = place / "results" / fleet.RUN_ID
        folder.mkdir(parents=True)
        fleet.write(folder, nodes, points=points)
        hosts = {
            name: {"ansible_host": f"10.1.{at // 250}.{at % 250 + 1}"}
            for at, name in enumerate(fleet.run_of(nodes)["nodes"])
        }
        inventory = place / "hosts.json"
        inventory.write_text(json.dumps({"all": {"hosts": hosts}}))
        costs = {"judge": steps.measured("judge", folder)}
        for title, (playbook, variables) in COMMANDS.items():
            folders = {key: str(_run_folder(place) / name) for key, name in variables.items() if key == "verify_folder"}
            costs[title] = _play(place, inventory, playbook, {**variables, **folders})
        files = [path.stat().st_size for path in (_run_folder(place) / "evidence_bundle").rglob("*") if path.is_file()]
        return {**costs, "bundle": {"files": len(files), "bytes": sum(files)}}


def _run_folder(place: Path) -> Path:
    """The run's folder, which the first command moves to that of its inventory."""
    return next(path.parent for path in (place / "results").rglob("run.json") if "evidence_bundle" not in str(path))


def _play(place: Path, inventory: Path, playbook: str, variables: dict[str, object]) -> dict[str, float]:
    settings = {
        "gpuval_results_dir": str(place / "results"), "gpuval_state_dir": str(place / "state"),
        "gpuval_run_id": fleet.RUN_ID, **variables,
    }  # fmt: skip
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [program, "-i", str(inventory), f"gpuval.fleet.{playbook}", "-e", json.dumps(settings)]
    return steps.measured_command(command, place / "output.log")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000", help="sizes of fleets, by commas")
    parser.add_argument(
        "--points", type=int, default=600, help="samples of a curve at most; the runner keeps up to 600"
    )
    parser.add_argument("--scratch", type=Path, help="where fleets are written; five gigabytes for a thousand nodes")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:PROCESSORS])
    os.chdir(ROOT)  # where ansible.cfg is
    _AnsibleCollectionFinder(paths=[str(ROOT / "collections")])._install()
    results = {}
    print(f"{'nodes':>6} {'step':<16}{'takes':>9}{'processor':>11}{'memory':>10}")
    for nodes in map(int, options.nodes.split(",")):
        results[nodes] = costs = costs_of_fleet(nodes, options.points, options.scratch)
        bundle = costs.pop("bundle")
        for title, cost in costs.items():
            print(
                f"{nodes:>6} {title:<16}{cost['seconds']:>7.1f} s{cost['cpu']:>9.1f} s{cost['memory'] / 1e6:>7.0f} MB",
                flush=True,
            )
        print(f"{nodes:>6} bundle: {bundle['files']:,} files, {bundle['bytes'] / 1e6:.0f} MB", flush=True)
    first, last = min(results), max(results)
    verify = results[last]["verify"]
    print(f"verify : judge: {verify['cpu'] / results[last]['judge']['cpu']:.2f} of the processor's seconds")
    growth = verify["cpu"] / results[first]["verify"]["cpu"]
    print(f"verify: x {growth:.1f} for x {last / first:.0f} nodes")
    kept = verify["seconds"] <= MAX_VERIFY_SECONDS and verify["memory"] <= MAX_VERIFY_BYTES and growth <= last / first
    limits = f"{MAX_VERIFY_SECONDS} s, {MAX_VERIFY_BYTES / 1e6:.0f} MB, linear"
    print(f"verify within {limits}: {'yes' if kept else 'no'}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
