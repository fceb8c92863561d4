"""What the diagnostics report against the same operations written plainly in torch, in one run; prints ratios.

    python benchmarks/gpu/run.py [--processes N] [--seconds S] [--json FILE]

Plain torch runs before and after the diagnostics, and the greater of its figures is the peer: the ratio says what part
of what torch reaches on this machine the diagnostics report. Uses every GPU, or two processes on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
NODE = HERE.parents[1] / "collections" / "ansible_collections" / "gpuval" / "fleet" / "node"
GOAL = 0.98
LIMIT_SECONDS = 600


def main() -> int:
    parser = argparse.ArgumentParser(description="Diagnostics against plain torch, in one run.")
    parser.add_argument("--processes", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the diagnostics' measuring")
    parser.add_argument("--json", type=Path, help="write the table there as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuval-benchmark-") as name:
        directory = Path(name)
        before = plain(directory, options)
        reported = diagnostics(directory, options)
        after = plain(directory, options)
    rows = table(reported, {name: max(before[name], after[name]) for name in before})
    print(f"{'figure':48}{'diagnostics':>14}{'plain torch':>14}{'ratio':>8}")
    for row in rows:
        print(f"{row['figure']:48}{row['reported']:14.4g}{row['plain']:14.4g}{row['ratio']:8.3f}")
    worst = min(rows, key=lambda row: row["ratio"])
    print(f"least ratio {worst['ratio']:.3f} ({worst['figure']}); goal {GOAL} on GPUs")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def plain(directory: Path, options: argparse.Namespace) -> dict[str, float]:
    out = directory / "plain.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.processes}"]
    seconds = str(max(0.1, options.seconds / 20))
    threads = str(max(1, (os.cpu_count() or 1) // options.processes))
    subprocess.run(
        [*command, str(HERE / "plain.py"), "--out", str(out), "--seconds", seconds],
        check=True,
        timeout=LIMIT_SECONDS,
        env={**os.environ, "OMP_NUM_THREADS": threads},
    )
    return json.loads(out.read_text(encoding="utf-8"))


def diagnostics(directory: Path, options: argparse.Namespace) -> list[dict]:
    out = directory / "result.json"
    environment = {
        **os.environ,
        "PYTHONPATH": str(NODE),
        "GPUVAL_RESULT_FILE": str(out),
        "GPUVAL_WORK_DIR": str(directory),
    }
    if not torch.cuda.is_available():
        environment["GPUVAL_ACCELERATOR"] = "cpu"
    arguments = ["--seconds", str(options.seconds), "--processes", str(options.processes)]
    subprocess.run(
        [sys.executable, "-m", "gpuval_workloads.diagnostics", *arguments],
        check=True,
        timeout=LIMIT_SECONDS,
        env=environment,
    )
    return json.loads(out.read_text(encoding="utf-8"))["metrics"]


def table(metrics: list[dict], peer: dict[str, float]) -> list[dict]:
    """The slowest part's figure of every metric that plain torch measured too, with their ratio."""
    rows = []
    for figure, value in peer.items():
        found = [metric["value"] for metric in metrics if metric["name"] == f"diagnostics_{figure}"]
        if found:
            rows.append({"figure": figure, "reported": min(found), "plain": value, "ratio": min(found) / value})
    return rows


if __name__ == "__main__":
    sys.exit(main())
