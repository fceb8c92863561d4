"""How long judging takes, and how much memory: from the records' bytes to the bytes of report.json.

    python benchmarks/detection/speed.py --nodes 100,1000

Each size is measured in a process of its own, with the shipped criteria and eight GPUs a node; some have defects.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "unit" / "verdict")]

from ansible_collections.gpuval.fleet.plugins.plugin_utils import criteria, schemas, verdict  # noqa: E402
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence import gather  # noqa: E402
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import json_text  # noqa: E402

HEAD = (
    "| nodes | records, MB | taking in, s | judging, s | schema and bytes, s | all, s | of that CPU, s | memory, MB |"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000", help="sizes of fleets (%(default)s)")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(measured(options.one))
        return 0
    print(HEAD + "\n" + "|---" * HEAD.count(" |") + "|", flush=True)
    for nodes in options.nodes.split(","):
        subprocess.run([sys.executable, __file__, "--one", nodes], check=True)
    return 0


def measured(nodes: int) -> str:
    """A row of the table. What draws the fleet ends before the clock starts, and leaves only bytes behind."""
    drawn = subprocess.run(
        [sys.executable, "-c", _DRAW.format(folder=str(Path(__file__).parent), path=sys.path[:2], nodes=nodes)],
        check=True,
        capture_output=True,
    ).stdout
    head, *lines = drawn.splitlines()
    run = json.loads(head)
    objects = [(key.decode(), raw) for key, raw in (line.split(b"\t", 1) for line in lines)]
    del drawn, lines
    size = sum(len(raw) for _, raw in objects) / 1e6

    checks = criteria.load(criteria.shipped_files())
    worked, times = time.process_time(), [time.monotonic()]
    evidence = gather(run, objects, {name: {"state": "finished", "message": ""} for name in run["nodes"]})
    times.append(time.monotonic())
    report = verdict.judge(run, evidence, checks, judged_at="2026-11-02T10:00:00Z")
    times.append(time.monotonic())
    schemas.validate("report", report, what="report")
    json_text(report).encode()
    times.append(time.monotonic())
    worked = time.process_time() - worked
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    took = " | ".join(f"{end - start:.1f}" for start, end in zip(times, times[1:], strict=False))
    return f"| {nodes} | {size:.0f} | {took} | {times[-1] - times[0]:.1f} | {worked:.1f} | {memory:.0f} |"


_DRAW = """
import json, sys
sys.path[:0] = [{folder!r}, *{path!r}]
import fleets
fleet = fleets.drawn({nodes}, 0.005, 0.003, 1, each=max(1, {nodes} // 320))
print(json.dumps(fleet.run))
for name, stages in fleet.evidence.records.items():
    for stage, record in stages.items():
        print(f"{{fleet.run['folder']}}/records/{{stage}}/{{name}}.json", json.dumps(record), sep="\\t")
"""

if __name__ == "__main__":
    sys.exit(main())
