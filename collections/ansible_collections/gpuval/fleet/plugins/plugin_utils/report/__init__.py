"""Writes a run's report in forms such as HTML, Markdown, JUnit and CSV, each from the content of report.json alone.
report.html also shows curves from the nodes' series files, if the results folder has them."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core import files
from ..records import report_file
from ..runs import folder as run_folder
from ..runs import origin
from . import models
from .cluster_test import cluster_test_json
from .ctrf import ctrf_json
from .html import page_of
from .junit import junit_xml
from .markdown import markdown_report
from .page import results
from .perf import perf_csv
from .prometheus import run_text
from .summary import final_block

__all__ = ["acceptance", "final_block", "write_file", "write_forms"]


def write_forms(
    report: Mapping[str, Any], directory: Path, csv: Path | None = None, images: models.Catalogue | None = None
) -> dict[str, Path]:
    """Write all forms of a report but report.json into ``directory``, each by one rename. Returns {file name: path}.
    ``csv``: perf.csv of all runs, None for the usual place; ``images``: {image reference: entry of the catalogue}."""
    directory.mkdir(parents=True, exist_ok=True)
    failed = (node["name"] for node in report["nodes"] if node["verdict"] != "PASS")
    with results.reading(report, directory) as read:
        forms: dict[str, Callable[[], str | Iterable[str]]] = {
            "report.md": lambda: markdown_report(report),
            "junit.xml": lambda: junit_xml(report),
            "ctrf-report.json": lambda: ctrf_json(report),
            "cluster_test_report.json": lambda: cluster_test_json(report),
            "gpuval.prom": lambda: run_text(report),
            "perf.csv": lambda: perf_csv(report),
            "failed_nodes.txt": lambda: (f"{name}\n" for name in failed),  # argument of --limit @...
            **models.forms(report, directory, csv, images),
            "report.html": lambda: page_of(report, directory, read),  # last, since other processes read its curves
        }
        for name, text in forms.items():  # one at a time: all forms of 1000 nodes take hundreds of MB
            write_file(directory / name, text())
    return {name: directory / name for name in forms}


def acceptance(report_file_path: Path) -> str:
    """The FINAL ACCEPTANCE block for the console, from report.json and the run.json beside it."""
    folder = report_file_path.parent
    inventory = origin.shown(run_folder.RunFolder(folder).inventory)
    return final_block(next(report_file.walk(report_file_path)), page=str(folder / "report.html"), inventory=inventory)


def write_file(path: Path, text: str | Iterable[str]) -> None:
    """Replace the file by ``text`` (as a whole or in pieces) in UTF-8, with one rename."""
    pieces = [text] if isinstance(text, str) else text
    files.replace(path, (piece.encode("utf-8") for piece in pieces), 0o644)
