"""Fleets with known defects: drawn ones, and replays of what real H200 reported.

A figure is the median of eight repeats, as in the diagnostics. A node differs from others in each of four ways on its
own: its cores, device memory, PCIe and links; what depends on one of them moves together. One repeat in a hundred is
slower by 10 % in the mean. Everything comes from one seed.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import make_run, real_records
from tests.kit.h200 import STAGES, records

#: Memory of a B200 and what is tested of it; H200 has less, which no check minds.
MEMORY = ("gpu_memory_bytes", "diagnostics_memory_tested_bytes")
REPEATS = 8
TAIL_SHARE, TAIL_MEAN = 0.01, 0.1
RACK = 8
DRIVER = "580.159.04"
EFFECTS = (0.02, 0.03, 0.05, 0.10)
SLOW = ("slow GPU", "slow link", "slow all-reduce", "slow node", "bad rack of 8")
MISSING = ("missing metric", "NaN", "missing GPU")
WRONG = ("wrong driver", "corrupted fingerprint")
REAL = Path(__file__).resolve().parents[2] / "tests" / "data" / "h200" / "runs.json"

MATMUL = "diagnostics_matmul_bf16_tflops"
PEER = "diagnostics_peer_bytes_per_second"
ALL_REDUCE = "diagnostics_all_reduce_bus_bytes_per_second"
TRAINING = "training_model_tflops"
COMPUTE = "training_compute_p50_seconds"
FINGERPRINT = "fingerprint_training_sha256"
#: What a figure depends on, and the figures that the two other rules look at. Seconds fall where rates rise.
DEPENDS = {
    **{f"diagnostics_matmul_{kind}_tflops": "cores" for kind in ("bf16", "fp16", "tf32", "fp8")},
    "diagnostics_memory_bytes_per_second": "memory",
    "diagnostics_host_to_device_bytes_per_second": "pcie",
    "diagnostics_device_to_host_bytes_per_second": "pcie",
    PEER: "links",
    **{
        f"diagnostics_{kind}_bus_bytes_per_second": "links"
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
    },
}
JUDGED = (MATMUL, "diagnostics_memory_bytes_per_second", "diagnostics_host_to_device_bytes_per_second",
          "diagnostics_device_to_host_bytes_per_second", PEER, ALL_REDUCE, TRAINING)  # fmt: skip
#: Model, and the factor between its figures and those of the H200 that test_shipped draws.
SKUS = {"h200": ("NVIDIA H200", 1.0), "b200": ("NVIDIA B200", 2.0)}


@dataclass(frozen=True)
class Defect:
    """What is wrong with a node: ``part`` is the one that must be named, where there is one."""

    kind: str
    effect: float | None = None
    part: str | None = None


@dataclass
class Fleet:
    """A run, its evidence and what is wrong in it. ``nominal`` are the figures of a perfect node, by SKU and name."""

    run: dict[str, Any]
    evidence: RunEvidence
    skus: dict[str, str]
    defects: dict[str, Defect]
    nominal: dict[tuple[str, str], float] = field(default_factory=dict)
    #: What the slowest part of a drawn node really makes (cores, memory, PCIe, links), of 1, without noise and defects.
    speeds: dict[str, float] = field(default_factory=dict)


class Noise:
    """Draws the figures of one fleet."""

    def __init__(
        self,
        seed: str,
        node_cv: float,
        repeat: float,
        gpu_cv: float = 0.0,
        tails: int = 0,
        disturbed: float = 0.0,
        disturbed_tails: int = 3,
    ) -> None:
        self.draw = random.Random(seed)  # noqa: S311  (the same fleet again, no secret)
        self.node_cv = node_cv
        self.repeat = repeat
        self.gpu_cv = gpu_cv
        self.tails = tails
        self.disturbed = disturbed
        self.disturbed_tails = disturbed_tails

    def node(self) -> dict[str, float]:
        return {kind: self._differing(self.node_cv) for kind in ("cores", "memory", "pcie", "links")}

    def part(self) -> float:
        """What one part differs by from the others of its node; without such a spread nothing is drawn."""
        return self._differing(self.gpu_cv) if self.gpu_cv else 1.0

    def measurement(self) -> float:
        """What one measurement of a node is off by, in all parts alike, and another one is not: Student's t of
        ``disturbed_tails`` degrees, normal with 0."""
        return self._differing(self.disturbed, self.disturbed_tails) if self.disturbed else 1.0

    def _differing(self, scale: float, tails: int | None = None) -> float:
        """Normal with that deviation; with ``tails`` Student's t of so many degrees with that scale."""
        tails = self.tails if tails is None else tails
        drawn = self.draw.gauss(0, 1)
        if tails:
            drawn /= math.sqrt(self.draw.gammavariate(tails / 2, 2) / tails)
        return max(0.5, 1 + scale * drawn)

    def rate(self) -> tuple[float, float]:
        """The median of the repeats of 1, and their spread."""
        laps = []
        for _ in range(REPEATS):
            lap = self.draw.gauss(1, self.repeat)
            if self.draw.random() < TAIL_SHARE:
                lap /= 1 + self.draw.expovariate(1 / TAIL_MEAN)
            laps.append(lap)
        middle = statistics.median(laps)
        return middle, 1.4826 * statistics.median([abs(lap - middle) for lap in laps]) / middle


def rack_of(number: int) -> str:
    """The label of the rack that a node stands in, by its number."""
    return f"r{number // RACK:03}"


def drawn(
    nodes: int,
    node_cv: float,
    repeat: float,
    seed: int,
    *,
    each: int,
    planted: dict[str, Defect] | None = None,
    skus: Sequence[str] = ("h200", "h200", "h200", "b200", "b200"),
    gpu_cv: float = 0.0,
    tails: int = 0,
    disturbed: float = 0.0,
) -> Fleet:
    """Two SKUs, three fifths and two fifths, of 8 GPUs a node, in racks of 8; ``each`` nodes with every defect.

    With ``planted`` there are these defects and no others; ``skus`` are those of equal shares of the fleet. ``gpu_cv``
    is what parts of a node differ by; with ``tails`` both are Student's t of so many degrees. ``disturbed`` is the
    scale
    of what each measurement of a node is off by.
    """
    noise = Noise(f"drawn {nodes} {node_cv} {repeat} {seed}", node_cv, repeat, gpu_cv, tails, disturbed)
    names = [f"node-{number:04}" for number in range(nodes)]
    if nodes < 8 * RACK:
        skus = skus[:1]  # of two there would be too few of each to compare
    of_node = {name: skus[index * len(skus) // nodes] for index, name in enumerate(names)}
    run = make_run(names, stages=STAGES)
    defects = _plant(noise.draw, of_node, each, gpus=8, racks=nodes >= 1000) if planted is None else planted
    evidence = RunEvidence(launches={name: {"state": "finished", "message": ""} for name in names})
    perfect = records()
    speeds = {}
    for number, name in enumerate(names):
        node = noise.node()
        parts: dict[tuple[str, str], float] = defaultdict(noise.part)
        evidence.records[name] = _node(name, number, of_node[name], perfect, noise, node, parts, defects.get(name))
        speeds[name] = min([*node.values(), *(node[kind] * part for (kind, _), part in parts.items())])
        run["nodes"][name] |= {"versions": {"driver": [DRIVER]}, "labels": {"rack": rack_of(number)}}
    nominal = {
        (sku, one["name"]): _nominal(one["name"], one["value"], factor)
        for sku, (_, factor) in SKUS.items()
        for record in _without_noise(perfect).values()
        for one in record
    }
    return Fleet(run, evidence, of_node, defects, nominal, speeds)


def _without_noise(perfect: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The first part of every figure that is drawn: test_shipped gives it no noise."""
    found: dict[str, list[dict[str, Any]]] = {}
    for stage in ("diagnostics", "training"):
        seen = {}
        for one in perfect[stage]["metrics"]:
            if (one["name"] in DEPENDS or one["name"] in (TRAINING, COMPUTE)) and one["name"] not in seen:
                seen[one["name"]] = one
        found[stage] = list(seen.values())
    return found


def _nominal(name: str, value: float, factor: float) -> float:
    if name.startswith(("diagnostics_host", "diagnostics_device")):
        return value
    return value / factor if name == COMPUTE else value * factor


def _node(
    name: str,
    number: int,
    sku: str,
    perfect: dict[str, Any],
    noise: Noise,
    node: dict[str, float],
    parts: dict[tuple[str, str], float],
    defect: Defect | None,
) -> dict[str, dict[str, Any]]:
    model, factor = SKUS[sku]
    base = {
        one["name"]: _nominal(one["name"], one["value"], factor)
        for its in _without_noise(perfect).values()
        for one in its
    }
    measured: dict[str, float] = defaultdict(noise.measurement)
    by_stage = {}
    speeds: dict[str, float] = {}
    for stage, record in perfect.items():
        figures, spreads = [], {}
        for one in record["metrics"]:
            metric, part = one["name"], one["scope"]
            if metric in DEPENDS:
                middle, spread = noise.rate()
                spreads[_spread_of(metric), part] = spread
                value = base[metric] * node[DEPENDS[metric]] * middle * measured[metric] * _factor(defect, metric, part)
                if part != "node":
                    value *= parts[DEPENDS[metric], part]
                figures.append({**one, "value": value})
            elif metric == COMPUTE:
                middle, _ = noise.rate()
                left = measured[metric] * _factor(defect, COMPUTE, part)
                speeds[part] = node["cores"] * parts["cores", part] * middle * left
                figures.append({**one, "value": base[COMPUTE] / speeds[part]})
            elif metric != TRAINING and not metric.endswith("_spread_ratio") and metric != "training_compute_ratio":
                figures.append({**one, "value": one["value"] * 1.3} if metric in MEMORY else one)
        for (metric, part), spread in spreads.items():
            figures.append({"name": metric, "value": spread, "unit": "ratio", "scope": part})
        if stage == "training":
            slowest, fastest = min(speeds.values()), max(speeds.values())
            for part, speed in speeds.items():  # all wait for the slowest
                figures.append({"name": TRAINING, "value": base[TRAINING] * slowest, "unit": "TFLOP/s", "scope": part})
                ratio = fastest / speed
                figures.append({"name": "training_compute_ratio", "value": ratio, "unit": "ratio", "scope": part})
        by_stage[stage] = {**record, "node": name, "metrics": figures}
    _identity(by_stage, number, model)
    _break(by_stage, defect)
    return by_stage


def _spread_of(metric: str) -> str:
    for end in ("_tflops", "_bus_bytes_per_second", "_bytes_per_second"):
        if metric.endswith(end):
            return metric.removesuffix(end) + "_spread_ratio"
    return metric


def _factor(defect: Defect | None, metric: str, part: str) -> float:
    """What the defect leaves of a rate."""
    if defect is None or defect.effect is None:
        return 1.0
    left = 1 - defect.effect
    cores = metric == COMPUTE or DEPENDS.get(metric) == "cores"
    if defect.kind == "slow GPU":
        return left if cores and part == defect.part else 1.0
    if defect.kind in ("slow node", "bad rack of 8"):
        return left if cores else 1.0
    if defect.kind == "slow link":
        return left if metric == PEER and part == defect.part else 1.0
    return left if metric == ALL_REDUCE else 1.0


def _identity(by_stage: dict[str, dict[str, Any]], number: int, model: str) -> None:
    facts = by_stage["facts"]
    count = len(facts["environment"]["gpus"])
    uuids = [f"GPU-{number:05}-{index}" for index in range(count)]
    gpus = [
        {**gpu, "name": model, "serial": f"{number:06}{gpu['index']}", "uuid": uuids[at], "driver_version": DRIVER}
        for at, gpu in enumerate(facts["environment"]["gpus"])
    ]
    identity = {"machine_id": f"machine-{number:05}", "serial": f"S-{number:05}", "gpu_uuids": uuids}
    facts["environment"] = {**facts["environment"], "gpus": gpus, "identity": identity}


def _break(by_stage: dict[str, dict[str, Any]], defect: Defect | None) -> None:
    """The defects that are not a matter of speed."""
    kind = defect.kind if defect else ""
    record = by_stage["diagnostics"]
    if kind in ("missing metric", "NaN"):
        hit = [one for one in record["metrics"] if (one["name"], one["scope"]) == (MATMUL, defect.part)]
        assert len(hit) == 1
        record["metrics"] = [one for one in record["metrics"] if one is not hit[0]]
        if kind == "NaN":
            record["metrics"].append({**hit[0], "value": None})
    elif kind == "missing GPU":
        last = defect.part
        for one in by_stage.values():
            one["metrics"] = [
                {**figure, "value": figure["value"] - 1} if figure["name"].endswith("_processes_count") else figure
                for figure in one["metrics"]
                if figure["scope"] != last
            ]
    elif kind == "wrong driver":
        facts = by_stage["facts"]
        gpus = [{**gpu, "driver_version": "570.86.15"} for gpu in facts["environment"]["gpus"]]
        facts["environment"] = {**facts["environment"], "gpus": gpus}
    elif kind == "corrupted fingerprint":
        record = by_stage["fingerprint"]
        record["fingerprints"] = {**record["fingerprints"], FINGERPRINT: "0" * 64}


def _plant(draw: random.Random, skus: dict[str, str], each: int, *, gpus: int, racks: bool) -> dict[str, Defect]:
    """Defects on nodes of their own. A rack is eight neighbours of one SKU; in small fleets one, of a drawn effect.

    A fleet that is too small for all of them has one, on one node in eight.
    """
    names = list(skus)
    wanted = [(kind, effect) for kind in SLOW[:4] for effect in EFFECTS] + [(kind, None) for kind in (*MISSING, *WRONG)]
    if len(names) < RACK + 2 * each * len(wanted):
        kind, effect = draw.choice(wanted)
        hit = draw.sample(names, max(1, len(names) // RACK))
        return {name: Defect(kind, effect, _part(draw, kind, gpus)) for name in hit}
    starts = [
        at for at in range(0, len(names) - RACK + 1, RACK) if len({skus[name] for name in names[at : at + RACK]}) == 1
    ]
    draw.shuffle(starts)
    defects: dict[str, Defect] = {}
    for effect in EFFECTS if racks else [draw.choice(EFFECTS)]:
        at = starts.pop()
        defects.update((name, Defect("bad rack of 8", effect)) for name in names[at : at + RACK])
    free = [name for name in names if name not in defects]
    draw.shuffle(free)
    for kind, effect in wanted * each:
        defects[free.pop()] = Defect(kind, effect, _part(draw, kind, gpus))
    return defects


def _part(draw: random.Random, kind: str, gpus: int) -> str | None:
    """The part that a defect of this kind hits."""
    if kind == "missing GPU":
        return f"gpu:{gpus - 1}"
    if kind == "slow link":
        one, other = draw.sample(range(gpus), 2)
        return f"link:gpu{one}>gpu{other}"
    return f"gpu:{draw.randrange(gpus)}" if kind in ("slow GPU", "missing metric", "NaN") else None


def planted(kind: str, effect: float, nodes: int, hit: int, seed: int) -> dict[str, Defect]:
    """One kind of defect on the first nodes of a fleet that ``drawn`` makes, which stand in racks of their own."""
    draw = random.Random(f"planted {kind} {nodes} {seed}")  # noqa: S311  (the same fleet again, no secret)
    return {f"node-{number:04}": Defect(kind, effect, _part(draw, kind, 8)) for number in range(hit)}


def replayed(nodes: int, repeat: float, seed: int, *, each: int) -> Fleet:
    """Nodes with two H200, each one of ten that were measured, with noise of its own on every figure.

    Nodes differ as the measured ones did. Training was measured once, and so is replayed from that.
    """
    noise = Noise(f"replayed {nodes} {repeat} {seed}", 0.0, repeat)
    runs = json.loads(REAL.read_text())
    healthy = [name for name in runs if name == "quick" or name.startswith("clean")]
    names = [f"node-{number:04}" for number in range(nodes)]
    skus = dict.fromkeys(names, "h200")
    run = make_run(names, stages=["facts", "diagnostics", "fingerprint", "training"], gpu_count=2)
    defects = _plant(noise.draw, skus, each, gpus=2, racks=nodes >= 1000)
    evidence = RunEvidence(launches={name: {"state": "finished", "message": ""} for name in names})
    measured: dict[tuple[str, str], list[float]] = {}
    for number, name in enumerate(names):
        records = runs[noise.draw.choice(healthy)]
        by_stage = {stage: records.get(stage) or runs["quick"][stage] for stage in run["nodes"][name]["stages"]}
        evidence.records[name] = _replay(name, number, by_stage, noise, defects.get(name))
        run["nodes"][name] |= {"versions": {"driver": [DRIVER]}, "labels": {"rack": rack_of(number)}}
    for name in healthy:
        for stage in ("diagnostics", "training"):
            for metric, value, *_ in runs[name].get(stage, {"metrics": []})["metrics"]:
                measured.setdefault(("h200", metric), []).append(value)
    nominal = {key: statistics.median(values) for key, values in measured.items() if key[1] in (*DEPENDS, TRAINING)}
    return Fleet(run, evidence, skus, defects, nominal)


def _replay(
    name: str, number: int, records: dict[str, Any], noise: Noise, defect: Defect | None
) -> dict[str, dict[str, Any]]:
    by_stage = {}
    slowest = min(_factor(defect, COMPUTE, f"gpu:{index}") for index in range(2))
    for stage, its in records.items():
        figures = []
        for metric, measured_value, unit, part in its["metrics"]:
            value = measured_value
            if metric in DEPENDS or metric == COMPUTE:
                middle, spread = noise.rate()
                left = middle * _factor(defect, metric, part)
                value = value / left if metric == COMPUTE else value * left
                if metric in DEPENDS:
                    figures.append([_spread_of(metric), spread, "ratio", part])
            elif metric == TRAINING:
                value *= noise.rate()[0] * slowest
            elif metric == "training_tokens_per_second":
                value *= slowest
            figures.append([metric, value, unit, part])
        by_stage[stage] = {**its, "metrics": figures}
    by_stage = real_records(name, by_stage)
    _identity(by_stage, number, "NVIDIA H200")
    _break(by_stage, defect)
    return by_stage


def figures(fleet: Fleet) -> Iterator[tuple[str, str, float]]:
    """(node, metric, figure) of all that the other two rules look at."""
    for name, by_stage in fleet.evidence.records.items():
        for record in by_stage.values():
            for one in record["metrics"]:
                if one["name"] in JUDGED and one["value"] is not None:
                    yield name, one["name"], one["value"]


def under(fleet: Fleet, limits: dict[tuple[str, str], float]) -> set[str]:
    """The nodes with a figure under the limit of its SKU."""
    return {name for name, metric, value in figures(fleet) if value < limits[fleet.skus[name], metric]}


def means(fleet: Fleet) -> dict[tuple[str, str], float]:
    """By SKU and figure the mean of all parts of all nodes."""
    values: dict[tuple[str, str], list[float]] = {}
    for name, metric, value in figures(fleet):
        values.setdefault((fleet.skus[name], metric), []).append(value)
    return {key: statistics.fmean(its) for key, its in values.items()}


def kinds() -> Iterable[tuple[str, float | None]]:
    yield from ((kind, effect) for kind in SLOW for effect in EFFECTS)
    yield from ((kind, None) for kind in (*MISSING, *WRONG))
