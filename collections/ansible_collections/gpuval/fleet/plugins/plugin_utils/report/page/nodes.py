"""Hardware, rack and main figures of every node, and the properties in which nodes differ. Pure functions."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...core.escape import one_line
from ...core.grouping import values_by_key
from ...core.stage_traits import figures_of
from ...judge.compare import ReportFigure
from ...records.properties import IMAGE, MAX_TEXT, TITLES, versions_of
from ...runs.labels import rack_of


class NodeRow(NamedTuple):
    """A node with its hardware and rack as text. ``cells``: its figures, None if it has none."""

    node: Mapping[str, Any]
    hardware: str
    rack: str
    cells: list[ReportFigure | None]


class NodeTable:
    """The table of a report's nodes. ``columns``: (stage, metric) of each figure that a node has; ``medians``: the
    fleet's median for each column, with its unit."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        nodes = report["nodes"]
        figures_all = [figures(node) for node in nodes]
        stages = dict.fromkeys(stage["name"] for node in nodes for stage in node["stages"])
        self.columns = [key for key in _columns(stages) if any(key in row for row in figures_all)]
        self.rows = [
            NodeRow(node, _hardware(node), rack(node), [row.get(key) for key in self.columns])
            for node, row in zip(nodes, figures_all, strict=True)
        ]
        reported = ([row[key] for row in figures_all if key in row] for key in self.columns)
        self.medians = [row[0]._replace(value=statistics.median(one.value for one in row)) for row in reported]


def figures(node: Mapping[str, Any]) -> dict[tuple[str, str], ReportFigure]:
    """{(stage, metric): figure} of a node's main figures; for several GPUs the median."""
    columns = _columns(node["metrics"])
    stages = dict.fromkeys(stage for stage, _ in columns)
    reported = (((stage, one["name"]), one) for stage in stages for one in node["metrics"][stage])
    by_metric = values_by_key(pair for pair in reported if pair[0] in columns and pair[1]["value"] is not None)
    return {
        key: ReportFigure(statistics.median(one["value"] for one in by_metric[key]), *kinds.pop())
        for key in columns
        if len(kinds := {(one["unit"], one.get("revision", 1)) for one in by_metric.get(key, ())}) == 1
    }


def _columns(stages: Iterable[str]) -> list[tuple[str, str]]:
    """(stage, metric) of each column that these stages have in the table of nodes."""
    return [(figure.stage, figure.metric) for figure in figures_of(stages) if figure.in_table]


def rack(node: Mapping[str, Any]) -> str:
    """The name of a node's NVLink rack, else of the rack in its labels; empty without one."""
    return node.get("rack") or rack_of(node.get("labels", {}))


def _hardware(node: Mapping[str, Any]) -> str:
    counted = Counter(gpu.get("model", "GPU") for gpu in node["identity"].get("gpus", []))
    return ", ".join(f"{count} x {model}" for model, count in counted.items()) or node["accelerator"]


def properties_of_fleet(report: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """[(property, [(value, node names)])] such as driver versions, the most common value first."""
    names: dict[str, dict[str, list[str]]] = {title: defaultdict(list) for title in TITLES.values()}
    for node in report["nodes"]:
        titled = {
            (TITLES[name], one_line(f"{stage['name']}: {text}", MAX_TEXT) if name == IMAGE else text)
            for stage in node["stages"]
            for name, text in versions_of(node, stage).items()
            if name in TITLES
        }
        for title, text in sorted(titled):
            names[title][text].append(node["name"])
    return [
        (title, sorted(nodes_of.items(), key=lambda item: (-len(item[1]), item[0])))
        for title, nodes_of in names.items()
        if nodes_of
    ]
