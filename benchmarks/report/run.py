"""What judging and reporting a fleet costs: seconds, memory and sizes, and how they grow.

    python benchmarks/report/run.py --nodes 100,1000

Each fleet is written to disk first; that is not counted. Judge and report then run as two processes on two processors,
as they do in a run: read the evidence, judge, write report.json; read it, write every form of the report.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fleet
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

ROOT = Path(__file__).resolve().parents[2]
PROCESSORS = 2
MAX_SECONDS = 60
MAX_MEMORY_BYTES = 1.5e9
MAX_BYTES = {"html": 6e6, "json": 40e6, "csv": 30e6}


def judge(folder: Path) -> None:
    """Write report.json, as the action judge_run does."""
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import judging
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import actions, criteria
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import write_file
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import summary_lines
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import earlier_faults, publishing
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder

    run_folder = RunFolder(folder)
    run = run_folder.read_run()
    checks = criteria.load(criteria.shipped_files())
    report = judging.report_on(run_folder, run, checks)
    earlier, _ = earlier_faults.read(run_folder, run, actions.shipped().window_days)
    actions.assign(report, earlier)
    report["summary"] = summary_lines(report)
    document = report_file.packed(report)
    schemas.validate("report", document, what="report.json")
    write_file(folder / "report.json", report_file.lines(document))
    publishing.keep_verdict(run_folder, report)


def report(folder: Path) -> None:
    """Write all forms of the report, as the action report_run does."""
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import write_forms
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as folder_module

    write_forms(folder_module.read_report(folder_module.RunFolder(folder)), folder)


def used() -> dict[str, float]:
    """Bytes that this process held at most (children share its pages), and processor seconds of them all."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return {"memory": own.ru_maxrss * 1024, "cpu": cpu}


def measured(step: str, folder: Path) -> dict[str, float]:
    """Run one step as a process of its own: wall seconds, and the most memory that it held."""
    begin = time.perf_counter()
    command = [sys.executable, __file__, "--step", step, "--folder", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {"seconds": time.perf_counter() - begin, **json.loads(done.stdout.splitlines()[-1])}


def one_fleet(nodes: int, points: int, kept: Path | None) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="gpuval-report-", dir=kept) as temporary:
        folder = Path(temporary) / fleet.RUN_ID
        folder.mkdir()
        fleet.write(folder, nodes, points=points)
        evidence = sum(path.stat().st_size for path in (folder / "nodes").rglob("*") if path.is_file())
        judged, reported = measured("judge", folder), measured("report", folder)
        return {
            "nodes": nodes,
            "evidence": evidence,
            "judge": judged["seconds"],
            "report": reported["seconds"],
            "cpu": judged["cpu"] + reported["cpu"],
            "memory": max(judged["memory"], reported["memory"]),
            "html": (folder / "report.html").stat().st_size,
            "json": (folder / "report.json").stat().st_size,
            "csv": (folder / "perf.csv").stat().st_size,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000", help="sizes of fleets, by commas")
    parser.add_argument(
        "--points", type=int, default=600, help="samples of a curve at most; the runner keeps up to 600"
    )
    parser.add_argument("--scratch", type=Path, help="where fleets are written; some gigabytes for a thousand nodes")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--step", choices=("judge", "report"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    _AnsibleCollectionFinder(paths=[str(ROOT / "collections")])._install()
    if options.step:
        {"judge": judge, "report": report}[options.step](options.folder)
        print(json.dumps(used()))
        return 0
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:PROCESSORS])
    heads = "".join(f" {head:>8}" for head in ("judge", "report", "CPU"))
    sizes = "".join(f" {head:>9}" for head in ("memory", "html", "json", "csv"))
    print(f"{'nodes':>6} {'evidence':>10}{heads}{sizes}")
    results = []
    for nodes in map(int, options.nodes.split(",")):
        one = one_fleet(nodes, options.points, options.scratch)
        results.append(one)
        print(
            f"{nodes:>6} {one['evidence'] / 1e6:>7.0f} MB {one['judge']:>6.1f} s {one['report']:>6.1f} s "
            f"{one['cpu']:>6.1f} s {one['memory'] / 1e6:>6.0f} MB {one['html'] / 1e6:>6.2f} MB "
            f"{one['json'] / 1e6:>6.1f} MB {one['csv'] / 1e6:>6.1f} MB",
            flush=True,
        )
    first, last = results[0], results[-1]
    growth = last["nodes"] / first["nodes"]
    for name in ("judge", "report", "html"):
        print(f"{name}: x {last[name] / first[name]:.1f} for x {growth:.0f} nodes")
    kept = (
        last["judge"] + last["report"] <= MAX_SECONDS
        and last["memory"] <= MAX_MEMORY_BYTES
        and all(last[form] <= most for form, most in MAX_BYTES.items())
        and all(last[name] / first[name] <= growth for name in ("judge", "report", "html"))
    )
    sizes = ", ".join(f"{form} {most / 1e6:.0f} MB" for form, most in MAX_BYTES.items())
    limits = f"{MAX_SECONDS} s, {MAX_MEMORY_BYTES / 1e9} GB, {sizes}, linear"
    print(f"within {limits}: {'yes' if kept else 'no'}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
