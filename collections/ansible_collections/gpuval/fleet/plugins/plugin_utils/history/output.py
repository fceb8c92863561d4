"""The history as files for other programs: JSON, CSV for spreadsheets, and the chosen stages of all judged runs as one
file for databases and notebooks: JSON lines for MongoDB, or Parquet."""

import csv
import filecmp
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import files, schemas
from ..core.escape import csv_cell
from . import HistoryError
from .cache import statement, text
from .query import History
from .table import change_text

#: Lists of the document that become a CSV file each; the file of ``rows`` gets the requested name.
TABLES = ("rows", "figures", "flaky", "drifts", "refused")
PIECE = 1 << 20
#: For each suffix: options of COPY, and SQL for the run's time in that format.
FORMATS = {
    ".jsonl": ("FORMAT json", "{'$date': r.time}"),
    ".parquet": ("FORMAT parquet, COMPRESSION zstd", "CAST(r.time AS TIMESTAMP)"),
}
#: SQL that replaces dots in field names, which MongoDB does not accept.
_FIELDS = "map_from_entries([{{'k': replace(e.key, '.', '_'), 'v': e.value}} for e in map_entries({})])"


def check_name(path: Path) -> None:
    """Check the name of an output file, before the bucket is read. Raises HistoryError."""
    if path.suffix not in (".json", ".csv", *FORMATS):
        raise HistoryError(f"OUTPUT={path}: the file's name must end in .json, .csv, .jsonl or .parquet")


def documents(path: Path, document: Mapping[str, Any]) -> dict[Path, bytes]:
    """``{path: content}`` of the files to write: one JSON document, or a CSV file for each non-empty list in it."""
    check_name(path)
    if path.suffix == ".json":
        schemas.validate("history", document, what=str(path))
        return {path: (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()}
    tables = {name: list(_flat(name, document[name])) for name in TABLES}
    return {
        path if name == "rows" else path.with_suffix(f".{name}.csv"): _csv(rows)
        for name, rows in tables.items()
        if rows or name == "rows"
    }


def _flat(name: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of CSV for entries of the history: a row for each run of a figure, lists as text."""
    for entry in entries:
        if name == "figures":
            yield from (
                {key: value for key, value in {**entry, **run}.items() if key != "runs"} for run in entry["runs"]
            )
        else:
            yield {key: _text(key, value) for key, value in entry.items() if not isinstance(value, dict)}


def _text(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return "; ".join(change_text(one) if key == "changes" else str(one) for one in value)
    return value


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    stream = io.StringIO()
    if rows:
        csv.writer(stream, lineterminator="\n").writerows(
            [rows[0], *([csv_cell(value) for value in row.values()] for row in rows)]
        )
    return stream.getvalue().encode()


def export(history: History, path: Path, draft: Path, *, dry: bool) -> list[str]:
    """Write the stages of judged runs to ``path``, by way of the file ``draft``; not if ``dry``. Returns the path if it
    changed. Raises HistoryError."""
    if history.empty:
        raise HistoryError("the bucket has no run: nothing to export")
    options, time = FORMATS[path.suffix]
    select = statement(
        "records",
        time=time,
        labels=_FIELDS.format("n.labels"),
        versions=_FIELDS.format("map_concat(coalesce(n.versions, MAP {}), rec.versions)"),
        wanted="SEMI JOIN wanted w ON w.stage = m.stage AND w.metric = m.metric" if history.question.metrics else "",
    )
    history.execute("SET preserve_insertion_order = true")
    history.execute(f"COPY ({select}) TO {text(str(draft))} ({options})")
    if path.exists() and filecmp.cmp(path, draft, shallow=False):
        return []
    if not dry:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("rb") as stream:
            files.replace(path, iter(lambda: stream.read(PIECE), b""))
    return [str(path)]
