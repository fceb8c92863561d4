"""Compares a run with an earlier run of the same nodes, and with the baseline that it was judged by. Skips files of
this controller's results that cannot be read, since the comparison decides no verdict."""

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...judge.analysis.distribution import LEAST_DIFFERENCE
from ...judge.baseline import Baseline
from ...judge.compare import FigureChange, Figures, ReportFigure, compare, medians
from ...records import report_file
from ...runs import applied_criteria
from ...runs import folder as run_folder
from .nodes import figures

#: Number of earlier runs that are searched for one with the same nodes.
MAX_SEARCHED = 50
MAX_CHANGES = 24
_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class EarlierRun:
    """An earlier run: verdicts and figures by node. ``comparable``: by node, figures that the new run has, too."""

    run_id: str
    created_at: str
    verdicts: Mapping[str, str]
    figures: Figures
    comparable: dict[str, dict[Any, float | None]] = field(default_factory=dict)


class Comparison:
    """A run in the results folder ``directory`` compared with earlier runs beside it; empty if ``directory`` is None.
    ``verdicts``: nodes whose verdict changed, as (name, then, now). ``changes``: figures of nodes that moved by 2 % or
    more. ``baseline``: its title, empty without one."""

    def __init__(self, report: Mapping[str, Any], directory: Path | None) -> None:
        now = {node["name"]: figures(node) for node in report["nodes"]} if directory else {}
        self.baseline, self.baseline_rows = "", list[FigureChange]()
        self.earlier: EarlierRun | None = None
        if directory:
            with suppress(*_DAMAGED):
                self.baseline, self.baseline_rows = with_baseline(report, now, directory)
            self.earlier = earlier_run(report, directory)
        before = self.earlier or EarlierRun("", "", {}, {})
        pairs = [pair for pair in compare(before.figures, now) if pair.then is not None and pair.now is not None]
        for pair in pairs:
            before.comparable.setdefault(pair.node, {})[pair.key] = pair.then
        moved = [pair for pair in pairs if pair.change is not None and abs(pair.change) >= LEAST_DIFFERENCE]
        moved.sort(key=lambda pair: -abs(pair.change or 0.0))
        self.rows, self.changes, self.left_out = medians(pairs), moved[:MAX_CHANGES], max(0, len(moved) - MAX_CHANGES)
        both = [(node["name"], before.verdicts.get(node["name"]), node["verdict"]) for node in report["nodes"]]
        self.verdicts = [(name, then, verdict) for name, then, verdict in both if then and then != verdict]

    def __bool__(self) -> bool:
        return bool(self.earlier or self.baseline_rows)


def with_baseline(report: Mapping[str, Any], now: Figures, directory: Path) -> tuple[str, list[FigureChange]]:
    """The title of a run's baseline, and its figures beside those of the run's most common kind of node."""
    if not (stored := applied_criteria.kept_criteria(run_folder.RunFolder(directory)).get("baseline")):
        return "", []
    baseline = Baseline(json.loads(stored["text"]))
    kinds = [(node.get("catalogue_sku"), len(node["identity"].get("gpus", ()))) for node in report["nodes"]]
    kind = Counter(kinds).most_common(1)[0][0] if kinds else None
    alike = [node for node, node_kind in zip(report["nodes"], kinds, strict=True) if node_kind == kind]
    workloads = {(stage["name"], stage.get("workload")) for node in alike for stage in node["stages"]}
    of_kind = {
        (figure["stage"], figure["metric"]): ReportFigure(figure["median"], figure["unit"], figure.get("revision", 1))
        for figure in sorted(itertools.chain(*baseline.figures.values()), key=lambda figure: figure["nodes"])
        if (figure["sku"], figure["gpus"]) == kind and (figure["stage"], figure["workload"]) in workloads
    }
    names = [node["name"] for node in alike]
    return baseline.title, medians(compare(dict.fromkeys(names, of_kind), {name: now[name] for name in names}))


def earlier_run(report: Mapping[str, Any], directory: Path) -> EarlierRun | None:
    """The latest earlier run of the same inventory and profile that ended and shares a node with this one, or None."""
    folder, names = run_folder.RunFolder(directory), {node["name"] for node in report["nodes"]}
    this_run = run_folder.read_object(folder.run_file)
    runs = []
    for earlier in run_folder.known_runs(folder.results, folder.inventory) if this_run.get("created_at") else ():
        run = run_folder.read_object(earlier.run_file)
        is_before = (run.get("created_at") or "") < this_run["created_at"]
        is_alike = run.get("profile") == this_run.get("profile") and names & set(run.get("nodes", ()))
        if is_before and is_alike and run.get("finished_at"):
            runs.append((run["created_at"], earlier.path.name, earlier.path))
    for created_at, run_id, path in sorted(runs, reverse=True)[:MAX_SEARCHED]:
        try:
            walked = report_file.walk(path / "report.json")
            head = next(walked)
            nodes = [report_file.unpack_node(node, head) for node in walked if node["name"] in names]
            verdicts = {node["name"]: node["verdict"] for node in nodes}
            return EarlierRun(run_id, created_at, verdicts, {node["name"]: figures(node) for node in nodes})
        except _DAMAGED:
            continue
    return None
