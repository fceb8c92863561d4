"""Real records that are healthy, and lies in them: one figure times 1.5 or 3, or all figures of one source together."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.gpuval.fleet.node.gpuval_workloads.vendor_tools import agfhc, collectives, dcgm, hl_qual, rvs
from ansible_collections.gpuval.fleet.node.gpuval_workloads.vendor_tools.answer import ToolAnswer
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import coherence, plausible
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.check import Subject
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.subjects import subject_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import make_run, real_records

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
FACTORS = (1.5, 3.0)
NODE = "node-1"
#: How the programs were called in the profile quick.
SECONDS = {"diagnostics": 15, "fingerprint": 10, "training": 20, "inference": 15}
INFERENCE = ["--concurrency", "4", "--max-tokens", "64"]
#: Runs of another length.
OTHER_SECONDS = ("busy-training",)
TELEMETRY = ("gpu_", "kernel_", "cpu_", "memory_", "telemetry_")

Records = Mapping[str, Mapping[str, Any]]


class HealthyNode(NamedTuple):
    """The records of one real run, by stage."""

    name: str
    records: dict[str, dict[str, Any]]


def healthy() -> list[HealthyNode]:
    """Every real run, as the judge gets it."""
    nodes = []
    for file in ("h200/runs.json", "h200/one_gpu.json", "cpu/runs.json"):
        document = json.loads((DATA / file).read_text())
        runs = {"one_gpu": document} if "facts" in document else document
        nodes += [HealthyNode(f"{file.partition('/')[0]} {name}", _records(run, name)) for name, run in runs.items()]
    facts = nodes[0].records["facts"]
    for name, kept in json.loads((DATA / "h200/gangs.json").read_text()).items():
        stage = "collective" if "collective" in name else "deepspeed"
        nodes.append(HealthyNode(f"h200 {name}", {"facts": facts, **_records({stage: kept}, name)}))
    return nodes + [HealthyNode(f"sample {name}", _of_tool(answer)) for name, answer in _samples().items()]


def _samples() -> dict[str, ToolAnswer]:
    """What vendors' tools print on healthy nodes, MI and Gaudi among them."""

    def text(name: str) -> str:
        return (DATA / "vendor_tools" / name).read_text()

    return {
        "dcgm3": dcgm.judge(text("dcgm3_level3.json"), None, 3),
        "dcgm4": dcgm.judge(text("dcgm4_level2.json"), None),
        "agfhc": agfhc.judge(text("agfhc_all_lvl1.txt")),
        "rvs": rvs.judge(rvs.parse(text("rvs_level3.txt")), None),
        "hl_qual": hl_qual.judge(text("hl_qual.txt"), None),
        **{
            f"{tool}_tests": collectives.judge(
                collectives.parse(text(f"{tool}_tests_all_reduce.txt")), "all_reduce", None, f"{tool}_tests"
            )
            for tool in ("nccl", "rccl")
        },
    }


def _of_tool(answer: ToolAnswer) -> dict[str, dict[str, Any]]:
    figures = [[figure.name, figure.value, figure.unit, figure.scope] for figure in answer.figures]
    counts = [[f"vendor_tools_{name}_count", value, "count", "node"] for name, value in (("run", 1), ("failed", 0))]
    return real_records(NODE, {"vendor_tools": {"metrics": [*figures, *counts]}})


def _records(run: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """The records of a run. Real H200 lack their commands, since only what is judged was kept: they are known."""
    kept = dict(run)
    for stage, seconds in SECONDS.items():
        if stage in kept and "command" not in kept[stage] and name not in OTHER_SECONDS:
            command = ["python", "--seconds", str(seconds), *(INFERENCE if stage == "inference" else [])]
            kept[stage] = {**kept[stage], "command": command}
    records = real_records(NODE, kept)
    for record in records.values():
        telemetry = {"source": "nvml", "period_seconds": 1.0, **record["environment"].get("telemetry", {})}
        record["environment"] = {**record["environment"], "telemetry": telemetry}
    return records


def subject(records: Records) -> Subject:
    return subject_of(make_run((NODE,), stages=list(records)), NODE, RunEvidence(records={NODE: dict(records)}))


def violated(records: Records) -> set[str]:
    """The rules that the records of a node break, and ``plausible`` where a figure is out of its range."""
    node, names = subject(records), set()
    for stage, record in records.items():
        names |= {str(entry["value"]) for entry in coherence.checks(node, stage)}
        if plausible.checks(NODE, stage, record, node.catalogue_sku):
            names.add("plausible")
    return names


def scaled(records: Records, stage: str, change: Callable[[Mapping[str, Any]], float]) -> Records:
    """The records in which ``change`` gives the new value of each figure of the stage that is not 0."""
    metrics = [
        {**metric, "value": change(metric)} if metric["value"] else metric for metric in records[stage]["metrics"]
    ]
    return {**records, stage: {**records[stage], "metrics": metrics}}


@dataclass
class RuleRecord:
    """Of one rule: its ratios of healthy records, and whether lies towards its limits were found, by their factor."""

    ratios: list[float] = field(default_factory=list)
    lies: dict[float, list[bool]] = field(default_factory=lambda: defaultdict(list))


def measure() -> dict[str, RuleRecord]:
    """By rule what healthy records and single figures that lie make of it."""
    table: dict[str, RuleRecord] = defaultdict(RuleRecord)
    for node in healthy():
        if "busy" in node.name:
            continue  # another process used its GPUs
        true = subject(node.records)
        for stage, record in node.records.items():
            figures = coherence.StageFigures(true, stage, record)
            for rule in figures.rules():
                for part in figures.parts_of(rule):
                    ratio = figures.ratio(rule, part)
                    if ratio is not None:
                        table[rule.name].ratios.append(ratio)
                        for factor, lie in _lies_towards_limits(node.records, stage, rule, part, ratio):
                            table[rule.name].lies[factor].append(not rule.allows(lie))
    return table


def _lies_towards_limits(
    records: Records, stage: str, rule: coherence.CoherenceRule, part: str, true: float
) -> Iterator[tuple[float, float]]:
    """Factors, and the ratio that a figure of the rule makes of it, times or over the factor."""
    for of_stage, name, scope in _figures_read(records, stage, rule, part):
        for factor in FACTORS:
            for times in (factor, 1 / factor):
                lie = scaled(
                    records,
                    of_stage,
                    lambda metric, times=times, name=name, scope=scope: (
                        metric["value"] * (times if (metric["name"], metric["scope"]) == (name, scope) else 1)
                    ),
                )
                ratio = coherence.StageFigures(subject(lie), stage, lie[stage]).ratio(rule, part)
                towards = (ratio > true and math.isfinite(rule.high)) or (ratio < true and math.isfinite(rule.low))
                if towards:
                    yield factor, ratio


def _figures_read(records: Records, stage: str, rule: coherence.CoherenceRule, part: str) -> list[tuple[str, str, str]]:
    """Figures, other than 0, that a rule reads for a part: stage, name, scope."""
    index = part.partition(":")[2]
    read = set()
    for term in rule.terms:
        for metric in records.get(term.stage or stage, {"metrics": []})["metrics"]:
            fits = metric["scope"] in (part, f"gpu:{index}", f"rank:{index}") or metric["scope"] == "node"
            if metric["name"] == term.name and metric["value"] and (fits or term.gather):
                read.add((term.stage or stage, metric["name"], metric["scope"]))
    return sorted(read)


def rows(table: dict[str, RuleRecord]) -> list[list[str]]:
    """The table of the documentation: a rule, its healthy ratios, its limits, shares of lies found by factor."""
    lines = []
    for rule in coherence.rules():
        of_rule = table.get(rule.name)
        limits = " to ".join(f"{limit:g}" if math.isfinite(limit) else "-" for limit in (rule.low, rule.high))
        ratios = f"{min(of_rule.ratios):.3g} to {max(of_rule.ratios):.3g}" if of_rule else "none"
        lines.append([rule.name, rule.says, ratios, limits, *(_share(of_rule, factor) for factor in FACTORS)])
    return lines


def _share(of_rule: RuleRecord | None, factor: float) -> str:
    lies = of_rule.lies.get(factor) if of_rule else None
    return f"{100 * sum(lies) / len(lies):.0f} %" if lies else "-"


def single_lies(factor: float) -> dict[str, tuple[int, int]]:
    """By stage how many figures there are and how many lies in them any rule or range finds, up and down."""
    counts: dict[str, list[bool]] = defaultdict(list)
    for node in healthy():
        for stage, record in node.records.items():
            for name, scope in {
                (m["name"], m["scope"]) for m in record["metrics"] if m["value"] and m["unit"] != "count"
            }:
                for times in (factor, 1 / factor):
                    lie = scaled(
                        node.records,
                        stage,
                        lambda metric, times=times, name=name, scope=scope: (
                            metric["value"] * (times if (metric["name"], metric["scope"]) == (name, scope) else 1)
                        ),
                    )
                    counts[stage].append(bool(violated(lie)))
    return {stage: (sum(lies), len(lies)) for stage, lies in counts.items()}


def consistent_lies(node: HealthyNode, factor: float) -> Iterator[tuple[str, set[str]]]:
    """All figures of one source scaled together: its name, and what contradicts it."""

    def speeds(metric: Mapping[str, Any], times: float) -> float:
        if metric["name"].startswith(TELEMETRY):
            return metric["value"]
        if metric["unit"].endswith(("/s", "_per_second")):
            return metric["value"] * times
        return metric["value"] / times if metric["unit"] == "seconds" else metric["value"]

    def telemetry(metric: Mapping[str, Any], times: float) -> float:
        is_reading = metric["name"].startswith("gpu_") and metric["unit"] in ("watts", "celsius", "bytes", "hertz")
        return metric["value"] * times if is_reading else metric["value"]

    def sizes(metric: Mapping[str, Any], times: float) -> float:
        is_size = metric["unit"] == "bytes" and not metric["name"].startswith(TELEMETRY)
        return metric["value"] * times if is_size or metric["unit"] == "bytes/s" else metric["value"]

    for stage in node.records:
        for source in (speeds, telemetry, sizes):
            for way, times in (("up", factor), ("down", 1 / factor)):
                lie = scaled(node.records, stage, lambda metric, times=times, source=source: source(metric, times))
                if lie[stage]["metrics"] != node.records[stage]["metrics"]:
                    yield f"{stage} | {source.__name__} {way}", violated(lie)
