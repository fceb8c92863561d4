"""The cache of the bucket's reports as Parquet files: a folder for each run, readable with any DuckDB.

    <run>/run.json         the run as it was read last, with the stamp of its object
    <run>/state.json       which run, and the stamps of the run.json and report.json behind the files
    <run>/nodes.parquet    the expected nodes; where the run was judged with verdict, identity, GPUs and versions
    <run>/records.parquet  the judged stages of each node: state, workload, setup, versions
    <run>/metrics.parquet  node, stage, part, metric, unit, revision, value

Files are replaced atomically, state.json last: after an interruption the report is read again.
"""

# ruff: noqa: S608 - names and files are this project's own; values are parameters
import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil

from ..runs import folder as run_folder
from . import HistoryError

#: Exceptions of DuckDB; empty if DuckDB is not installed.
ERRORS: tuple[type[Exception], ...] = ()
try:
    import duckdb

    ERRORS = (duckdb.Error,)
except ImportError as error:
    lacking = str(error)

QUERIES = Path(__file__).with_name("queries")
#: Max memory of DuckDB, which spills more to disk.
MEMORY = "1GB"
THREADS = 4
#: Maximum bytes of the JSON line that the history keeps of one node.
MAX_LINE_BYTES = 64 << 20

_VERSIONS = "MAP(VARCHAR, VARCHAR)"
_METRICS = "STRUCT(name VARCHAR, value DOUBLE, unit VARCHAR, scope VARCHAR, revision INTEGER)[]"
#: Columns of the JSON line that the history keeps of a node, as `projection.line_of` makes it.
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

#: Version of the files' format; a cache of another version is rebuilt.
FORMAT = 6
#: For each table the columns to select from nodes' lines, and the order of rows.
_SELECTED = {
    "nodes": ("* EXCLUDE (records) FROM {lines}", "node"),
    "records": ("node, r.* EXCLUDE (metrics) FROM (SELECT node, unnest(records) AS r FROM {lines})", "stage, node"),
    "metrics": (
        """node, stage, m.scope AS part, m.name AS metric, m.unit, m.revision, m.value
        FROM (SELECT node, r.stage, unnest(r.metrics) AS m FROM (SELECT node, unnest(records) AS r FROM {lines}))""",
        "stage, metric, part, node",
    ),
}
TABLES = tuple(_SELECTED)
#: Prefix of DuckDB's spill folders; the process id follows.
_TEMPORARY = ".temporary-"


@dataclass(frozen=True)
class CachedRun:
    """The folder of one run in the cache."""

    path: Path

    def file(self, name: str) -> Path:
        return self.path / f"{name}.parquet"

    @property
    def state(self) -> dict[str, Any]:
        """The contents of state.json; empty if the run's files are unusable."""
        state = run_folder.read_object(self.path / "state.json")
        return state if (state.get("format"), state.get("sizes")) == (FORMAT, self._sizes()) else {}

    def write_state(self, state: Mapping[str, Any]) -> None:
        run_folder.write_json(self.path / "state.json", {"format": FORMAT, "sizes": self._sizes(), **state})

    def _sizes(self) -> dict[str, int]:
        """Size of each table's file in bytes: a file of another size is damaged."""
        return {name: self.file(name).stat().st_size for name in TABLES if self.file(name).exists()}

    @property
    def remembered(self) -> dict[str, Any]:
        """``{"stamp", "run"}`` of the run.json that was read last; empty without one."""
        document = run_folder.read_object(self.path / "run.json")
        return document if {"stamp", "run"} <= document.keys() else {}

    def remember(self, stamp: str, run: Mapping[str, Any]) -> None:
        run_folder.write_json(self.path / "run.json", {"stamp": stamp, "run": run})

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class Cache:
    """The cache for the bucket that ``bucket`` identifies, with the DuckDB connection that writes its files."""

    def __init__(self, root: Path, bucket: str) -> None:
        self.path = root / hashlib.sha256(bucket.encode()).hexdigest()[:16]
        self.path.mkdir(parents=True, exist_ok=True)
        for leftover in self.path.glob(f"{_TEMPORARY}*"):  # left by a process that was killed
            number = leftover.name.removeprefix(_TEMPORARY)
            if not number.isdecimal() or not psutil.pid_exists(int(number)):
                shutil.rmtree(leftover, ignore_errors=True)
        self.lock = self.path / ".lock"
        self._temporary = self.path / f"{_TEMPORARY}{os.getpid()}"
        self.connection = connect(self._temporary)
        #: A temporary file that `close` deletes.
        self.draft = self._temporary / "export"

    def close(self) -> None:
        self.connection.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def run(self, folder: str) -> CachedRun:
        return CachedRun(self.path / hashlib.sha256(folder.encode()).hexdigest()[:16])

    def runs(self) -> list[CachedRun]:
        return [CachedRun(path) for path in sorted(self.path.iterdir()) if path.is_dir() and path.name[0] != "."]

    def write(self, run: CachedRun, folder: str, lines: Iterable[Mapping[str, Any]]) -> None:
        """Replace a cached run's Parquet files. ``folder``: the run's in the bucket; ``lines``: a dict for each
        node."""
        draft = self._temporary / "lines.jsonl"
        with draft.open("wb") as stream:
            stream.writelines(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)
        for name, (columns, order) in _SELECTED.items():
            target = run.path / f".{name}.parquet"
            self.connection.execute(
                f"COPY (SELECT * FROM (SELECT ? AS folder, {columns.format(lines=json_lines(draft))}) "
                f"ORDER BY {order}) TO {text(str(target))} (FORMAT parquet, COMPRESSION zstd)",
                [folder],
            )
            target.replace(run.file(name))


def connect(temporary: Path) -> Any:
    """Open an in-memory database that spills into the folder ``temporary``. Raises HistoryError without DuckDB."""
    if not ERRORS:
        raise HistoryError(f"the history needs DuckDB on the controller ({lacking}): run `make setup`")
    temporary.mkdir(parents=True, exist_ok=True)
    no_extensions = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}  # from the internet
    threads = str(min(THREADS, os.cpu_count() or 1))
    limits = {"memory_limit": MEMORY, "threads": threads, "temp_directory": str(temporary)}
    return duckdb.connect(config={**no_extensions, **limits, "preserve_insertion_order": "false"})


def json_lines(path: Path) -> str:
    """SQL for FROM: a file with a JSON line for each node, as a table."""
    fields = ", ".join(f"{text(name)}: {text(kind)}" for name, kind in COLUMNS.items())
    form = f"format='newline_delimited', maximum_object_size={MAX_LINE_BYTES}"
    return f"read_json({text(str(path))}, columns={{{fields}}}, {form})"


def parquet(*paths: Path) -> str:
    """SQL for FROM: Parquet files as one table."""
    return f"read_parquet([{', '.join(text(str(path)) for path in paths)}])"


def statement(name: str, **values: object) -> str:
    """SQL of the file ``queries/<name>.sql``, with values in place of the names in braces."""
    return (QUERIES / f"{name}.sql").read_text(encoding="utf-8").format(**values)


def text(value: str) -> str:
    """The value as a quoted text in SQL."""
    return "'" + value.replace("'", "''") + "'"
