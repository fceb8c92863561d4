"""Synchronise the history's cache on the controller with the bucket: read each run.json once, and changed reports."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...module_utils.store import Entry, Store
from ..core import files, schemas
from ..core.escape import one_line
from ..records import report_file
from ..store import stored_runs
from . import HistoryError, projection
from .cache import ERRORS, Cache, CachedRun

MAX_REPORT_BYTES = 2 << 30
MAX_PROBLEMS, PIECE, LOCK_SECONDS = 100, 8 << 20, 600

#: Exceptions from a malformed report.
DAMAGES: tuple[type[Exception], ...] = (ValueError, RecursionError, KeyError, TypeError)

Show = Callable[[str], None]


@dataclass
class Synced:
    """Counts of one synchronisation: runs found, objects listed and read, runs removed from the cache; and problems."""

    runs: int = 0
    listed: int = 0
    read: int = 0
    forgotten: int = 0
    problems: list[str] = field(default_factory=list)

    def add_listed(self, count: int) -> None:
        self.listed += count

    def add_problem(self, text: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(one_line(text))


def sync(store: Store, cache: Cache, show: Show = lambda _: None) -> Synced:
    """Read the objects that changed, and remove runs from the cache that are gone from the bucket. ``show`` gets a line
    for each run that is read. Raises RunError if another process uses the cache, or the bucket has too many folders."""
    late = HistoryError(
        f"another `make history` has held {cache.path} for {LOCK_SECONDS} s: end it, or try again later"
    )
    with files.locked(cache.lock, LOCK_SECONDS, late):
        synced = Synced()
        runs = []
        for folder, entry in stored_runs.run_files(store, synced.add_listed):
            if run := _read_run(store, cache.run(folder), entry, synced):
                runs.append((run["folder"] != folder, folder, run["run_id"]))
        folders: dict[str, str] = {}
        for _, folder, run_id in sorted(runs):
            if folders.setdefault(run_id, folder) != folder:
                synced.add_problem(f"{folder}/run.json belongs to run {run_id}, like {folders[run_id]}: ignored")
        for folder in folders.values():
            _bring(store, cache, folder, synced, show)
        kept = {cache.run(folder) for _, folder, _ in runs}
        for cached in cache.runs():
            if cached not in kept:
                synced.forgotten += bool(cached.state)
                cached.remove()
        synced.runs = len(folders)
        return synced


def _read_run(store: Store, cached: CachedRun, entry: Entry, synced: Synced) -> dict[str, Any] | None:
    """The run from a run.json, or from the cache if unchanged; None if the object is no run."""
    remembered = cached.remembered
    if remembered.get("stamp") == entry.stamp:
        return remembered["run"]
    synced.read += 1
    raw = store.get_if_there(entry.key, max_bytes=stored_runs.MAX_DOCUMENT_BYTES)
    if raw is None:  # deleted since the listing
        return None
    try:
        run = stored_runs.read_document(raw, "run", entry.key)
    except stored_runs.Damaged as error:
        synced.add_problem(str(error))
        return None
    if remembered and remembered["run"]["run_id"] != run["run_id"]:
        cached.remove()
    cached.remember(entry.stamp, run)
    return run


def _bring(store: Store, cache: Cache, folder: str, synced: Synced, show: Show) -> None:
    """Update a run in the cache if its run.json or report changed in the bucket; an unusable report counts as none."""
    cached = cache.run(folder)
    run, state = cached.remembered["run"], cached.state
    key = f"{folder}/report/report.json"
    entry = next((entry for entry in store.list(key) if entry.key == key), None)
    synced.listed += entry is not None
    stamps = [cached.remembered["stamp"], entry.stamp if entry else None]
    if state.get("stamps") != stamps:
        refused = None
        try:
            if entry:
                show(f"run {run['run_id']}: reading its report")
                synced.read += 1
            with tempfile.TemporaryDirectory(dir=cached.path) as draft:
                cache.write(cached, folder, _history_lines(store, entry, run, Path(draft) / "report.json"))
        except (*DAMAGES, *ERRORS) as error:
            refused = one_line(f"{key} is refused, so run {run['run_id']} is not judged: {error}")
            cache.write(cached, folder, (projection.line_of(name, node, None) for name, node in run["nodes"].items()))
        texts = {"created_at": one_line(run["created_at"], 32), "profile": one_line(run["profile"], 64)}
        state = {"folder": folder, "stamps": stamps, "run_id": run["run_id"], **texts, "refused": refused}
        cached.write_state(state)
    if state["refused"]:
        synced.add_problem(state["refused"])


def _history_lines(store: Store, entry: Entry | None, run: Mapping[str, Any], draft: Path) -> Iterator[dict[str, Any]]:
    """The history's lines for a run's nodes. `entry`: its report in the store, None before it is judged; `draft`: file
    to download the report to. Raises ValueError for a report that is invalid or of another run."""
    expected = dict(run["nodes"])
    for node in _judged_nodes(store, entry, run, draft) if entry else ():
        if node["name"] in expected:
            yield projection.line_of(node["name"], expected.pop(node["name"]), node)
    for name, node in expected.items():
        yield projection.line_of(name, node, None)


def _judged_nodes(store: Store, entry: Entry, run: Mapping[str, Any], draft: Path) -> Iterator[dict[str, Any]]:
    if entry.size > MAX_REPORT_BYTES:
        raise ValueError(f"{entry.size:,} bytes, over the limit of {MAX_REPORT_BYTES:,}")
    with draft.open("wb") as stream:  # in pieces: the report of a thousand nodes has 30 MB
        for start in range(0, entry.size, PIECE):
            stream.write(store.get_range(entry.key, start, min(start + PIECE, entry.size)))
    report = report_file.walk(draft)
    head = {"fleet": {"checks": [], "problems": []}, **next(report)}
    schemas.validate("report", head, what="report")
    if head["run"]["run_id"] != run["run_id"]:
        raise ValueError(f"it belongs to run {head['run']['run_id']}")
    tables, head = head, {**head, "criteria": {}, "figures": [], "properties": []}  # the tables are valid
    for node in report:
        schemas.validate("report", {**head, "nodes": [node]}, what="report")
        yield report_file.unpack_node(node, tables)
