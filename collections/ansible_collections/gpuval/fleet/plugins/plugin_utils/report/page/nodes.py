"""The table of nodes: verdict, hardware and main figures of every node, and equal failures together. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.text import some_of
from ...judge.verdict import headline
from ..problems import action_text, part_text, without
from ..summary import decisive

#: Stage and metric of the columns; a metric of several parts is shown by its median.
FIGURES = (
    ("diagnostics", "diagnostics_matmul_bf16_tflops"),
    ("diagnostics", "diagnostics_memory_bytes_per_second"),
    ("training", "training_tokens_per_second"),
    ("training", "training_samples_per_second"),
    ("training", "training_model_tflops"),
    ("loading", "loading_bytes_per_second"),
    ("inference", "inference_tokens_per_second"),
)


#: Value and unit.
Measured = tuple[float, str]


@dataclass(frozen=True)
class Row:
    """A node with its hardware and rack as text; ``cells`` are its figures, None where it has none."""

    node: Mapping[str, Any]
    hardware: str
    rack: str
    cells: list[Measured | None]


@dataclass(frozen=True)
class NodeTable:
    """``columns`` are stage and metric; ``medians`` those of the fleet, with their unit."""

    columns: list[tuple[str, str]]
    rows: list[Row]
    medians: list[Measured]


@dataclass(frozen=True)
class Cause:
    """Nodes with one verdict and class; ``example`` is the reason of the first, ``racks`` count them by rack."""

    verdict: str
    word: str
    names: list[str]
    racks: Counter[str]
    actions: list[str]
    example: str


@dataclass(frozen=True)
class Failure:
    """Nodes that are not accepted for the same reasons; ``node`` is the first of them."""

    node: Mapping[str, Any]
    names: list[str]

    def own(self, text: str) -> str:
        """A text of the first node, for all of them."""
        return text if len(self.names) == 1 else without(self.names[0], text).replace("{node}", "NODE")


def table(report: Mapping[str, Any]) -> NodeTable:
    """Columns that no node has are left out."""
    found = [figures(node) for node in report["nodes"]]
    columns = [key for key in FIGURES if any(key in one for one in found)]
    rows = [
        Row(node, _hardware(node), rack(node), [one.get(key) for key in columns])
        for node, one in zip(report["nodes"], found, strict=True)
    ]
    medians = []
    for key in columns:
        values = [one[key] for one in found if key in one]
        medians.append((statistics.median(value for value, _ in values), values[0][1]))
    return NodeTable(columns, rows, medians)


def figures(node: Mapping[str, Any]) -> dict[tuple[str, str], Measured]:
    """The main figures of a node, of several GPUs the median."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for stage in dict.fromkeys(stage for stage, _ in FIGURES):
        for metric in node["metrics"].get(stage, ()):
            if metric["value"] is not None and (stage, metric["name"]) in FIGURES:
                found.setdefault((stage, metric["name"]), []).append(metric)
    return {
        key: (statistics.median(one["value"] for one in metrics), metrics[0]["unit"])
        for key, metrics in found.items()
        if len({one["unit"] for one in metrics}) == 1
    }


def rack(node: Mapping[str, Any]) -> str:
    """The rack by the node's labels: `rack`, or one that ends so (`topology.example.com/rack`). Empty without one."""
    labels = node.get("labels", {})
    return labels.get("rack") or next((labels[name] for name in sorted(labels) if name.endswith("rack")), "")


def causes(report: Mapping[str, Any]) -> list[Cause]:
    """Nodes by verdict and class of failure: at a hundred nodes the pattern matters more than the names."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for node in report["nodes"]:
        if node["verdict"] != "PASS":
            found.setdefault((node["verdict"], node.get("class") or "unknown"), []).append(node)
    ordered = sorted(found.items(), key=lambda item: (item[0][0] != "FAIL", -len(item[1]), item[0][1]))
    return [_cause(verdict, word, nodes) for (verdict, word), nodes in ordered]


def _cause(verdict: str, word: str, nodes: Sequence[Mapping[str, Any]]) -> Cause:
    racks = Counter(filter(None, map(rack, nodes)))
    actions = Counter(node["action"]["name"] for node in nodes if node.get("action"))
    check, name = headline(nodes[0]), nodes[0]["name"]
    example = without(name, check["reason"]).replace("{node}", "NODE") if check else "no required check passed"
    return Cause(
        verdict, word, [node["name"] for node in nodes], racks, [one for one, _ in actions.most_common()], example
    )


def not_tested(report: Mapping[str, Any]) -> list[str]:
    """What has no evidence, in lines: nodes, stages of nodes, and criteria."""
    stages: dict[str, list[str]] = {}
    never = []
    for node in report["nodes"]:
        ran = [stage for stage in node["stages"] if stage["started_at"] is not None]
        if not ran:
            never.append(node["name"])
            continue
        for stage in node["stages"]:
            if stage not in ran:
                stages.setdefault(stage["name"], []).append(node["name"])
    lines = [f"{count(len(never), 'node')} ran no stage: {some_of(never, 6)}"] if never else []
    lines += [f"Stage {stage} did not run on {some_of(names, 6)}" for stage, names in stages.items()]
    unreported = report["fleet"].get("coverage", {}).get("unreported", ())
    if unreported:
        lines.append(f"{count(len(unreported), 'criterion', 'criteria')} without a figure from any node")
    if report["run"]["narrowed_by"]:
        lines.append("The run was narrowed: nodes or stages were left out")
    return lines


def count(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


def _hardware(node: Mapping[str, Any]) -> str:
    counted = Counter(gpu.get("model", "GPU") for gpu in node["identity"].get("gpus", []))
    return ", ".join(f"{count} x {model}" for model, count in counted.items()) or node["accelerator"]


def failures(bad: Sequence[Mapping[str, Any]]) -> list[Failure]:
    """Nodes with the same decisive checks and action, their own names aside, in the order of the first of them."""
    found: dict[Any, Failure] = {}
    for node in bad:
        name = node["name"]
        shown = [
            (check["name"], part_text(node, check["part"]), without(name, check["reason"])) for check in decisive(node)
        ]
        found.setdefault((node["verdict"], action_text(node), *shown), Failure(node, [])).names.append(name)
    return list(found.values())
