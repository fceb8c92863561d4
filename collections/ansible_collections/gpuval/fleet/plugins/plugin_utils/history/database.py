"""DuckDB as the history uses it: in this process, on local files, without its extensions from the internet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from . import HistoryError

try:
    import duckdb

    DUCKDB_ERROR: ImportError | None = None
except ImportError as error:
    DUCKDB_ERROR = error

#: Max memory of DuckDB; it spills the rest to disk.
MEMORY = "1GB"
THREADS = 4
#: Max line of one node.
MAX_LINE_BYTES = 64 << 20

_VERSIONS = "MAP(VARCHAR, VARCHAR)"
_METRICS = "STRUCT(name VARCHAR, value DOUBLE, unit VARCHAR, scope VARCHAR, revision INTEGER)[]"
#: Columns of a node's line (projection.line_of).
COLUMNS = {
    "node": "VARCHAR", "stages": "VARCHAR[]", "sku": "VARCHAR", "labels": _VERSIONS, "verdict": "VARCHAR",
    "class": "VARCHAR", "flaky": "BOOLEAN", "renumbered": "VARCHAR[]",
    "failed": "STRUCT(name VARCHAR, part VARCHAR, verdict VARCHAR)[]", "versions": _VERSIONS,
    "refused": "STRUCT(stage VARCHAR, reason VARCHAR)[]", "machine_id": "VARCHAR", "serial": "VARCHAR",
    "kind": "VARCHAR", "gpu_count": "INTEGER",
    "gpus": 'STRUCT("index" INTEGER, model VARCHAR, serial VARCHAR, uuid VARCHAR)[]',
    "records": f"STRUCT(stage VARCHAR, workload VARCHAR, state VARCHAR, retried BOOLEAN, setup VARCHAR, "
    f"versions {_VERSIONS}, metrics {_METRICS})[]",
}  # fmt: skip


def connect(temporary: Path) -> Any:
    """An in-memory database that spills into ``temporary``. Raises HistoryError without DuckDB."""
    if DUCKDB_ERROR:
        raise HistoryError(f"the history needs DuckDB on the controller ({DUCKDB_ERROR}): run `make setup`")
    temporary.mkdir(parents=True, exist_ok=True)
    return duckdb.connect(
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "memory_limit": MEMORY,
            "threads": str(min(THREADS, os.cpu_count() or 1)),
            "temp_directory": str(temporary),
            "preserve_insertion_order": "false",
        }
    )


def errors() -> tuple[type[Exception], ...]:
    """Exceptions of DuckDB."""
    return () if DUCKDB_ERROR else (duckdb.Error,)


def json_lines(path: Path) -> str:
    """The table of a file of nodes' lines, for FROM."""
    fields = ", ".join(f"{text(name)}: {text(kind)}" for name, kind in COLUMNS.items())
    form = f"format='newline_delimited', maximum_object_size={MAX_LINE_BYTES}"
    return f"read_json({text(str(path))}, columns={{{fields}}}, {form})"


def parquet(*paths: Path) -> str:
    """The table of Parquet files, for FROM."""
    return f"read_parquet([{', '.join(text(str(path)) for path in paths)}])"


def text(value: str) -> str:
    """A text of SQL."""
    return "'" + value.replace("'", "''") + "'"
