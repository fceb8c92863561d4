"""What the judge finds of GPUs that lose time in bursts: simulated laps through the node's own statistics.

    python benchmarks/bursts/run.py --profile standard --trials 200

A GPU stops while a burst lasts; bursts are periodic, or as random as a Poisson process. Its laps go through the node's
LapStatistics into figures, and with those of healthy H200 nodes through the product's judge with the shipped criteria.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT)]

from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.laps import (
    REVISION,
    LapStatistics,
    LapSummary,
    median_of,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import verdict

from tests.kit.builders import SHIPPED, facts_record, healthy, make_record, make_run, metric
from tests.kit.h200 import setups_of

GPUS = 8
#: Seconds of the diagnostics and of the training, by profile (roles/diagnostics and roles/training, defaults).
PROFILES = {"quick": (15, 20), "standard": (60, 300), "burnin": (600, 14400)}
LENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0)
#: A figure lasts so many lengths of the longest bursts that it is to find.
NEEDED = {"periodic": 10, "random": 90}
BLOCK_SECONDS = 0.25
LAP_CV = 0.01


@dataclass(frozen=True)
class SpeedFigure:
    """A figure: seconds of a lap on H200, of the whole stage's seconds the share that it lasts (``run.PARTS``), and the
    required checks of which one has to fail; ``part`` is named by them."""

    title: str
    metric: str
    unit: str
    lap: float
    share: float
    part: str
    checks: tuple[str, ...]
    stage: str = "diagnostics"
    error: str = ""

    def seconds(self, profile: str) -> float:
        diagnostics, training = PROFILES[profile]
        return training if self.stage == "training" else self.share * diagnostics


_FLEET = ("fleet", "fleet_neighbours")
FIGURES = (
    SpeedFigure(
        "bf16 products", "diagnostics_matmul_bf16_tflops", "TFLOP/s", 0.00165, 0.30 * 0.67, "gpu:3",
        tuple(f"diagnostics_matmul_{one}" for one in _FLEET), error="diagnostics_matmul_bf16",
    ),
    SpeedFigure(
        "memory copies", "diagnostics_memory_bytes_per_second", "bytes/s", 0.002, 0.05, "gpu:3",
        tuple(f"diagnostics_memory_{one}" for one in _FLEET), error="diagnostics_memory",
    ),
    SpeedFigure(
        "all-reduce", "diagnostics_all_reduce_bus_bytes_per_second", "bytes/s", 0.041, 0.22 / 5 * 0.4, "node",
        ("diagnostics_all_reduce_fleet",), error="diagnostics_all_reduce",
    ),
    SpeedFigure(
        "copies to the device, alone", "diagnostics_host_to_device_bytes_per_second", "bytes/s", 0.0049, 0.10 / 27,
        "gpu:3", tuple(f"diagnostics_host_to_device_{one}" for one in _FLEET), error="diagnostics_host_to_device",
    ),
    SpeedFigure(
        "one link", "diagnostics_peer_bytes_per_second", "bytes/s", 0.00076, 0.06 / 14, "link:gpu2>gpu3",
        tuple(f"diagnostics_peer_{one}" for one in _FLEET), error="diagnostics_peer",
    ),
    SpeedFigure(
        "training", "training_model_tflops", "TFLOP/s", 0.26, 1.0, "gpu:3", ("training_speed_fleet",), stage="training"
    ),
)  # fmt: skip


def laps(draw: random.Random, seconds: float, lap: float, length: float, share: float, pattern: str) -> LapStatistics:
    """The laps of so many seconds, of which bursts of a length take a share; with ``share`` 0 those of a healthy GPU.

    Work stands still while a burst lasts. So a burst is a delay at a point of the work, and those of a period follow
    each other at equal amounts of work. As in the diagnostics, the end is looked for every quarter of a second.
    """
    statistics = LapStatistics()
    work_between = length * (1 - share) / share if share else float("inf")
    next_burst, late = work_between, 0.0
    if share and pattern == "random":
        next_burst = draw.expovariate(1 / work_between)
    elif share:
        phase = draw.uniform(0, length + work_between)
        late, next_burst = max(0.0, length - phase), work_between - max(0.0, phase - length)
    worked = wall = 0.0
    while wall < seconds:
        block = []
        for _ in range(max(1, int(min(BLOCK_SECONDS, seconds - wall) / lap))):
            own = lap * draw.gauss(1, LAP_CV)
            worked += own
            took, late = own + late, 0.0
            while worked >= next_burst:
                took += length
                next_burst += draw.expovariate(1 / work_between) if pattern == "random" else work_between
            block.append(took)
        statistics.extend(block)
        wall += sum(block)
    return statistics


@cache
def healthy_summary(figure: SpeedFigure, seconds: float) -> LapSummary:
    return laps(random.Random(1), seconds, figure.lap, 0, 0, "").summary()  # noqa: S311 - the same laps again, no secret


def figures_of(figure: SpeedFigure, part: str, speed: float, summary: LapSummary) -> Iterator[dict]:
    """The metrics of one part whose laps have this summary; ``speed`` is of laps that take the figure's own time."""
    found = metric(figure.metric, speed * figure.lap / summary.seconds, figure.unit, part)
    if figure.stage == "training":
        yield found
        return
    yield {**found, "revision": REVISION}
    yield metric(median_of(figure.metric), speed * figure.lap / summary.median_seconds, figure.unit, part)
    yield metric(f"{figure.error}_spread_ratio", summary.spread_ratio, "ratio", part)
    if summary.uncertainty_ratio is not None:
        yield metric(f"{figure.error}_uncertainty_ratio", summary.uncertainty_ratio, "ratio", part)


def is_found(draw: random.Random, figure: SpeedFigure, seconds: float, bad: LapSummary, nodes: int) -> bool:
    """Whether the judge fails the one bad part among so many nodes, and no other. Healthy nodes differ by 0.5 % and
    their parts by 0.1 %, beside what their laps make them differ by."""
    names = [f"node-{number + 1}" for number in range(nodes)]
    run = make_run(names, stages=["facts", figure.stage])
    run["setups"] = setups_of()
    evidence = healthy(run)
    good = healthy_summary(figure, seconds)
    error = LAP_CV * (figure.lap / seconds) ** 0.5
    parts = [figure.part] if figure.part == "node" else [f"gpu:{gpu}" for gpu in range(GPUS)]
    if figure.part.startswith("link"):
        parts = [f"link:gpu{a}>gpu{b}" for a in range(GPUS) for b in range(GPUS) if a != b]
    for number, name in enumerate(names):
        node = 600 * draw.gauss(1, 0.005)
        metrics = [metric("diagnostics_links_count", GPUS * (GPUS - 1))] if figure.part.startswith("link") else []
        for part in parts:
            is_bad = name == names[-1] and (part == figure.part or figure.stage == "training")
            speed = node * draw.gauss(1, 0.001) * (1 if is_bad else draw.gauss(1, error))
            metrics += figures_of(figure, part, speed, bad if is_bad else good)
        evidence.records[name] = {
            "facts": facts_record(name, gpus=GPUS),
            figure.stage: make_record(
                name, figure.stage, metrics=metrics, environment={"torch": "2.11"},
                fingerprints={"training_setup": "llama-1b 8x2048 bf16 compiled"},
            ),
        }  # fmt: skip
        for gpu in evidence.records[name]["facts"]["environment"]["gpus"]:
            gpu.update(name="NVIDIA H200", serial=f"{number}-{gpu['index']}")
    checks = [check for check in SHIPPED if check.name in figure.checks]
    report = verdict.judge(run, evidence, checks, judged_at="2026-11-28T10:00:00Z")
    failed = {
        (node["name"], entry["part"])
        for node in report["nodes"]
        for entry in node["checks"]
        if entry["name"] in figure.checks and entry["verdict"] == "fail"
    }
    wanted = {(names[-1], part) for part in parts} if figure.stage == "training" else {(names[-1], figure.part)}
    return failed == wanted or failed == {(names[-1], "node")}


def cell(figure: SpeedFigure, seconds: float, length: float, share: float, pattern: str, options) -> str:
    """The share of the trials in which the bad part was named; ``-`` for bursts longer than the figure."""
    if length > seconds:
        return "-"
    draw = random.Random(f"{figure.metric} {seconds} {length} {share} {pattern} {options.seed}")  # noqa: S311 - the same laps again, no secret
    found = sum(
        is_found(
            draw, figure, seconds, laps(draw, seconds, figure.lap, length, share, pattern).summary(), options.nodes
        )
        for _ in range(options.trials)
    )
    text = f"{100 * found / options.trials:.3g}"
    return f"**{text}**" if seconds < NEEDED[pattern] * length else text


def growth(figure: SpeedFigure, profile: str, length: float, pattern: str) -> str:
    """By how many minutes the figure's stage has to grow, so that it lasts as long as such bursts need."""
    seconds = figure.seconds(profile)
    diagnostics, training = PROFILES[profile]
    stage = training if figure.stage == "training" else diagnostics
    minutes = max(0.0, NEEDED[pattern] * length / seconds - 1) * stage / 60
    return f"{minutes:,.1f}" if minutes < 10 else f"{minutes:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", choices=PROFILES, default="standard")
    parser.add_argument("--share", type=float, default=0.1, help="of the time that is lost")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--most-seconds", type=float, default=300.0, help="of a figure: one that lasts longer is left out"
    )
    options = parser.parse_args()
    print(f"{options.profile}, {options.share:.0%} lost: found and named, % (periodic / random), of {options.trials}")
    titles = [f"{1000 * length:g} ms" if length < 1 else f"{length:g} s" for length in LENGTHS]
    print("| figure | lasts, s | " + " | ".join(titles) + " |")
    print("|---|---|" + "---|" * len(titles))
    for figure in FIGURES:
        seconds = figure.seconds(options.profile)
        cells = []
        for length in LENGTHS if seconds <= options.most_seconds else ():
            both = [cell(figure, seconds, length, options.share, pattern, options) for pattern in NEEDED]
            cells.append("-" if both == ["-", "-"] else " / ".join(both))
        print(f"| {figure.title} | {seconds:.3g} | " + " | ".join(cells) + " |", flush=True)
    print(f"minutes by which {options.profile} grows, so that a figure lasts {NEEDED} lengths")
    for figure in FIGURES:
        cells = [
            " / ".join(growth(figure, options.profile, length, pattern) for pattern in NEEDED) for length in LENGTHS
        ]
        print(f"| {figure.title} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
