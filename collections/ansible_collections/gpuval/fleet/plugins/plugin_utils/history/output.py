"""The history as files for other programs: JSON, or CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import schemas
from ..core.escape import csv_cell
from . import HistoryError, export
from .table import change_text

#: The lists of the document that get a CSV file each; the rows take the name that was asked for.
TABLES = ("rows", "figures", "flaky", "drifts", "refused")


def check_name(path: Path) -> None:
    """Raises HistoryError, before the bucket is read."""
    if path.suffix not in (".json", ".csv", *export.FORMATS):
        raise HistoryError(f"OUTPUT={path}: the file's name must end in .json, .csv, .jsonl or .parquet")


def files(path: Path, document: Mapping[str, Any]) -> dict[Path, bytes]:
    """Files to write: one JSON document, or a CSV file for each non-empty list."""
    check_name(path)
    if path.suffix == ".json":
        schemas.validate("history", document, what=str(path))
        return {path: (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()}
    texts = {}
    for name in TABLES:
        target = path if name == "rows" else path.with_suffix(f".{name}.csv")
        rows = list(_flat(name, document[name]))
        if rows or name == "rows":
            texts[target] = _csv(rows)
    return texts


def _flat(name: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One level of keys: a figure has a line for each of its runs, lists become text."""
    for entry in entries:
        if name == "figures":
            shared = {key: value for key, value in entry.items() if key != "runs"}
            for run in entry["runs"]:
                yield {**shared, **run}
        else:
            yield {key: _text(key, value) for key, value in entry.items() if not isinstance(value, dict)}


def _text(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return "; ".join(change_text(one) if key == "changes" else str(one) for one in value)
    return value


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    if rows:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(rows[0])
        for row in rows:
            writer.writerow([csv_cell(value) for value in row.values()])
    return text.getvalue().encode()
