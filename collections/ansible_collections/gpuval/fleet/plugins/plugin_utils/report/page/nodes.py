"""The table of nodes: verdict, hardware and main figures of every node, and equal failures together. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core import units
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


@dataclass(frozen=True)
class NodeTable:
    """``columns`` are stage and metric; ``rows`` the hardware and the figures of each node, as text."""

    columns: list[tuple[str, str]]
    rows: list[tuple[Mapping[str, Any], str, list[str]]]


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
    found = [_figures(node) for node in report["nodes"]]
    columns = [key for key in FIGURES if any(key in one for one in found)]
    rows = [
        (node, _hardware(node), [one.get(key, "") for key in columns])
        for node, one in zip(report["nodes"], found, strict=True)
    ]
    return NodeTable(columns, rows)


def _figures(node: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for stage in dict.fromkeys(stage for stage, _ in FIGURES):
        for metric in node["metrics"].get(stage, ()):
            if metric["value"] is not None and (stage, metric["name"]) in FIGURES:
                found.setdefault((stage, metric["name"]), []).append(metric)
    return {
        key: units.human(statistics.median(one["value"] for one in metrics), metrics[0]["unit"]).partition(" (")[0]
        for key, metrics in found.items()
        if len({one["unit"] for one in metrics}) == 1
    }


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
