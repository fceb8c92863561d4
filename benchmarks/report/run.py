"""What judging and reporting a fleet costs: seconds, memory and sizes, and how they grow.

    python benchmarks/report/run.py --nodes 100,1000

Each fleet is written to disk first; that is not counted. Judge and report then run as two processes on two processors,
as they do in a run: read the evidence, judge, write report.json; read it, write every form of the report.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import fleet
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder
from steps import measured

ROOT = Path(__file__).resolve().parents[2]
PROCESSORS = 2
MAX_SECONDS = 60
MAX_MEMORY_BYTES = 1.5e9
MAX_OPEN_SECONDS = 2
MAX_BYTES = {"html": 6e6, "json": 40e6, "csv": 30e6}


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
            "opens": opens(folder / "report.html"),
        }


def opens(page_file: Path) -> float | None:
    """Seconds of the browser's main thread until the page answers; None without a browser."""
    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        return None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(page_file.as_uri())
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}["ThreadTime"]


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
        {"judge": fleet.judge, "report": fleet.report}[options.step](options.folder)
        return 0
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:PROCESSORS])
    heads = "".join(f" {head:>8}" for head in ("judge", "report", "CPU"))
    sizes = "".join(f" {head:>9}" for head in ("memory", "html", "json", "csv", "opens"))
    print(f"{'nodes':>6} {'evidence':>10}{heads}{sizes}")
    results = []
    for nodes in map(int, options.nodes.split(",")):
        one = one_fleet(nodes, options.points, options.scratch)
        results.append(one)
        print(
            f"{nodes:>6} {one['evidence'] / 1e6:>7.0f} MB {one['judge']:>6.1f} s {one['report']:>6.1f} s "
            f"{one['cpu']:>6.1f} s {one['memory'] / 1e6:>6.0f} MB {one['html'] / 1e6:>6.2f} MB "
            f"{one['json'] / 1e6:>6.1f} MB {one['csv'] / 1e6:>6.1f} MB "
            f"{one['opens'] or 0:>7.2f} s",
            flush=True,
        )
    first, last = results[0], results[-1]
    growth = last["nodes"] / first["nodes"]
    for name in ("judge", "report", "html"):
        print(f"{name}: x {last[name] / first[name]:.1f} for x {growth:.0f} nodes")
    kept = (
        last["judge"] + last["report"] <= MAX_SECONDS
        and last["memory"] <= MAX_MEMORY_BYTES
        and (last["opens"] or 0) <= MAX_OPEN_SECONDS
        and all(last[form] <= most for form, most in MAX_BYTES.items())
        and all(last[name] / first[name] <= growth for name in ("judge", "report", "html"))
    )
    sizes = ", ".join(f"{form} {most / 1e6:.0f} MB" for form, most in MAX_BYTES.items())
    limits = f"{MAX_SECONDS} s, {MAX_OPEN_SECONDS} s to open, {MAX_MEMORY_BYTES / 1e9} GB, {sizes}, linear"
    print(f"within {limits}: {'yes' if kept else 'no'}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
