"""Finds the runs in the store, checks the documents of a run, and reads many objects in parallel."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from ...module_utils.store import Entry, Store, StoreError
from ..core import schemas
from ..core.escape import one_line
from ..core.text import some_of
from ..runs import folder as run_folder
from ..runs.publishing import RUN_FILE

#: Max bytes of run.json and of other documents that a controller uploads: enough for a thousand nodes.
MAX_DOCUMENT_BYTES = 32 << 20
#: Max depth of a run's folder in the bucket, and max number of folders searched.
MAX_DEPTH = 8
MAX_FOLDERS = 20_000
MAX_LISTED = 10
READERS = 8
#: Maximum bytes of objects that are read ahead of their use.
AHEAD_BYTES = 64 << 20


class Damaged(run_folder.RunError):
    """A document in the store is unreadable, breaks its schema or belongs to another key."""


def read_document(raw: bytes, schema: str, key: str, max_bytes: int = MAX_DOCUMENT_BYTES) -> dict[str, Any]:
    """Parse a document that a controller stored, and check it by its schema. Raises Damaged."""
    if len(raw) > max_bytes:
        raise Damaged(f"{key} in the store exceeds {max_bytes:,} bytes: it is damaged")
    try:
        document = json.loads(raw)
        schemas.validate(schema, document, what=f"{key} in the store")
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{key} in the store is damaged: {one_line(str(error))}") from None
    return document


def take_run(raw: bytes, folder: str) -> dict[str, Any]:
    """Check and parse the run.json found in a folder of the bucket. Raises Damaged."""
    key = f"{folder}/{RUN_FILE}"
    run = read_document(raw, "run", key)
    if run["folder"] != folder:
        raise Damaged(f"{key} in the store names the folder {one_line(run['folder'], 80)!r}: it was moved there")
    try:
        run_folder.check_run_id(run["run_id"])
        _created(run)
    except run_folder.RunError as error:
        raise Damaged(f"{key} in the store: {error}") from None
    except ValueError:
        raise Damaged(f"{key} in the store is damaged: created_at is no time") from None
    return run


def read_run(store: Store, folder: str) -> dict[str, Any] | None:
    """The run.json in a folder of the bucket; None if the folder has none. Raises RunError."""
    with _naming_settings():
        raw = store.get_if_there(f"{folder}/{RUN_FILE}", max_bytes=MAX_DOCUMENT_BYTES)
    return None if raw is None else take_run(raw, folder)


def find(store: Store, run_id: str = "", folder: str = "") -> tuple[dict[str, Any], list[str]]:
    """Find a run in the bucket by its folder, by its id, or without both the newest. Returns its run.json, and lines on
    the choice. Raises RunError."""
    run_id = "" if run_id == run_folder.LATEST else run_id
    if folder:
        folder = run_folder.check_folder(folder)
        run = read_run(store, folder)
        if run is None:
            raise run_folder.RunError(
                f"{_bucket(store)} has no run in the folder {folder}: {_hint(folder, all_runs(store)[0])}"
            )
        if run_id and run["run_id"] != run_id:
            raise run_folder.RunError(
                f"the folder {folder} of {_bucket(store)} has the run {run['run_id']}, not {run_id}"
            )
        return run, []
    if run_id:
        run_folder.check_run_id(run_id)
        run = read_run(store, run_id)
        if run is not None and run["run_id"] == run_id:
            return run, []
    runs, refused = all_runs(store)
    if not run_id:
        run, lines = newest_run(runs, datetime.now(timezone.utc), _bucket(store))
        return run, [*lines, *refused]
    named = [run for run in runs if run["run_id"] == run_id]
    if len(named) == 1:
        return named[0], []
    if named:
        folders = ", ".join(run["folder"] for run in named)
        raise run_folder.RunError(
            f"{_bucket(store)} has the run {run_id} in several folders: give gpuval_folder ({folders})"
        )
    raise run_folder.RunError(f"{_bucket(store)} has no run {run_id}: {_hint(run_id, runs)}")


def newest_run(runs: Sequence[dict[str, Any]], now: datetime, bucket: str) -> tuple[dict[str, Any], list[str]]:
    """The run opened last, and notes on others that are active `now`; `bucket`: its name in messages. Raises RunError
    if there is no run, or two were opened in the same second."""
    if not runs:
        raise run_folder.RunError(
            f"{bucket} has no run: `make validate` starts one. For a run of another controller, set gpuval_bucket and "
            "gpuval_s3_endpoint to those of that controller"
        )
    ordered = sorted(runs, key=_created, reverse=True)
    chosen = ordered[0]
    simultaneous = [run for run in ordered if _created(run) == _created(chosen)]
    if len(simultaneous) > 1:
        raise run_folder.RunError(
            "several runs were opened in the same second: choose one with -e gpuval_run_id=: " + _listed(simultaneous)
        )
    if len(ordered) == 1:
        return chosen, [f"run {chosen['run_id']}: the only one of {bucket}"]
    lines = [f"run {chosen['run_id']}: the newest of {len(ordered)} of {bucket}"]
    unfinished = (run for run in ordered[1:] if run["finished_at"] is None)
    active = [run for run in unfinished if (now - _created(run)).total_seconds() < run["deadline_seconds"]]
    if active:
        lines.append(f"other runs in progress (choose with -e gpuval_run_id=): {_listed(active)}")
    return chosen, lines


def all_runs(store: Store) -> tuple[list[dict[str, Any]], list[str]]:
    """The run.json of every run in the bucket, and lines on invalid ones. Takes a request for each folder and run."""
    runs: list[dict[str, Any]] = []
    refused: list[str] = []
    with _naming_settings():
        entries = [entry for _, entry in run_files(store)]
        for entry, raw in read_all(store, entries, lambda _: MAX_DOCUMENT_BYTES):
            try:
                runs += [take_run(raw, entry.key.removesuffix(f"/{RUN_FILE}"))] if raw is not None else []
            except run_folder.RunError as error:
                refused.append(f"left out: {error}")
    return runs, refused


def run_files(store: Store, listed: Callable[[int], object] = lambda _count: None) -> Iterator[tuple[str, Entry]]:
    """Each folder of the bucket that holds a run.json, with that file's entry in the listing. Runs may lie below other
    runs. Lists each folder once; ``listed`` gets its number of entries. Raises RunError beyond MAX_FOLDERS."""
    waiting, looked = deque([("", 0)]), 0
    while waiting:
        prefix, depth = waiting.popleft()
        looked += 1
        if looked > MAX_FOLDERS:
            raise run_folder.RunError(
                f"{_bucket(store)} has more than {MAX_FOLDERS:,} folders: give -e gpuval_run_id=, or another bucket"
            )
        below, entries = store.level(prefix)
        listed(len(below) + len(entries))
        run = next((entry for entry in entries if prefix and entry.key == f"{prefix}{RUN_FILE}"), None)
        for folder in below:
            name = folder[len(prefix) : -1]
            passed = (depth == 0 and name in run_folder.SHARED_FOLDERS) or (run and name in run_folder.OWN_FOLDERS)
            if not passed and depth < MAX_DEPTH and run_folder.FOLDER.fullmatch(name):
                waiting.append((folder, depth + 1))
        if run:
            yield prefix.rstrip("/"), run


def delete(store: Store, folder: str) -> int:
    """Remove a run's own objects from the store, but none of runs in folders below. Returns the number removed.
    `folder`: the run's folder in the store."""
    below, entries = store.level(f"{folder}/")
    inside = [name for name in below if name.removeprefix(f"{folder}/").rstrip("/") in run_folder.OWN_FOLDERS]
    store.delete(entry.key for entry in entries)
    return len(entries) + sum(store.delete_prefix(name) for name in inside)


def read_all(
    store: Store,
    entries: Iterable[Entry],
    limit_of: Callable[[Entry], int],
    unread: Callable[[Entry, StoreError], object] | None = None,
) -> Iterator[tuple[Entry, bytes | None]]:
    """Read listed objects in parallel. Yields each entry, in order, with its first bytes: at most one more than
    `limit_of(entry)`; None for an object that was deleted or not read. Calls `unread` on a StoreError, or raises it."""
    waiting: deque[tuple[Entry, int, Future[bytes | None]]] = deque()
    ahead = 0

    def bytes_of(entry: Entry, future: Future[bytes | None]) -> bytes | None:
        try:
            return future.result()
        except StoreError as error:
            if unread is None:
                raise
            unread(entry, error)
            return None

    with ThreadPoolExecutor(READERS) as pool:
        try:
            for entry in entries:
                limit = limit_of(entry)
                size = min(entry.size, limit + 1)
                while waiting and (len(waiting) >= 4 * READERS or ahead + size > AHEAD_BYTES):
                    first, its_size, future = waiting.popleft()
                    ahead -= its_size
                    yield first, bytes_of(first, future)
                waiting.append((entry, size, pool.submit(store.get_if_there, entry.key, max_bytes=limit)))
                ahead += size
            while waiting:
                first, _, future = waiting.popleft()
                yield first, bytes_of(first, future)
        finally:
            for _, _, future in waiting:
                future.cancel()


@contextmanager
def _naming_settings() -> Iterator[None]:
    """Within the context, a StoreError names the store's settings, since the store may be the wrong one."""
    try:
        yield
    except StoreError as error:
        raise StoreError(
            f"the store cannot be read: {error}. Check gpuval_bucket, gpuval_s3_endpoint and its keys."
        ) from error


def _created(run: Mapping[str, Any]) -> datetime:
    """When the run was opened, by the clock of the controller that opened it. Raises ValueError."""
    moment = datetime.fromisoformat(run["created_at"])
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def _bucket(store: Store) -> str:
    return f"the bucket {store.connection.bucket}"


def _hint(name: str, runs: Sequence[dict[str, Any]]) -> str:
    if not runs:
        return "it has no runs: check that gpuval_bucket and gpuval_s3_endpoint are those of the controller"
    return run_folder.hint(name, [run["folder"] for run in sorted(runs, key=_created, reverse=True)])


def _listed(runs: Iterable[Mapping[str, Any]]) -> str:
    return some_of(map(_label, runs), MAX_LISTED, "; ")


def _label(run: Mapping[str, Any]) -> str:
    ended = f"ended {one_line(run['finished_at'], 40)}" if run["finished_at"] else "not ended"
    folder_text = f", folder {run['folder']}" if run["folder"] != run["run_id"] else ""
    return (
        f"{run['run_id']}: opened {run['created_at']}, {ended}, profile {one_line(run['profile'], 40)}, "
        f"{len(run['nodes'])} node(s){folder_text}"
    )
