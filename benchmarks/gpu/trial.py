"""What gpuval names if one GPU loses multiprocessors, on this machine's GPUs.

    python benchmarks/gpu/trial.py [--passes healthy,held,bursts] [--json FILE] [-- ARGUMENTS OF ansible-playbook]

Each pass is `gpuval.fleet.validate` with the stages diagnostics and training. In one rank's own process a thread holds
multiprocessors by a kernel of high priority: `held` some of them all the time, `bursts` all of them now and then, at
random. So no other process is there to be seen, and the product is as it ships. Needs nvcc, and ansible-playbook
beside this Python or on PATH; on a CPU all passes are healthy.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DISTURBANCE = Path(__file__).resolve().parent / "disturbance"
PASSES = ("healthy", "held", "bursts")
HELD_SECONDS = 0.01
LIMIT_SECONDS = 300
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
FIGURES = {
    "diagnostics": ("matmul_bf16_tflops", "matmul_fp16_tflops", "matmul_tf32_tflops", "matmul_fp8_tflops"),
    "training": ("model_tflops", "compute_p50_seconds", "compute_lost_ratio"),
}
DIAGNOSTICS_TOO = ("memory_bytes_per_second", "matmul_bf16_median_tflops", "matmul_bf16_lost_ratio")
LOSS_TOLERANCE, ROOM, WARMUP_STEPS = 0.1, 0.3, 40


def main() -> int:
    own, _, ansible = " ".join(sys.argv[1:]).partition("-- ")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", default=",".join(PASSES))
    parser.add_argument("--multiprocessors", type=int, default=7, help="that `held` takes")
    parser.add_argument("--share", type=float, default=0.1, help="of the time that `bursts` take")
    parser.add_argument("--burst-seconds", type=float, default=0.05)
    parser.add_argument("--rank", type=int, help="whose GPU; default: the second, or the only one")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--json", type=Path, help="write what was measured and named there as well")
    options = parser.parse_args(own.split())
    passes = []
    with tempfile.TemporaryDirectory(prefix="gpuval-trial-") as name:
        library = build(Path(name))
        for kind in options.passes.split(","):
            passes.append(trial(kind, options, library, Path(name), ansible.split()))
            show(passes[-1], passes[0])
            if options.json:
                options.json.write_text(json.dumps(passes, indent=1) + "\n", encoding="utf-8")
    return 0


def build(folder: Path) -> Path | None:
    """Compile the kernel for the GPUs of this machine; None where there are none."""
    if not gpu_count():
        return None
    library = folder / "hold.so"
    command = ["nvcc", "-O2", "-arch=native", "-shared", "-Xcompiler", "-fPIC", str(DISTURBANCE / "hold.cu")]
    subprocess.run([*command, "-o", str(library)], check=True, timeout=LIMIT_SECONDS)
    return library


def trial(kind: str, options: argparse.Namespace, library: Path | None, folder: Path, ansible: list[str]) -> dict:
    """Validate this machine once; return its report's verdict, what it named, and the figures."""
    notes = folder / kind
    notes.mkdir()
    environment = {**NO_MULTICAST, "PYTHONPATH": str(DISTURBANCE)}
    if library and kind != "healthy":
        rank = options.rank if options.rank is not None else min(1, gpu_count() - 1)
        held = (options.multiprocessors, HELD_SECONDS, 0.0)
        bursts = (0, options.burst_seconds, options.burst_seconds * (1 / options.share - 1))
        settings = (rank, *(held if kind == "held" else bursts), library, notes)
        environment["TRIAL_DISTURBANCE"] = ",".join(map(str, settings))
    results = options.results.resolve() / kind
    extra = {"gpuval_environment": environment, "gpuval_results_dir": str(results), "gpuval_retries": 0}
    playbook = shutil.which("ansible-playbook", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    command = [playbook or "ansible-playbook", "gpuval.fleet.validate", "-i", "inventories/local"]
    started = time.monotonic()
    process = subprocess.run(
        [*command, "--tags", "diagnostics,training", "-e", json.dumps(extra), *ansible],
        cwd=ROOT, check=False, timeout=LIMIT_SECONDS, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    seconds = time.monotonic() - started
    report = results / "latest" / "report.json"
    if not report.exists():
        sys.exit(process.stdout[-4000:])
    node = json.loads(report.read_text(encoding="utf-8"))["nodes"][0]
    records = {stage: read(results / "latest" / "nodes" / node["name"] / f"{stage}.json") for stage in FIGURES}
    return {
        "pass": kind,
        "wall_seconds": round(seconds, 1),
        "verdict": node["verdict"],
        "notes": [json.loads(note.read_text(encoding="utf-8")) for note in sorted(notes.iterdir())],
        "named": named(node["checks"]),
        "figures": {stage: figures(stage, record) for stage, record in records.items()},
        "loss": losses(records["training"], results / "latest" / "nodes" / node["name"] / "training.series.json"),
        "messages": {stage: record.get("message") for stage, record in records.items()},
    }


def gpu_count() -> int:
    if not shutil.which("nvidia-smi"):
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], check=True, timeout=60, text=True, stdout=subprocess.PIPE).stdout
    return listed.count("GPU ")


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def named(checks: list[dict]) -> list[dict]:
    """Return what the report says against a part: every check that neither passes nor is inapplicable."""
    keys = ("verdict", "severity", "name", "part", "reason")
    stages = tuple(FIGURES)
    return [
        {key: check.get(key) for key in keys}
        for check in checks
        if check["verdict"] not in ("pass", "skipped") and check["stage"] in stages
    ]


def figures(stage: str, record: dict) -> dict[str, dict[str, float]]:
    """Return by figure and part what the record has."""
    names = [f"{stage}_{name}" for name in (*FIGURES[stage], *(DIAGNOSTICS_TOO if stage == "diagnostics" else ()))]
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for metric in record.get("metrics", ()):
        if metric["name"] in found and metric["value"] is not None:
            found[metric["name"]][metric["scope"]] = metric["value"]
    return found


def losses(record: dict, series: Path) -> dict:
    """Return the loss by step, as the series has it, with what decides its course."""
    curve = next((one for one in read(series).get("series", ()) if one["name"] == "training_loss"), {"x": [], "y": []})
    return {"course": record.get("fingerprints", {}).get("training_course"), "x": curve["x"], "y": curve["y"]}


def over_the_lowest(losses: list[float]) -> float:
    """Return how far a step after the warm-up lies above the lowest before it, at most."""
    return max((loss - min(losses[:number]) for number, loss in enumerate(losses) if number >= WARMUP_STEPS), default=0)


def largest_difference(loss: dict, other: dict) -> float:
    """Return the largest relative difference at a tenth step of two runs, of losses with 0.1 added."""
    theirs = dict(zip(other["x"], other["y"]))
    pairs = [(mine, theirs[x]) for x, mine in zip(loss["x"], loss["y"]) if x % 10 == 0 and x in theirs]
    return max((abs(a - b) / (min(a, b) + LOSS_TOLERANCE) for a, b in pairs), default=0)


def show(done: dict, first: dict) -> None:
    share = ", ".join(f"{note['multiprocessors']} of {note['of']} for {note['share']:.1%}" for note in done["notes"])
    print(f"\n{done['pass']}: {done['verdict']} after {done['wall_seconds']} s; held: {share or 'nothing'}")
    for by_name in done["figures"].values():
        for name, parts in by_name.items():
            text = "  ".join(f"{part} {value:.4g}" for part, value in sorted(parts.items()))
            print(f"  {name:44} {text}")
    loss = done["loss"]
    print(
        f"  loss: {len(loss['x'])} steps, {over_the_lowest(loss['y']):.2f} over the lowest at most (goal {ROOM}), "
        f"{largest_difference(loss, first['loss']):.2%} from that of the first pass at a tenth step at most"
    )
    for entry in done["named"]:
        verdict = f"{entry['verdict']:8}{entry['severity']:9}"
        print(f"  {verdict} {entry['name']} {entry['part']}: {str(entry['reason'])[:160]}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
