"""How often a planted fault is named, and a healthy node is not, in whole fleets (docs/design/statistics.md).

    python benchmarks/detection/goals.py --fleets 100

Nodes of eight H200 report every metric of some stages (healthy.py), through intake, to the product's own judge with
the shipped criteria. What nodes differ by and what one measurement is off by are drawn apart; either may have the tails
of Student's t with 3 degrees. What the watch would measure once more is drawn again (unless ``--once``), with the same
nodes and another error of measurement.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT)]

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.text import pattern_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import sku_catalogue, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.kinds import KINDS, JudgeContext
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import evidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence, take_record
from fleets import Noise, rack_of
from healthy import GPUS, SPREADS, _source, _spread, records

from tests.kit.builders import LAUNCHED, NONCE, SHIPPED, TIME, make_run
from tests.kit.h200 import setups_of

SKU = "h200"
#: Of every setting what repeats of one measurement, GPUs of a node and measurements of a node differ by.
NORMAL = {"repeat": 0.003, "gpu_cv": 0.002, "disturbed": 0.005, "disturbed_tails": 0}
SETTINGS: dict[str, dict[str, Any]] = {
    "normal": NORMAL,
    "nodes t3": {**NORMAL, "tails": 3},
    "measurements t3": {**NORMAL, "disturbed_tails": 3},
}
#: The margin of the comparisons of nodes: a part that is really slower by less is healthy.
MARGIN = 0.03
FIGURE_STAGES = ("facts", "diagnostics", "fingerprint", "training")
ALL_STAGES = (*FIGURE_STAGES, "loading", "inference", "storage", "endpoints", "rdma")


@dataclass(frozen=True)
class Fault:
    """What rates are left of some figures of one part (or of all), on ``nodes`` nodes; 0 is all of the fleet."""

    title: str
    goal: str
    metrics: tuple[str, ...]
    left: float
    part: str = ""
    nodes: int = 1
    stages: tuple[str, ...] = FIGURE_STAGES
    sizes: tuple[int, ...] = (8, 16, 64)
    #: Rates are so much of what is known of the SKU, not those of healthy.py.
    known: float = 0.0
    #: The nodes have a group of fingerprints of their own.
    own_driver: bool = False
    #: The second measurement has none of it.
    once: bool = False


TRAINING = ("training_model_tflops", "training_tokens_per_second", "training_samples_per_second",
            "training_step_*_seconds", "training_compute_p50_seconds")  # fmt: skip
CORES = ("*_tflops", *TRAINING)
COPIES = ("diagnostics_host_to_device_bytes_per_second", "diagnostics_device_to_host_bytes_per_second")
ALL_REDUCE = ("diagnostics_all_reduce_bus_bytes_per_second",)
LINK = ("diagnostics_peer_bytes_per_second",)
LOADING, INFERENCE = ("loading_*_seconds", "loading_bytes_per_second"), (
    "inference_tokens_per_second", "inference_requests_per_second", "inference_ttft_*", "inference_itl_*")  # fmt: skip
FAULTS = (
    Fault("training alone, -5 %", "FAIL 95 from 16", TRAINING, 0.95),
    Fault("all-reduce, -5 %", "FAIL 95 from 16", ALL_REDUCE, 0.95),
    Fault("link, -10 %", "FAIL 99", LINK, 0.9, part="link:gpu2>gpu5"),
    Fault("GPU, -5 %", "FAIL 99", CORES, 0.95, part="gpu:3"),
    Fault("node's cores, -5 %", "FAIL 99", CORES, 0.95),
    Fault("GPU, -5 %, once", "not silent", CORES, 0.95, part="gpu:3", once=True),
    Fault("node's cores, -6 %, once", "not silent", CORES, 0.94, once=True),
    Fault("loading, -60 %", "named 99", LOADING, 0.4, stages=("facts", "loading")),
    Fault("inference, -20 %", "named 99", INFERENCE, 0.8, stages=("facts", "inference")),
    Fault("whole batch, cores -5 % of known", "warned 100", CORES, 0.95, nodes=0, sizes=(8,), known=1.0),
    Fault("one node alone, training -8.6 %", "warned 100", TRAINING, 0.914, sizes=(1,), known=1.0),
    Fault("one node alone, all-reduce -4.5 %", "warned 100", ALL_REDUCE, 0.955, sizes=(1,), known=1.0),
    Fault("one node alone, copies -8 %", "warned 100", COPIES, 0.92, sizes=(1,), known=1.0),
    Fault("healthy, alone with its driver", "PASS, warned", (), 1.0, own_driver=True),
)


@dataclass
class Node:
    """One node of a fleet: what it really makes, by source and part, of 1."""

    name: str
    number: int
    levels: dict[str, float]
    parts: dict[Any, float] = field(default_factory=dict)
    fault: Fault | None = None

    def really_makes(self, metric: str, part: str) -> float:
        source = _source(metric)
        level = 1 + _spread(metric) / SPREADS[source] * (self.levels[source] - 1)
        own = [factor for (of, name), factor in self.parts.items() if of == source and part in ("node", name)]
        return level * min(own, default=1.0)


class Fleet:
    """Nodes, their run and its evidence."""

    def __init__(self, size: int, setting: Mapping[str, Any], stages: Sequence[str], seed: str, fault: Fault | None):
        self.noise = Noise(f"goals {seed}", 1.0, **setting)
        self.stages = stages
        names = [f"node-{number:03}" for number in range(size)]
        self.run = make_run(names, stages=stages, sku=SKU, gpu_count=GPUS, setups=setups_of(nvls=False))
        self.evidence = RunEvidence(launches={name: dict(LAUNCHED) for name in names})
        hit = size if fault and not fault.nodes else 1 if size < 64 or (fault and fault.own_driver) else 4
        self.nodes = {}
        for number, name in enumerate(names):
            self.run["nodes"][name] |= {"labels": {"rack": rack_of(number)}}
            levels = {source: self.noise._differing(spread) for source, spread in SPREADS.items()}
            self.nodes[name] = Node(name, number, levels, fault=fault if number < hit else None)
            if fault and number < hit and fault.known:
                self.nodes[name].levels = {source: max(1.0, level) for source, level in levels.items()}
            self.put(name, self.measured(name))

    def measured(self, name: str, again: bool = False) -> dict[str, dict[str, Any]]:
        node = self.nodes[name]
        found = records(name, node.number, SKU, self.noise, node.levels, node.parts, self.stages)
        if "diagnostics" in found:
            found["diagnostics"]["fingerprints"]["diagnostics_nvls"] = "off"
        for stage, record in found.items():
            record["exit_code"] = 0
            for metric in record["metrics"]:
                _apply(None if again and node.fault and node.fault.once else node.fault, metric)
            if node.fault and node.fault.own_driver and stage == "fingerprint":
                record["environment"]["fingerprint_group"] = "H200 torch 2.11 CUDA 13 driver 590"
        return found

    def put(self, name: str, found: Mapping[str, dict[str, Any]]) -> None:
        for stage, record in found.items():
            key = f"{self.run['folder']}/records/{stage}/{name}.json"
            accepted = take_record(self.evidence, self.run, key, json.dumps(record).encode())
            assert accepted, self.evidence.problems[-1]
            accepted["exit_code"] = None  # each figure scatters by itself here, so that none is held against another

    def really_makes(self, metric: str) -> float:
        """The median of the nodes."""
        return statistics.median(node.really_makes(metric, "whole") for node in self.nodes.values())

    def judge(self) -> dict[str, dict[str, Any]]:
        report = verdict.judge(self.run, self.evidence, SHIPPED, judged_at=TIME, for_report=False)
        return {node["name"]: node for node in report["nodes"]}

    def measure_again(self) -> int:
        """What the watch does once all nodes are done. Returns how many nodes were measured again."""
        chosen = verdict.to_measure_again(self.run, self.evidence, JudgeContext(SHIPPED), list(self.nodes))
        for name, stages in chosen.items():
            found = self.measured(name, again=True)
            for stage in stages:
                first = {**self.evidence.records[name][stage], "exit_code": 0}
                found[stage] |= {"attempt": 2, "attempts": [first], "nonce": evidence.nonce_of(NONCE, 2)}
            self.put(name, {stage: found[stage] for stage in stages})
        return len(chosen)


def _apply(fault: Fault | None, metric: dict[str, Any]) -> None:
    if fault is None or not any(pattern_of(name).fullmatch(metric["name"]) for name in fault.metrics):
        return
    if fault.part and metric["scope"] != fault.part:
        return
    if fault.known:
        known = KNOWN.get(metric["name"])
        if known is not None:
            metric["value"] *= fault.known * known / _usual(metric["name"])
    metric["value"] = metric["value"] / fault.left if metric["unit"] == "seconds" else metric["value"] * fault.left


#: What healthy H200 made (sources of skus/h200.yml), whether or not the catalogue says so.
KNOWN = {"training_model_tflops": 450, "diagnostics_all_reduce_bus_bytes_per_second": 3.665e11,
         "diagnostics_host_to_device_bytes_per_second": 5.52e10, "diagnostics_device_to_host_bytes_per_second": 5.52e10,
         **{name: figure for (name, _), figure in sku_catalogue.by_name(SKU).measured.items()}}  # fmt: skip


def _usual(metric: str) -> float:
    from healthy import nominal

    stage = "training" if metric.startswith("training") else "diagnostics"
    return nominal(stage, metric, SKU)[0]


def named(node: Mapping[str, Any], fault: Fault, *verdicts: str) -> bool:
    """Whether a check of these verdicts names the part, by the faulty figures or by what waits for them."""
    stages = {stage for stage in fault.stages if stage != "facts"}
    return any(
        check["verdict"] in verdicts and check["stage"] in stages
        and (not fault.metrics or any(pattern_of(name).fullmatch(check["metric"] or "") for name in fault.metrics))
        and (not fault.part or fault.part in (check["part"], check.get("cause")))
        for check in node["checks"]
    )  # fmt: skip


def share(count: int, of: int) -> str:
    return f"{100 * count / of:.3g}" if of else "-"


def judged(fleet: Fleet, options: argparse.Namespace, count: Counter[Any]) -> dict[str, dict[str, Any]]:
    if not options.once:
        count["again"] += fleet.measure_again()
    return fleet.judge()


def power(options: argparse.Namespace) -> None:
    print("| fault | goal, % | nodes | drawn | FAIL, % | INCOMPLETE, % | PASS, warned, % | silent, % |")
    print("|---|---|---|---|---|---|---|---|")
    for fault in FAULTS:
        if options.only not in fault.title:
            continue
        for size in (size for size in fault.sizes if size in options.sizes or size == 1):
            count: Counter[str] = Counter()
            for seed in range(max(1, options.fleets * 16 // max(size, 16))):
                fleet = Fleet(size, SETTINGS["normal"], fault.stages, f"{fault.title} {size} {seed}", fault)
                nodes = judged(fleet, options, Counter())
                gc.collect()
                for name, node in nodes.items():
                    if fleet.nodes[name].fault is None:
                        continue
                    by_name = named(node, fault, "fail", "missing", "warn")
                    count[node["verdict"] if node["verdict"] != "PASS" else "warned" if by_name else "silent"] += 1
            total = count.total()
            shares = " | ".join(share(count[what], total) for what in ("FAIL", "INCOMPLETE", "warned", "silent"))
            print(f"| {fault.title} | {fault.goal} | {size} | {total} | {shares} |", flush=True)


def healthy(options: argparse.Namespace) -> None:
    print("| healthy fleets | nodes | drawn | FAIL, % | of these within 3 % | INCOMPLETE, % | warned, % | within 3 % | "
          "again, % | really 5 % slow: drawn | of these FAIL | silent |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for title, setting in SETTINGS.items():
        if options.only not in title:
            continue
        for size in options.sizes:
            count: Counter[str] = Counter()
            for seed in options.seeds or range(max(1, options.fleets * 16 // size)):
                fleet = Fleet(size, setting, ALL_STAGES, f"healthy {title} {size} {seed}", None)
                for name, node in judged(fleet, options, count).items():
                    count.update(_of_healthy(node, fleet.nodes[name], fleet))
                gc.collect()
            columns = ("FAIL", "wrong", "INCOMPLETE", "warned", "warned within", "again")
            rates = [share(count[what], count["nodes"]) for what in columns]
            slow = [str(count["slow"]), share(count["slow FAIL"], count["slow"]), share(count["silent"], count["slow"])]
            print(f"| {title} | {size} | {count['nodes']} | {' | '.join(rates + slow)} |", flush=True)
            if options.explain:
                checks = {what[1:]: number for what, number in count.items() if isinstance(what, tuple)}
                print("   ", sorted(checks.items(), key=lambda pair: -pair[1])[:10])


def _of_healthy(node: Mapping[str, Any], truth: Node, fleet: Fleet) -> Counter[Any]:
    required = [check for check in node["checks"] if check["severity"] == "required"]
    failed = [check for check in required if check["verdict"] == "fail" and KINDS[check["kind"]].compares]
    warnings = [check for check in node["checks"] if check["verdict"] == "warn" and check["metric"]]

    def level(check: Mapping[str, Any]) -> float:
        made = truth.really_makes(check["metric"], check["part"])
        return made / fleet.really_makes(check["metric"])

    slow = min(truth.levels[source] for source in ("cores", "memory", "pcie", "links")) < 0.95
    open_checks = {(check["verdict"], check["name"]) for check in node["checks"]
                   if check["verdict"] in ("fail", "missing", "warn")}  # fmt: skip
    warned = any(verdict_ == "warn" for verdict_, _ in open_checks)
    return Counter({
        "nodes": 1, node["verdict"]: 1, "warned": warned, "wrong": min(map(level, failed), default=0) > 1 - MARGIN,
        "warned within": any(abs(1 - level(check)) < MARGIN for check in warnings),
        "slow": slow, "slow FAIL": slow and node["verdict"] == "FAIL",
        "silent": slow and node["verdict"] == "PASS" and not warned,
        **{("open", *one): 1 for one in open_checks},
    })  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=40, help="of 8 nodes, with a fault; of larger ones fewer")
    parser.add_argument("--only", default="", help="rows whose title has this text")
    parser.add_argument("--tables", default="power,healthy")
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[8, 16, 64])
    parser.add_argument("--once", action="store_true", help="nothing is measured again")
    parser.add_argument("--explain", action="store_true", help="which checks were open on healthy nodes")
    parser.add_argument("--seeds", type=lambda text: range(*map(int, text.split(":"))), help="healthy fleets FIRST:END")
    options = parser.parse_args()
    gc.disable()
    for name in options.tables.split(","):
        {"power": power, "healthy": healthy}[name](options)
        print()


if __name__ == "__main__":
    main()
