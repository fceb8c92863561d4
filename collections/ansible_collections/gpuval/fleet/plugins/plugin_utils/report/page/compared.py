"""This run beside an earlier run of the same nodes, and beside the baseline that it was judged by. Reads the results of
this controller; a file that cannot be read is passed over, since a comparison decides nothing."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...judge.analysis.distribution import LEAST_DIFFERENCE, relative
from ...judge.baseline import Baseline
from ...records import report_file
from ...runs import applied_criteria, origin
from ...runs import folder as run_folder
from .nodes import FIGURES, Measured, figures

#: So many runs before this one are searched for one with the same nodes.
MAX_SEARCHED = 50
MAX_CHANGES = 24
_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError)

Key = tuple[str, str]


@dataclass(frozen=True)
class Earlier:
    """What is compared of an earlier run: verdict and figures by name of the node."""

    run_id: str
    created_at: str
    verdicts: Mapping[str, str]
    figures: Mapping[str, Mapping[Key, Measured]]


@dataclass(frozen=True)
class Row:
    """One figure of the fleet, its medians: ``then`` over the ``nodes`` that both runs have."""

    key: Key
    unit: str
    now: float
    then: float
    nodes: int

    @property
    def change(self) -> float | None:
        return relative(self.now, self.then)


@dataclass(frozen=True)
class Change:
    """One figure of one node that moved by 2 % or more."""

    node: str
    row: Row
    change: float


@dataclass(frozen=True)
class Comparison:
    """``verdicts`` are nodes whose verdict changed: name, then, now. ``baseline`` is its title; empty without one."""

    earlier: Earlier | None = None
    rows: Sequence[Row] = ()
    verdicts: Sequence[tuple[str, str, str]] = ()
    changes: Sequence[Change] = ()
    left_out: int = 0
    baseline: str = ""
    baseline_rows: Sequence[Row] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.earlier or self.baseline_rows)


def of_results(report: Mapping[str, Any], directory: Path) -> Comparison:
    """From the results folder of the run and those beside it."""
    now = {node["name"]: figures(node) for node in report["nodes"]}
    try:
        title, baseline_rows = with_baseline(report, now, directory)
    except _DAMAGED:
        title, baseline_rows = "", []
    earlier = earlier_run(report, directory)
    if earlier is None:
        return Comparison(baseline=title, baseline_rows=baseline_rows)
    comparable: dict[str, Mapping[Key, Measured]] = {
        name: {key: one for key, one in before.items() if one.is_comparable(now.get(name, {}).get(key, one))}
        for name, before in earlier.figures.items()
    }
    earlier = replace(earlier, figures=comparable)
    rows, changes = with_earlier(now, comparable)
    verdicts = [
        (node["name"], earlier.verdicts[node["name"]], node["verdict"])
        for node in report["nodes"]
        if earlier.verdicts.get(node["name"], node["verdict"]) != node["verdict"]
    ]
    left = len(changes) - MAX_CHANGES
    return Comparison(earlier, rows, verdicts, changes[:MAX_CHANGES], max(0, left), title, baseline_rows)


def with_earlier(
    now: Mapping[str, Mapping[Key, Measured]], then: Mapping[str, Mapping[Key, Measured]]
) -> tuple[list[Row], list[Change]]:
    """Each figure over the nodes that have it in both, and what moved of single nodes, the most first."""
    rows, changes = [], []
    for key in FIGURES:
        both = [
            (name, one[key], then[name][key]) for name, one in now.items() if key in one and key in then.get(name, {})
        ]
        if not both:
            continue
        unit = both[0][1][1]
        rows.append(
            Row(
                key,
                unit,
                statistics.median(one[0] for _, one, _ in both),
                statistics.median(other[0] for _, _, other in both),
                len(both),
            )
        )
        for name, (value, *_), (other, *_) in both:
            change = relative(value, other)
            if change is not None and abs(change) >= LEAST_DIFFERENCE:
                changes.append(Change(name, Row(key, unit, value, other, 1), change))
    return rows, sorted(changes, key=lambda one: -abs(one.change))


def with_baseline(
    report: Mapping[str, Any], now: Mapping[str, Mapping[Key, Measured]], directory: Path
) -> tuple[str, list[Row]]:
    """The baseline's title, and its figures for the kind of node that the run has most of."""
    kept = applied_criteria.kept_criteria(run_folder.RunFolder(directory)).get("baseline")
    if not kept:
        return "", []
    baseline = Baseline.of(json.loads(kept["text"]))
    kinds = {
        node["name"]: (node.get("catalogue_sku"), len(node["identity"].get("gpus", ()))) for node in report["nodes"]
    }
    kind = Counter(kinds.values()).most_common(1)[0][0] if kinds else None
    alike = [node for node in report["nodes"] if kinds[node["name"]] == kind]
    workloads = {(stage["name"], stage.get("workload")) for node in alike for stage in node["stages"]}
    rows = []
    for key in FIGURES:
        fitting = [
            one
            for (stage, metric, _), found in baseline.figures.items()
            if (stage, metric) == key
            for one in found
            if (one["sku"], one["gpus"]) == kind and (stage, one["workload"]) in workloads
        ]
        values = [now[node["name"]][key] for node in alike if key in now[node["name"]]]
        best = max(fitting, key=lambda one: one["nodes"], default=None)
        if best and values and values[0].is_comparable(Measured(0.0, best["unit"], best.get("revision", 1))):
            median = statistics.median(one.value for one in values)
            rows.append(Row(key, best["unit"], median, best["median"], len(values)))
    return baseline.title, rows


def earlier_run(report: Mapping[str, Any], directory: Path) -> Earlier | None:
    """The latest run before this one of the same inventory and profile that ended and shares a node with it."""
    results, names = directory.parent, {node["name"] for node in report["nodes"]}
    own = run_folder.read_object(directory / "run.json")
    known = []
    for run_id in run_folder.known_run_ids(results) if own.get("created_at") else ():
        run = run_folder.read_object(results / run_id / "run.json")
        before = (run.get("created_at") or "") < own["created_at"]
        alike = run.get("profile") == own.get("profile") and origin.is_same(
            origin.of(run, results), origin.of(own, results)
        )
        if before and alike and run.get("finished_at") and names & set(run.get("nodes", ())):
            known.append((run["created_at"], run_id))
    for created_at, run_id in sorted(known, reverse=True)[:MAX_SEARCHED]:
        try:
            nodes = list(_nodes(results / run_id / "report.json", names))
            verdicts = {node["name"]: node["verdict"] for node in nodes}
            return Earlier(run_id, created_at, verdicts, {node["name"]: figures(node) for node in nodes})
        except _DAMAGED:
            continue
    return None


def _nodes(path: Path, names: set[str]) -> Iterator[Mapping[str, Any]]:
    nodes = report_file.walk(path)
    head = next(nodes)
    return (report_file.unpack_node(node, head) for node in nodes if node["name"] in names)
