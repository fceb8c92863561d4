"""Figures of a CSV file with the columns ``model`` (or ``models``), ``performance`` and ``metric``."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from pathlib import Path

MAX_BYTES = 4 << 20
MAX_ROWS = 200
NAMES = ("model", "models")


class CsvError(ValueError):
    """A file without figures; the message says what it lacks."""


def read(path: Path) -> tuple[list[tuple[str, str, str]], str]:
    """Name, value and unit of each row, and what of the file does not count. Raises ``CsvError``.

    A model that has several rows gets the metric into the name. Rows without a number as performance, as of a failure,
    do not count.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise CsvError(f"{path.name}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise CsvError(f"{path.name}: larger than 4 MiB")
    try:
        rows = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig", "replace")), skipinitialspace=True))
    except csv.Error as error:
        raise CsvError(f"{path.name}: not CSV: {error}") from error
    columns = {(name or "").strip() for name in (rows[0] if rows else {})}
    lacking = [name for name in ("performance", "metric") if name not in columns]
    lacking += [] if columns & set(NAMES) else ["model"]
    if not rows or lacking:
        raise CsvError(f"{path.name}: no rows" if not rows else f"{path.name}: no column {', '.join(lacking)}")
    rows_read = [_figure({(key or "").strip(): value for key, value in row.items()}) for row in rows[:MAX_ROWS]]
    figures = [figure for figure in rows_read if figure[0] and _is_number(figure[1]) and figure[2]]
    if not figures:
        raise CsvError(f"{path.name}: no row has a number as performance")
    several = Counter(name for name, _value, _unit in figures)
    cut = [f"{path.name} has {len(rows)} rows, of which the first {MAX_ROWS} count"] if len(rows) > MAX_ROWS else []
    empty = len(rows_read) - len(figures)
    cut += (
        [f"{path.name}: {empty} of {len(rows_read)} rows lack model, metric or a number as performance"]
        if empty
        else []
    )
    named = [(f"{name}_{unit}" if several[name] > 1 else name, value, unit) for name, value, unit in figures]
    return named, "; ".join(cut)


def _figure(row: dict[str, object]) -> tuple[str, str, str]:
    name = next((_word(row[column]) for column in NAMES if row.get(column)), "")
    return name, _word(row.get("performance")), _word(row.get("metric"))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text.replace(",", "")))
    except ValueError:
        return False


def _word(value: object) -> str:
    """One word, as a line of figures needs it."""
    return "_".join(value.split()) if isinstance(value, str) else ""
