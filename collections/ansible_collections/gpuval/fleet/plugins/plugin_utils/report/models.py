"""perf.csv and perf.html of models, of the run and of all runs whose results are in one folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from ..core import files
from ..core.escape import one_line
from ..mad import perf
from ..mad.errors import MadError
from ..runs import folder as run_folder
from . import template

CSV, PAGE, LOCK = "perf.csv", "perf.html", ".perf.lock"
#: Where a perf.csv goes whose rows cannot be read.
UNREADABLE = "perf.csv.unreadable"
LOCK_SECONDS = 60.0
#: The last rows; perf.csv has all.
MAX_ROWS = 5000
MAX_CELL = 300
#: Change of a figure that the page marks.
MARKED_CHANGE = 0.05


def forms(report: Mapping[str, Any], directory: Path) -> dict[str, Callable[[], str]]:
    """What gives the files' texts, by name; empty for a run without models. Replaces those of all runs beside it."""
    folder = run_folder.RunFolder(directory)
    models = perf.models(folder.read_plans().values())
    if not models:
        return {}
    new = [
        row
        for node in report["nodes"]
        for stage in node["stages"]
        if stage["name"] in models
        for row in perf.rows(
            models[stage["name"]],
            stage,
            _text(folder.evidence_file(node["name"], stage["name"], "logs")),
            _facts(folder, node["name"]),
            node["name"],
            report["run"]["run_id"],
            node["metrics"].get(stage["name"], ()),
        )
    ]
    if not folder.is_copy:
        new = _added(new, directory.parent, report["run"]["run_id"])
    return {CSV: lambda: perf.written(new), PAGE: lambda: perf_html(new)}


def _added(new: list[perf.Row], results: Path, run_id: str) -> list[perf.Row]:
    """The run's rows with their change since earlier runs, after they took their place among those of all runs."""
    late = run_folder.RunError(f"another process holds {results / LOCK}: end it, and report again")
    with files.locked(results / LOCK, LOCK_SECONDS, late):
        path = results / CSV
        try:
            known = perf.read(_text(path), what=str(path)) if path.exists() else []
        except MadError:  # the run has its rows, whatever became of those before it
            path.replace(path.with_name(UNREADABLE))
            known = []
        place = next((index for index, row in enumerate(known) if row["build_number"] == run_id), len(known))
        earlier, later = known[:place], [row for row in known[place:] if row["build_number"] != run_id]
        new = perf.compared(earlier, new)
        every = [*earlier, *new, *later]
        for name, text in ((CSV, perf.written(every)), (PAGE, perf_html(every))):
            files.replace(results / name, text.encode(), 0o644)
    return new


def _facts(folder: run_folder.RunFolder, node: str) -> Mapping[str, Any]:
    environment = run_folder.read_object(folder.evidence_file(node, "facts")).get("environment")
    return environment if isinstance(environment, Mapping) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def perf_html(rows: Sequence[Mapping[str, str]]) -> str:
    """The page, newest rows first. Every text is cleaned and escaped."""
    shown = list(reversed(rows))[:MAX_ROWS]
    states = {state: sum(one["status"] == state for one in rows) for state in (perf.SUCCESS, perf.FAILURE)}
    return template.load("perf.html.j2", _escaped).render(
        columns=perf.COLUMNS, rows=shown, count=len(rows), states=states, cell_class=_class
    )


def _escaped(text: str, limit: int = MAX_CELL) -> Markup:
    return escape(one_line(text, limit))


def _class(row: Mapping[str, str], column: str) -> str:
    """The class of a cell in the page's style."""
    if column == "status":
        return {perf.SUCCESS: "good", perf.FAILURE: "bad"}.get(row[column], "note")
    if column == "relative_change":
        try:
            change = float(row[column])
        except ValueError:
            return ""
        return "note" if abs(change) >= MARKED_CHANGE else ""
    return "number" if column == "performance" else ""
