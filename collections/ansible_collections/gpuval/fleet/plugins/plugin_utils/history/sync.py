"""Synchronise the cache with the bucket: list each run, and read only the objects that changed."""

from __future__ import annotations

import json
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
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
from . import HistoryError, database, projection
from .cache import FORMAT, Cache, CachedRun, write_lines

MAX_RUN_BYTES = 64 << 20
MAX_REPORT_BYTES = 2 << 30
MAX_PROBLEMS = 100
READERS = 8
#: Records read ahead.
AHEAD = 64
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
    try:
        run = _run(_get(store, entry.key, MAX_RUN_BYTES, done))
    except (ValueError, RecursionError) as error:
        done.add_problem(f"{entry.key} is not a valid run: {error}")
        return None
    if remembered and remembered["run"]["run_id"] != run["run_id"]:
        cached.remove()
    cached.remember(entry.stamp, run)
    return run


def _run(raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        raise ValueError("it is missing")
    if len(raw) > MAX_RUN_BYTES:
        raise ValueError(f"over {MAX_RUN_BYTES:,} bytes")
    run = json.loads(raw)
    schemas.validate("run", run, what="run.json")
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
            self.cache.write_nodes(self.cached, self.folder, projection.of_run(run))
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
        wanted: list[tuple[str, str, Entry]] = []
        present = set()
        for entry in self.store.list(f"{self.folder}/records/"):
            self.done.listed += 1
            place = parse_key(self.folder, entry.key)
            if place is None or place[2] not in run["nodes"] or place[1] not in run["nodes"][place[2]]["stages"]:
                continue  # no expected node and stage: never evidence
            key = place[1], place[2]
            present.add(key)
            if known.get(key) != entry.stamp:
                wanted.append((*key, entry))
        gone = known.keys() - present
        if not (wanted or gone or new):
            return
        if wanted:
            show(f"run {run['run_id']}: reading {len(wanted):,} of {len(present):,} records")
        changed = {(stage, node) for stage, node, _ in wanted}
        lines = self.cached.path / ".records.jsonl"
        write_lines(lines, _projected(self.store, run, wanted, self.done))
        self.cache.write_records(self.cached, self.folder, lines, gone | changed)
        lines.unlink()

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
            self._write_judged(entry, run)
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            refused = one_line(f"{key} is refused, so run {run['run_id']} is not judged: {error}")
            self.done.add_problem(refused)
            self.cache.write_judged(self.cached, self.folder, [])
        return {"report_stamp": stamp, "report_refused": refused}

    def _write_judged(self, entry: Entry | None, run: Mapping[str, Any]) -> None:
        if entry is None:
            self.cache.write_judged(self.cached, self.folder, [])
            return
        with tempfile.TemporaryDirectory(dir=self.cached.path) as draft:
            path = Path(draft) / "report.json"
            _download(self.store, entry, path, self.done)
            self.cache.write_judged(self.cached, self.folder, _judged(path, run))


def _projected(
    store: Store, run: Mapping[str, Any], wanted: list[tuple[str, str, Entry]], done: Synced
) -> Iterator[dict[str, Any]]:
    """The wanted records in turn; a few are read ahead."""
    with ThreadPoolExecutor(READERS) as pool:
        ahead: deque[tuple[str, str, Entry, Future[bytes | None]]] = deque()
        waiting = iter(wanted)
        try:
            while True:
                for stage, node, entry in waiting:
                    ahead.append((stage, node, entry, pool.submit(_get, store, entry.key, MAX_RECORD_BYTES, done)))
                    if len(ahead) >= AHEAD:
                        break
                if not ahead:
                    return
                stage, node, entry, reading = ahead.popleft()
                raw = reading.result()
                if raw is None:
                    continue
                try:
                    record = accept_record(raw, run_id=run["run_id"], node=node, stage=stage)
                except Refused as refusal:
                    done.add_problem(f"run {run['run_id']}: record of {node} {stage} refused: {refusal}")
                    yield projection.of_refusal(node, stage, entry.stamp, str(refusal))
                else:
                    yield projection.of_record(record, entry.stamp)
        finally:
            pool.shutdown(cancel_futures=True)


def _get(store: Store, key: str, max_bytes: int, done: Synced) -> bytes | None:
    """None if the object was deleted since it was listed."""
    done.read += 1
    return store.get_if_there(key, max_bytes=max_bytes)


def _download(store: Store, entry: Entry, path: Path, done: Synced) -> None:
    """In pieces: the report of a thousand nodes has 200 MB."""
    if entry.size > MAX_REPORT_BYTES:
        raise ValueError(f"{entry.size:,} bytes, over the limit of {MAX_REPORT_BYTES:,}")
    done.read += 1
    with path.open("wb") as stream:
        for start in range(0, entry.size, PIECE):
            stream.write(store.get_range(entry.key, start, min(start + PIECE, entry.size)))


def _judged(path: Path, run: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The nodes of a report. Raises ValueError for an invalid report or another run's."""
    report = report_file.walk(path)
    head = {"fleet": {"checks": [], "problems": []}, **next(report)}
    schemas.validate("report", head, what="report")
    if head["run"]["run_id"] != run["run_id"]:
        raise ValueError(f"it belongs to run {head['run']['run_id']}")
    seen = set()
    for node in report:
        schemas.validate("report", {**head, "nodes": [node]}, what="report")
        if node["name"] in run["nodes"] and node["name"] not in seen:
            seen.add(node["name"])
            yield projection.of_judged(node)
