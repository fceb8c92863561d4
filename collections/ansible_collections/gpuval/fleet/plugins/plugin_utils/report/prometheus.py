"""Gauges for the textfile collector of node_exporter or a Pushgateway: a run, and the last verdict on each node. The
text is valid in Prometheus's format and in OpenMetrics alike: `# EOF`, which ends the latter, is a comment of the
former. No sample has a time of its own, as the textfile collector asks."""

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from ..core import units
from ..core.escape import one_line
from ..core.stage_traits import figures_of, traits_of_stages
from ..judge.checks_without_criteria import renumbered

#: (metric, labels, value)
Sample = tuple[str, Mapping[str, str], float]
RUN_VERDICTS = ("PASS", "PARTIAL", "FAIL", "INCOMPLETE")
NODE_VERDICTS = ("PASS", "FAIL", "INCOMPLETE")
#: {exported Prometheus metric: help text}, without the figures of stages.
METRICS = {
    "gpuval_run_info": "The run of this file.",
    "gpuval_run_verdict": "1 for the verdict on the run.",
    "gpuval_run_timestamp_seconds": "When the run finished, in seconds since 1970.",
    "gpuval_node_verdict": "1 for the verdict on the node.",
    "gpuval_node_flaky": "1 for a node that passed only on a retry.",
    "gpuval_node_action": "1 for the action that the node needs, for each part that it names.",
    "gpuval_check_status": "1 for a required check that failed or lacks evidence, and for any check that warns.",
    "gpuval_rack_verdict": "1 for the verdict on the NVLink rack.",
    "gpuval_rack_check_status": "1 for a check of a rack, as gpuval_check_status has it for nodes.",
    "gpuval_stage_duration_seconds": "How long the stage took.",
    "gpuval_health_verdict": "1 for the last verdict on the node over all runs.",
    "gpuval_health_action": "1 for the action that the node needs since that verdict.",
    "gpuval_health_timestamp_seconds": "When the run of that verdict finished, in seconds since 1970.",
}


def help_texts() -> dict[str, str]:
    """{exported metric: help text} of all metrics, figures of stages included."""
    gauges = (figure.gauge for figure in figures_of(traits_of_stages()) if figure.gauge)
    return METRICS | {gauge["name"]: gauge["help"] for gauge in gauges}


def run_text(report: Mapping[str, Any]) -> str:
    run = report["run"]
    samples: list[Sample] = [
        ("gpuval_run_info", {key: run[key] for key in ("run_id", "profile")}, 1),
        *(("gpuval_run_verdict", {"verdict": word}, word == report["verdict"]) for word in RUN_VERDICTS),
        ("gpuval_run_timestamp_seconds", {}, _seconds(run["finished_at"] or run["judged_at"])),
    ]
    for node in report["nodes"]:
        samples += _node_samples(node, run["run_id"])
    for rack in report.get("racks", ()):
        name = {"rack": rack["name"]}
        about = {**name, "sku": rack["sku"] or "", "run_id": run["run_id"]}
        samples += [
            ("gpuval_rack_verdict", {**about, "verdict": word}, word == rack["verdict"]) for word in NODE_VERDICTS
        ]
        samples += _check_samples("gpuval_rack_check_status", name, rack["checks"])
    return _text(samples)


def health_text(nodes: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of gauges for the last verdict on each node; ``nodes``: entries of the health file."""
    samples: list[Sample] = []
    for name, entry in nodes.items():
        node = {"node": name}
        samples += [
            ("gpuval_health_verdict", {**node, "verdict": word}, word == entry["verdict"]) for word in NODE_VERDICTS
        ]
        if entry["action"]:
            labels = {**node, "action": entry["action"], "class": entry["class"] or "", "run_id": entry["run_id"]}
            samples.append(("gpuval_health_action", labels, 1))
        samples.append(("gpuval_health_timestamp_seconds", node, _seconds(entry["finished_at"])))
    return _text(samples)


def _node_samples(node: Mapping[str, Any], run_id: str) -> Iterator[Sample]:
    name = {"node": node["name"]}
    about = {**name, "sku": node.get("catalogue_sku") or node["sku"], "run_id": run_id}
    for word in NODE_VERDICTS:
        yield "gpuval_node_verdict", {**about, "verdict": word}, word == node["verdict"]
    yield "gpuval_node_flaky", name, node["flaky"]
    if action := node.get("action"):
        for part in action["parts"] or ["node"]:
            yield "gpuval_node_action", {**name, "action": action["name"], "class": action["class"], "part": part}, 1
    yield from _check_samples("gpuval_check_status", name, node["checks"])
    for stage in node["stages"]:
        if stage["duration_seconds"] is not None:
            labels = {"stage": stage["name"], "state": stage["state"]}
            yield "gpuval_stage_duration_seconds", {**name, **labels}, stage["duration_seconds"]
    for figure in (figure for figure in figures_of(node["metrics"]) if figure.gauge):
        yield from _figures(node, figure.gauge["name"], figure.stage, figure.metric, figure.gauge["unit"])


def _check_samples(gauge: str, subject: Mapping[str, str], checks: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
    for check in checks:
        if check["verdict"] == "warn" or (check["verdict"] in ("fail", "missing") and check["severity"] == "required"):
            labels = {"stage": check["stage"] or "launch", "check": check["name"], "status": check["verdict"]}
            yield gauge, {**subject, **labels}, 1


def _figures(node: Mapping[str, Any], exported: str, stage: str, name: str, unit: str) -> Iterator[Sample]:
    """Samples of the metric ``name`` of a node or its GPUs as gauge ``exported``, converted to ``unit``; values that
    cannot be converted are skipped."""
    gpus = [] if stage in renumbered(node["checks"]) else node["identity"].get("gpus", [])
    serials = {f"gpu:{gpu['index']}": gpu.get("serial", "") for gpu in gpus}
    for metric in node["metrics"].get(stage, ()):
        scope, value = metric["scope"], metric["value"]
        kind, _, index = scope.partition(":")
        is_exported = metric["name"] == name and value is not None and math.isfinite(value)
        if is_exported and kind in ("node", "gpu") and units.compatible(metric["unit"], unit):
            labels = {"node": node["name"], "gpu": index, "serial": serials.get(scope, "")}
            yield exported, labels, units.to_float(units.convert(value, metric["unit"], unit))


def _text(samples: Iterable[Sample]) -> str:
    """Samples as text. Of those with equal labels only the first is written: a second one makes the file unreadable."""
    helps = help_texts()
    by_metric: dict[str, dict[str, float]] = {name: {} for name in helps}
    for name, labels, value in samples:
        labels_text = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        by_metric[name].setdefault(f"{{{labels_text}}}" if labels_text else "", value)
    lines = []
    for name, values in by_metric.items():
        if values:
            lines += [f"# HELP {name} {helps[name]}", f"# TYPE {name} gauge"]
            lines += [f"{name}{labels} {_number(value)}" for labels, value in values.items()]
    return "\n".join([*lines, "# EOF", ""])


def _seconds(rfc3339: str) -> float:
    return datetime.fromisoformat(rfc3339).timestamp()


def _escaped(text: str) -> str:
    return one_line(text, 300).replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
