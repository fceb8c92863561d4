"""Looks up one node in a report.json, for plays that read its metrics as facts."""

import json
from collections.abc import Mapping
from typing import Any

from ..records import report_file


def find_node(text: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Find the node ``name`` in the text of a report.json: (report without its nodes, node). Only the node's line is
    parsed where the layout allows it, since a play may ask for a thousand hosts. Raises ValueError, or KeyError."""
    lines = text.split("\n")
    start = f'{{"name":{json.dumps(name, ensure_ascii=False)},'
    matches = [line for line in lines if line.startswith(start)]
    if len(matches) == 1 and '"nodes": [' in lines:
        end = lines.index('"nodes": [')
        head = json.loads("\n".join(lines[:end]).rstrip().rstrip(",") + "}")
        return head, report_file.unpack_node(json.loads(matches[0].removesuffix(",")), head)
    report = json.loads(text)
    nodes = {node["name"]: node for node in report.pop("nodes")}
    return report, report_file.unpack_node(nodes[name], report)


def node_facts(report: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    """The value of ``ansible_facts.gpuval`` for one node of a report, which the module ``metrics_facts`` returns."""
    metrics = [metric for stage in node["stages"] for metric in node["metrics"].get(stage["name"], [])]
    parts: dict[str, dict[str, Any]] = {}
    for metric in metrics:
        if metric["scope"] != "node":
            parts.setdefault(metric["name"], {})[metric["scope"]] = metric["value"]
    about_stage = ("state", "message", "attempt", "started_at", "finished_at", "duration_seconds")
    return {
        "run_id": report["run"]["run_id"], "run_verdict": report["verdict"], "verdict": node["verdict"],
        "class": node.get("class"), "action": node["action"]["name"] if node.get("action") else None,
        "flaky": node["flaky"], "accelerator": node["accelerator"],
        "metrics": {metric["name"]: metric["value"] for metric in metrics if metric["scope"] == "node"},
        "parts": parts,
        "units": {metric["name"]: metric["unit"] for metric in metrics},
        "stages": {stage["name"]: {key: stage[key] for key in about_stage} for stage in node["stages"]},
        "failed_checks": [
            {key: check[key] for key in ("name", "stage", "verdict", "part", "reason", "remedy")}
            for check in node["checks"]
            if check["severity"] == "required" and check["verdict"] in ("fail", "missing")
        ],
    }  # fmt: skip
