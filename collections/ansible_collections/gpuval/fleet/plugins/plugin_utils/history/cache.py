"""The cache of the bucket as Parquet files: a folder for each run, readable with any DuckDB.

    <run>/run.json         the run as it was read last, with the stamp of its object
    <run>/state.json       which run, and the stamps of the run.json and report.json behind the files
    <run>/nodes.parquet    the expected nodes
    <run>/records.parquet  each record without its metrics, with its object's stamp; the reason for refused ones
    <run>/metrics.parquet  node, stage, part, metric, unit, revision, value
    <run>/gpus.parquet     the GPUs of each node, by its facts
    <run>/judged.parquet   the verdicts, where the run was judged

Files are replaced atomically, records.parquet last: after an interruption the records are read again.
"""

# ruff: noqa: S608 - names and files are this project's own; values are parameters
from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ..runs import folder as run_folder
from . import database
from .database import json_lines, parquet

#: Version of the files' format; a cache of another version is rebuilt.
FORMAT = 5
TABLES = ("nodes", "records", "gpus", "judged", "metrics")
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
        """The state of the run; empty if its files are unusable."""
        state = run_folder.read_object(self.path / "state.json")
        return state if state.get("format") == FORMAT and all(self.file(name).exists() for name in TABLES) else {}

    def write_state(self, state: Mapping[str, Any]) -> None:
        run_folder.write_json(self.path / "state.json", {"format": FORMAT, **state})

    @property
    def remembered(self) -> dict[str, Any]:
        """``{"stamp", "run"}`` of the run.json that was read last; empty where it was not."""
        found = run_folder.read_object(self.path / "run.json")
        return found if {"stamp", "run"} <= found.keys() else {}

    def remember(self, stamp: str, run: Mapping[str, Any]) -> None:
        run_folder.write_json(self.path / "run.json", {"stamp": stamp, "run": run})

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class Cache:
    """The cache of one bucket; holds the connection with which its files are written."""

    def __init__(self, root: Path, place: str) -> None:
        """``place`` identifies the bucket."""
        self.path = root / hashlib.sha256(place.encode()).hexdigest()[:16]
        self.path.mkdir(parents=True, exist_ok=True)
        for left in self.path.glob(f"{_TEMPORARY}*"):  # by a process that was killed
            number = left.name.removeprefix(_TEMPORARY)
            if not number.isdecimal() or not psutil.pid_exists(int(number)):
                shutil.rmtree(left, ignore_errors=True)
        self._temporary = self.path / f"{_TEMPORARY}{os.getpid()}"
        self.connection = database.connect(self._temporary)

    def close(self) -> None:
        self.connection.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    @property
    def draft(self) -> Path:
        """A file that ends with the cache."""
        return self._temporary / "export"

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    def run(self, folder: str) -> CachedRun:
        return CachedRun(self.path / hashlib.sha256(folder.encode()).hexdigest()[:16])

    def runs(self) -> list[CachedRun]:
        return [CachedRun(path) for path in sorted(self.path.iterdir()) if path.is_dir() and path.name[0] != "."]

    def stamps(self, run: CachedRun) -> dict[tuple[str, str], str]:
        """By stage and node the stamp of the record that was read."""
        found = self.connection.execute(f"SELECT stage, node, stamp FROM {parquet(run.file('records'))}")
        return {(stage, node): stamp for stage, node, stamp in found.fetchall()}

    def write_table(self, run: CachedRun, name: str, folder: str, lines: Iterable[Mapping[str, Any]]) -> None:
        """Replace nodes.parquet or judged.parquet."""
        draft = run.path / f".{name}.jsonl"
        write_lines(draft, lines)
        table = json_lines(draft, database.COLUMNS[name])
        self._replace(run, name, f"SELECT ? AS folder, * FROM {table}", "node", [folder])
        draft.unlink()

    def write_records(self, run: CachedRun, folder: str, lines: Path, gone: Iterable[tuple[str, str]]) -> None:
        """Put records in, from a file of JSON lines; rows of the (stage, node) pairs in ``gone`` are dropped first."""
        execute = self.connection.execute
        dropped = run.path / ".gone.jsonl"
        write_lines(dropped, ({"stage": stage, "node": node} for stage, node in gone))
        keys = json_lines(dropped, {"stage": "VARCHAR", "node": "VARCHAR"})
        fresh = f"(SELECT ? AS folder, * FROM {json_lines(lines, database.COLUMNS['records'])})"
        execute(f"CREATE OR REPLACE TEMP VIEW gone AS SELECT * FROM {keys}")

        def kept(name: str) -> str:
            path = run.file(name)
            return f"UNION ALL BY NAME SELECT * FROM {parquet(path)} ANTI JOIN gone USING (node, stage)"

        old = all(run.file(name).exists() for name in ("metrics", "gpus", "records"))
        metrics = f"""SELECT folder, node, stage, m.scope AS part, m.name AS metric, m.unit, m.revision, m.value
            FROM (SELECT folder, node, stage, unnest(metrics) AS m FROM {fresh}) {kept("metrics") if old else ""}"""
        self._replace(run, "metrics", metrics, "stage, metric, part, node", [folder])
        gpus = f"""SELECT folder, node, stage, g."index", g.model, g.serial, g.uuid
            FROM (SELECT folder, node, stage, unnest(gpus) AS g FROM {fresh}) {kept("gpus") if old else ""}"""
        self._replace(run, "gpus", gpus, 'node, "index"', [folder])
        records = f"SELECT * EXCLUDE (metrics, gpus) FROM {fresh} {kept('records') if old else ''}"
        self._replace(run, "records", records, "stage, node", [folder])
        execute("DROP VIEW gone")
        dropped.unlink()

    def _replace(self, run: CachedRun, name: str, select: str, order: str, parameters: list[Any]) -> None:
        draft = run.path / f".{name}.parquet"
        target = str(draft).replace("'", "''")
        self.connection.execute(
            f"COPY (SELECT * FROM ({select}) ORDER BY {order}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)",
            parameters,
        )
        draft.replace(run.file(name))


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as stream:
        for line in lines:
            stream.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
