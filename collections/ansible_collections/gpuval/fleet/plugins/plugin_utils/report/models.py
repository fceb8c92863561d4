"""perf.csv and perf.html: the performance of MAD models, for one run and for all runs in a results folder."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from ..core import files
from ..core.escape import one_line
from ..gang import document as gang_document
from ..gang.evidence import last_rounds
from ..mad import perf
from ..mad.documents import MadError
from ..records import environment
from ..runs import datasets
from ..runs import folder as run_folder
from . import template

CSV, PAGE, LOCK = "perf.csv", "perf.html", ".perf.lock"
#: Suffix for a perf.csv whose rows cannot be read, which is moved away.
UNREADABLE = ".unreadable"
LOCK_SECONDS = 60.0
#: Number of newest rows in perf.html; perf.csv has all.
MAX_ROWS = 5000
MAX_CELL = 300
#: Relative change from which the page marks a figure.
MARKED_CHANGE = 0.05
#: Catalogue of built images (gpuval.images/1): {image reference: entry}.
Catalogue = Mapping[str, Mapping[str, Any]]
#: (node, stage, folder of the run with the stage's evidence)
ModelStage = tuple[Mapping[str, Any], Mapping[str, Any], run_folder.RunFolder]


def forms(
    report: Mapping[str, Any], directory: Path, csv: Path | None = None, images: Catalogue | None = None
) -> dict[str, Callable[[], str]]:
    """{file name: function that makes the text} for a run's perf.csv and perf.html, and for each model's own CSV beside
    its log; empty without models. Also adds the run to the perf.csv and perf.html of all runs (``csv``)."""
    folder = run_folder.RunFolder(directory)
    document = gang_document.read(folder)
    rounds = [folder, *gang_document.round_folders(folder, document)]
    models = perf.models((plan for one in rounds for plan in one.read_plans().values()), images)
    if not models:
        return {}
    new: list[perf.Row] = []
    tables: dict[str, Callable[[], str]] = {}
    for node, stage, source in _counted(report, folder, document, models):
        file = source.evidence_file(node["name"], stage["name"], "logs")
        log, columns, name = _read_text(file), models[stage["name"]], node["name"]
        facts, metrics = _environment(folder, name, "facts"), node["metrics"].get(stage["name"], ())
        columns = {**columns, **_loaded(node, columns)}
        new += perf.rows(columns, stage, log, facts, name, report["run"]["run_id"], metrics)
        if text := perf.table(log):
            tables[str(file.with_suffix(".csv").relative_to(directory))] = functools.partial(str, text)
    if not folder.is_imported:
        new = _added(new, csv or folder.results / CSV, report["run"]["run_id"])
    return {CSV: lambda: perf.written(new), PAGE: lambda: perf_html(new), **tables}


def _added(new: list[perf.Row], path: Path, run_id: str) -> list[perf.Row]:
    """Insert a run's rows into the perf.csv of all runs at ``path``; return them with the change since earlier runs."""
    lock = path.with_name(LOCK)
    late = run_folder.RunError(f"another process holds {lock}: end it, and report again")
    with files.locked(lock, LOCK_SECONDS, late):
        try:
            rows = perf.read(_read_text(path), subject=str(path)) if path.exists() else []
        except MadError:  # the run keeps its rows even if earlier ones are unreadable
            path.replace(path.with_name(path.name + UNREADABLE))
            rows = []
        spot = next((index for index, row in enumerate(rows) if row["build_number"] == run_id), len(rows))
        earlier, later = rows[:spot], [row for row in rows[spot:] if row["build_number"] != run_id]
        new = perf.compared(earlier, new)
        every = [*earlier, *new, *later]
        for file, text in ((path, perf.written(every)), (path.with_suffix(".html"), perf_html(every))):
            files.replace(file, text.encode(), 0o644)
    return new


def _counted(
    report: Mapping[str, Any], folder: run_folder.RunFolder, gangs: Mapping[str, Any] | None, models: Catalogue
) -> Iterator[ModelStage]:
    """Yield node, stage and the run folder with its evidence for each model that gets rows in perf.csv. A multi-node
    model gets them for the first node of each gang, or for one node if no gang started."""
    places = last_rounds(gangs) if gangs else {}
    of_gangs: dict[str, list[ModelStage]] = {}
    pairs = ((node, stage) for node in report["nodes"] for stage in node["stages"] if stage["name"] in models)
    for node, stage in pairs:
        if int(models[stage["name"]].get("nnodes", 1)) == 1:
            yield node, stage, folder
            continue
        last = places.get(node["name"])
        source = gang_document.round_folder(folder, last) if last else folder
        of_gangs.setdefault(stage["name"], []).append((node, stage, source))
    for gang in of_gangs.values():
        leading = [
            (node, stage, source)
            for node, stage, source in gang
            if environment.texts(_environment(source, node["name"], stage["name"]), "gang.leader") == [node["name"]]
        ]
        yield from leading or gang[:1]


def _loaded(node: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, str]:
    """Columns of perf.csv on the datasets that a node loaded for a model: bytes, and seconds of loading."""
    stages = {f"{datasets.STAGE}{name}" for name in columns[perf.DATASETS].split(",") if name}
    times = [stage["duration_seconds"] or 0.0 for stage in node["stages"] if stage["name"] in stages]
    metrics = [metric for name in stages for metric in node["metrics"].get(name, ())]
    sizes = [metric["value"] for metric in metrics if metric["name"] == "loading_bytes" and metric["value"] is not None]
    return {"data_size": str(sum(sizes)), "data_download_duration": f"{sum(times):.6g}"} if sizes else {}


def _environment(folder: run_folder.RunFolder, node: str, stage: str) -> Mapping[str, Any]:
    reported = run_folder.read_object(folder.evidence_file(node, stage)).get("environment")
    return reported if isinstance(reported, Mapping) else {}


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def perf_html(rows: Sequence[Mapping[str, str]]) -> str:
    """The text of perf.html, with the newest rows of perf.csv first. Every text is cleaned and escaped."""
    newest = list(reversed(rows))[:MAX_ROWS]
    states = {state: sum(row["status"] == state for row in rows) for state in (perf.SUCCESS, perf.FAILURE)}
    return template.load("perf.html.j2", _escaped).render(
        columns=perf.COLUMNS, rows=newest, count=len(rows), states=states, cell_class=_css_class
    )


def _escaped(text: str, limit: int = MAX_CELL) -> Markup:
    return escape(one_line(text, limit))


def _css_class(row: Mapping[str, str], column: str) -> str:
    if column == "status":
        return {perf.SUCCESS: "good", perf.FAILURE: "bad"}.get(row[column], "note")
    if column == "relative_change":
        with contextlib.suppress(ValueError):
            return "note" if abs(float(row[column])) >= MARKED_CHANGE else ""
    return "number" if column == "performance" else ""
