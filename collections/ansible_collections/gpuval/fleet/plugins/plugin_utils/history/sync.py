"""Synchronise the cache with the bucket: list each run, and read only the objects that changed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...module_utils.store import Entry, Store
from ..core import files, schemas
from ..core.escape import one_line
from ..records import report_file
from ..records.evidence import MAX_RECORD_BYTES, Refused, accept_record, parse_key
from ..runs import folder as run_folder
from ..store import stored_runs
from ..store.reading import read_all
from . import HistoryError, database, projection
from .cache import FORMAT, Cache, CachedRun, write_lines

MAX_REPORT_BYTES = 2 << 30
MAX_PROBLEMS = 100
PIECE = 8 << 20
LOCK_SECONDS = 600

Show = Callable[[str], None]


@dataclass
class Synced:
    """Counts of one synchronisation: runs found, objects listed and read, runs forgotten, and problems."""

    runs: int = 0
    listed: int = 0
    read: int = 0
    forgotten: int = 0
    problems: list[str] = field(default_factory=list)

    def add_problem(self, text: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(one_line(text))


def sync(store: Store, cache: Cache, show: Show = lambda _: None) -> Synced:
    """Read the objects that changed; drop runs from the cache that are gone from the bucket.

    ``show`` gets a line for each run that is read. Raises HistoryError if another process holds the cache.
    """
    late = HistoryError(
        f"another `make history` has held {cache.path} for {LOCK_SECONDS} s: end it, or try again later"
    )
    with files.locked(cache.lock, LOCK_SECONDS, late):
        done = Synced()
        found = {}
        for folder, entry in find_runs(store, done):
            cached = cache.run(folder)
            run = _read_run(store, cached, entry, done)
            if run is not None:
                found[folder] = cached, entry, run["run_id"], run["folder"] == folder
        known: dict[str, str] = {}
        for folder, (_, _, run_id, _) in sorted(found.items(), key=lambda item: (not item[1][3], item[0])):
            if run_id in known:
                done.add_problem(f"{folder}/run.json belongs to run {run_id}, like {known[run_id]}: ignored")
            known.setdefault(run_id, folder)
        for folder in known.values():
            _Reader(store, cache, found[folder][0], folder, done).bring(found[folder][1], show)
        kept = {cached.path for cached, *_ in found.values()}
        for cached in cache.runs():
            if cached.path not in kept:
                done.forgotten += bool(cached.state)
                cached.remove()
        done.runs = len(known)
        return done


def find_runs(store: Store, done: Synced) -> Iterator[tuple[str, Entry]]:
    """Every folder of the bucket that holds a run.json, with its entry. Raises HistoryError."""

    def listed(count: int) -> None:
        done.listed += count

    try:
        yield from stored_runs.run_files(store, listed)
    except run_folder.RunError as error:
        raise HistoryError(str(error)) from None


def _read_run(store: Store, cached: CachedRun, entry: Entry, done: Synced) -> dict[str, Any] | None:
    """The run of a run.json, from the cache if unchanged; None if it is not a run."""
    remembered = cached.remembered
    if remembered.get("stamp") == entry.stamp:
        return remembered["run"]
    done.read += 1
    raw = store.get_if_there(entry.key, max_bytes=stored_runs.MAX_DOCUMENT_BYTES)
    if raw is None:  # deleted since it was listed
        return None
    try:
        run = stored_runs.read_document(raw, "run", entry.key)
    except stored_runs.Damaged as error:
        done.add_problem(str(error))
        return None
    if remembered and remembered["run"]["run_id"] != run["run_id"]:
        cached.remove()
    cached.remember(entry.stamp, run)
    return run


@dataclass
class _Reader:
    """One run, from the bucket into the cache."""

    store: Store
    cache: Cache
    cached: CachedRun
    folder: str
    done: Synced

    def bring(self, entry: Entry, show: Show) -> None:
        try:
            self._bring(entry, show)
        except database.errors():  # a file of the cache is damaged, or of another version
            run = self.cached.remembered["run"]
            self.cached.remove()
            self.cached.remember(entry.stamp, run)
            self._bring(entry, show)

    def _bring(self, entry: Entry, show: Show) -> None:
        run, state = self.cached.remembered["run"], self.cached.state
        if state.get("run_stamp") != entry.stamp:
            self.cache.write_table(self.cached, "nodes", self.folder, projection.of_run(run))
        self._records(run, new=not state, show=show)
        after = {
            "folder": self.folder,
            "run_stamp": entry.stamp,
            "run_id": run["run_id"],
            "created_at": one_line(run["created_at"], 32),
            "profile": one_line(run["profile"], 64),
            **self._report(run, state),
        }
        if {"format": FORMAT, **after} != state:
            self.cached.write_state(after)

    def _records(self, run: Mapping[str, Any], *, new: bool, show: Show) -> None:
        known = {} if new else self.cache.stamps(self.cached)
        wanted: dict[tuple[str, str], Entry] = {}
        present = set()
        for entry in self.store.list(f"{self.folder}/records/"):
            self.done.listed += 1
            place = parse_key(self.folder, entry.key)
            if place is None or place[2] not in run["nodes"] or place[1] not in run["nodes"][place[2]]["stages"]:
                continue  # no expected node and stage: never evidence
            key = place[1], place[2]
            present.add(key)
            if known.get(key) != entry.stamp:
                wanted[key] = entry
        gone = known.keys() - present
        if not (wanted or gone or new):
            return
        if wanted:
            show(f"run {run['run_id']}: reading {len(wanted):,} of {len(present):,} records")
        lines = self.cached.path / ".records.jsonl"
        write_lines(lines, self._projected(run, wanted))
        self.cache.write_records(self.cached, self.folder, lines, gone | wanted.keys())
        lines.unlink()

    def _projected(self, run: Mapping[str, Any], wanted: Mapping[tuple[str, str], Entry]) -> Iterator[dict[str, Any]]:
        answers = read_all(self.store, wanted.values(), lambda _: MAX_RECORD_BYTES)
        for (stage, node), (entry, raw) in zip(wanted, answers, strict=True):
            self.done.read += 1
            if raw is None:  # deleted since it was listed
                continue
            try:
                record = accept_record(raw, run_id=run["run_id"], node=node, stage=stage)
            except Refused as refusal:
                self.done.add_problem(f"run {run['run_id']}: record of {node} {stage} refused: {refusal}")
                yield projection.of_refusal(node, stage, entry.stamp, str(refusal))
            else:
                yield projection.of_record(record, entry.stamp)

    def _report(self, run: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of state.json about the report; an unusable report counts as none."""
        key = f"{self.folder}/report/report.json"
        entry = next((entry for entry in self.store.list(key) if entry.key == key), None)
        self.done.listed += entry is not None
        stamp = entry.stamp if entry else None
        if state and state["report_stamp"] == stamp and state["run_stamp"] == self.cached.remembered["stamp"]:
            if state["report_refused"]:
                self.done.add_problem(state["report_refused"])
            return {"report_stamp": stamp, "report_refused": state["report_refused"]}
        refused = None
        try:
            self.cache.write_table(self.cached, "judged", self.folder, self._judged(entry, run))
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            refused = one_line(f"{key} is refused, so run {run['run_id']} is not judged: {error}")
            self.done.add_problem(refused)
            self.cache.write_table(self.cached, "judged", self.folder, [])
        return {"report_stamp": stamp, "report_refused": refused}

    def _judged(self, entry: Entry | None, run: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The nodes of a report. Raises ValueError for an invalid report or another run's."""
        if entry is None:
            return
        with tempfile.TemporaryDirectory(dir=self.cached.path) as draft:
            path = Path(draft) / "report.json"
            self.done.read += 1
            _download(self.store, entry, path)
            report = report_file.walk(path)
            head = {"fleet": {"checks": [], "problems": []}, **next(report)}
            schemas.validate("report", head, what="report")
            if head["run"]["run_id"] != run["run_id"]:
                raise ValueError(f"it belongs to run {head['run']['run_id']}")
            seen = set()
            tables, head = head, {**head, "criteria": {}, "figures": []}  # they are valid
            for node in report:
                schemas.validate("report", {**head, "nodes": [node]}, what="report")
                if node["name"] in run["nodes"] and node["name"] not in seen:
                    seen.add(node["name"])
                    yield projection.of_judged(report_file.unpack_node(node, tables))


def _download(store: Store, entry: Entry, path: Path) -> None:
    """In pieces: the report of a thousand nodes has 30 MB."""
    if entry.size > MAX_REPORT_BYTES:
        raise ValueError(f"{entry.size:,} bytes, over the limit of {MAX_REPORT_BYTES:,}")
    with path.open("wb") as stream:
        for start in range(0, entry.size, PIECE):
            stream.write(store.get_range(entry.key, start, min(start + PIECE, entry.size)))
