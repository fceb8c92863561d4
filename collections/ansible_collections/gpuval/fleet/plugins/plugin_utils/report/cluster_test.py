"""cluster_test_report.json (gpuval.cluster_test/1): a run in brief, in the layout of one-container acceptance tests."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from ..core.stage_traits import figures_of
from .summary import reasons

STATUS = {"PASS": "success", "PARTIAL": "success", "FAIL": "failure", "INCOMPLETE": "incomplete"}
_dump = json.JSONEncoder(allow_nan=False).encode


def cluster_test_json(report: Mapping[str, Any]) -> Iterator[str]:
    """The text of cluster_test_report.json in pieces: `validation` and `performance` have one line for each node."""
    run, nodes = report["run"], report["nodes"]
    ended_at = datetime.fromisoformat(run["finished_at"] or run["judged_at"]).astimezone(UTC)
    processes = (_figure(node, "training", "training_processes_count") or _gpu_count(node) for node in nodes)
    yield f'{{"test_timestamp": "{ended_at:%Y-%m-%d %H:%M:%S}",\n"world_size": {sum(map(int, processes))},\n'
    yield from _lines("validation", ((node["name"], _validation(node)) for node in nodes))
    yield from _lines("performance", ((node["name"], _performance(node)) for node in nodes))
    acceptance = {"status": report["verdict"], "summary": report["summary"]}
    yield f'"status": "{STATUS[report["verdict"]]}",\n"acceptance": {_dump(acceptance)}}}\n'


def _lines(key: str, entries: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    yield f'"{key}": {{'
    for number, (node, entry) in enumerate(entries):
        yield f"{',' if number else ''}\n{_dump(node)}: {_dump(entry)}"
    yield "},\n"


def _gpu_count(node: Mapping[str, Any]) -> int:
    return len(node["identity"].get("gpus", ()))


def _validation(node: Mapping[str, Any]) -> dict[str, Any]:
    counted = Counter(check["verdict"] for check in node["checks"])
    return {
        "status": node["verdict"],
        "accelerator": node["accelerator"],
        "gpu_count": _gpu_count(node),
        "stages": {stage["name"]: stage["state"] for stage in node["stages"]},
        "checks": {verdict: counted[verdict] for verdict in ("pass", "fail", "warn", "missing", "skipped")},
        "errors": [f"{check['name']}: {check['reason']}" for check, _parts, _remedy in reasons(node)],
    }


def _performance(node: Mapping[str, Any]) -> dict[str, float]:
    main = (figure for figure in figures_of(node["metrics"]) if figure.gauge or figure.summary)
    figures = {figure.metric: _figure(node, figure.stage, figure.metric) for figure in main}
    return {name: value for name, value in figures.items() if value is not None}


def _figure(node: Mapping[str, Any], stage: str, name: str) -> float | None:
    """The value of metric ``name`` in a node's stage, the median over several GPUs or processes; None without one."""
    metrics = node["metrics"].get(stage, ())
    values = [metric["value"] for metric in metrics if metric["name"] == name and metric["value"] is not None]
    return statistics.median(values) if values else None
