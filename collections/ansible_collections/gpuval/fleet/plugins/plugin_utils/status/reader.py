"""Reads a run's status from the store: for each look one LIST, then only the objects that changed."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from ...module_utils.store import Entry, Store
from ..gang import document as gang_document
from ..records.brief import StageBrief, brief
from ..records.evidence import MAX_RECORD_BYTES, RunEvidence, parse_key, take_record
from ..runs import folder as run_folder
from ..runs import publishing
from ..store import stored_runs
from ..store.stored_runs import Damaged, read_all
from .status import StoredStatus

#: Common prefix of all keys read, below the run's folder: records/, report/, run.json, run_watch.json.
COMMON = "r"


class StatusReader:
    """Reads the status of one run from the store, again and again; only changed objects are read."""

    def __init__(self, store: Store, run: Mapping[str, Any]) -> None:
        self._store = store
        self._run = run
        self._folder = run["folder"]
        self._seen: dict[str, str] = {}
        self._briefs: dict[str, dict[str, StageBrief]] = {}
        self._refused: dict[str, list[str]] = {}
        #: Documents of the run by the name of their schema, each with the time at which it was stored.
        self._documents: dict[str, tuple[dict[str, Any], datetime]] = {}
        #: The document gpuval.gangs/1, and the store's entry from which it was read.
        self._gangs: tuple[dict[str, Any], Entry] | None = None
        self._round: StatusReader | None = None
        self._progress = f"{self._folder}/{publishing.PROGRESS_FILE}"
        self._schemas = {
            f"{self._folder}/{publishing.RUN_FILE}": "run",
            f"{self._folder}/{publishing.WATCH_FILE}": "watch",
            f"{self._folder}/report/{publishing.VERDICT_FILE}": "verdict",
        }

    def look(self) -> StoredStatus:
        """The status of the run and the newest round of its gangs. Raises RunError, StoreError; keeps what was read."""
        stored = self._look()
        if not any(node.get("gang_stages") for node in self._run["nodes"].values()):
            return stored
        refused = list(stored.refused)
        try:
            self._look_at_gangs()
        except Damaged as error:
            refused.append(f"refused: {error}")
        document, entry = self._gangs if self._gangs else (None, None)
        if of_round := self._round.look() if self._round else None:
            refused += of_round.refused
        modified = entry.modified if entry else None
        return replace(stored, gangs=document, gangs_modified=modified, round=of_round, refused=refused)

    def _look_at_gangs(self) -> None:
        key = gang_document.key_of(self._run)
        entry = next((entry for entry in self._store.listing(key)[0] if entry.key == key), None)
        if entry is None:
            self._gangs = self._round = None
            return
        if self._gangs is None or self._gangs[1].stamp != entry.stamp:
            if (raw := self._store.get_if_there(key, max_bytes=stored_runs.MAX_DOCUMENT_BYTES)) is None:
                return
            self._gangs = (stored_runs.read_document(raw, "gangs", key), entry)
        rounds = self._gangs[0]["rounds"]
        folder = f"{self._folder}/{gang_document.FOLDER}/{rounds[-1]['name']}" if rounds else ""
        if self._round is None or self._round._folder != folder:
            run = stored_runs.read_run(self._store, folder) if folder else None
            self._round = StatusReader(self._store, run) if run else None

    def _look(self) -> StoredStatus:
        entries, moment = self._store.listing(f"{self._folder}/{COMMON}")
        listed = {entry.key: entry for entry in entries if entry.key in self._schemas or self._is_record(entry.key)}
        if not self._seen and any(entry.key == self._progress for entry in entries):
            self._use_progress(listed)
        self._forget((set(self._seen) | set(self._refused)) - set(listed))
        changed = [entry for key, entry in listed.items() if self._seen.get(key) != entry.stamp]
        # Read run.json first: it names the nodes that joined.
        changed.sort(key=lambda entry: entry.key not in self._schemas)
        limits = (stored_runs.MAX_DOCUMENT_BYTES, MAX_RECORD_BYTES)
        for entry, raw in read_all(self._store, changed, lambda entry: limits[self._is_record(entry.key)]):
            self._read(entry, raw)
        watch, modified = self._documents.get("watch", (None, None))
        verdict, _ = self._documents.get("verdict", (None, None))
        briefs = {node: dict(stages) for node, stages in self._briefs.items()}
        refused = [line for lines in self._refused.values() for line in lines]
        return StoredStatus(
            self._run, moment or datetime.now(timezone.utc), briefs, watch, modified, verdict=verdict, refused=refused
        )

    def _is_record(self, key: str) -> bool:
        return key.startswith(f"{self._folder}/records/")

    def _read(self, entry: Entry, raw: bytes | None) -> None:
        if raw is None:
            self._forget({entry.key})
            return
        self._drop(entry.key)
        try:
            self._accept(entry, raw)
        except Damaged as error:  # keep what was read before; the next look reads the object again
            self._refused[entry.key] = [f"refused: {error}"]
            return
        self._seen[entry.key] = entry.stamp

    def _accept(self, entry: Entry, raw: bytes) -> None:
        key, schema = entry.key, self._schemas.get(entry.key)
        if schema == "run":
            run = stored_runs.take_run(raw, self._folder)
            if run["run_id"] != self._run["run_id"]:
                raise run_folder.RunError(f"the folder {self._folder} has another run now: {run['run_id']}")
            if run["nodes"].keys() != self._run["nodes"].keys():  # read records again, for nodes that have joined
                self._forget(set(self._refused))
            self._run = run
        elif schema:
            document = stored_runs.read_document(raw, schema, key)
            if document["run_id"] != self._run["run_id"]:
                raise run_folder.RunError(f"{key} in the store is that of another run")
            self._documents[schema] = (document, entry.modified)
        else:
            evidence = RunEvidence()
            if record := take_record(evidence, self._run, key, raw):
                self._briefs.setdefault(record["node"], {})[record["stage"]] = brief(record, entry.modified)
                return
            self._refused[key] = [
                f"refused: {problem['node'] or ''} {problem['stage'] or ''}: {problem['reason']}"
                for problem in evidence.problems
            ]

    def _use_progress(self, listed: Mapping[str, Entry]) -> None:
        """Use the controller's summary of records for records that have not changed since. `listed`: entries of the
        store by key."""
        raw = self._store.get_if_there(self._progress, max_bytes=stored_runs.MAX_DOCUMENT_BYTES)
        try:
            summary = stored_runs.read_document(raw or b"", "progress", self._progress)
        except Damaged:  # the summary is damaged or gone: read the records themselves
            return
        if summary["run_id"] != self._run["run_id"]:
            return
        for key, entry in listed.items():
            if (parts := parse_key(self._folder, key)) is None:
                continue
            _, stage, node = parts
            fields = dict(summary["records"].get(f"{stage}/{node}") or {"stamp": ""})
            is_expected = stage in self._run["nodes"].get(node, {"stages": []})["stages"]
            if fields.pop("stamp") == entry.stamp and is_expected:
                self._briefs.setdefault(node, {})[stage] = StageBrief(**fields, modified=entry.modified)
                self._seen[key] = entry.stamp

    def _forget(self, keys: set[str]) -> None:
        for key in keys:
            self._seen.pop(key, None)
            self._documents.pop(self._schemas.get(key, ""), None)
            self._drop(key)

    def _drop(self, key: str) -> None:
        self._refused.pop(key, None)
        if parts := parse_key(self._folder, key):
            self._briefs.get(parts[2], {}).pop(parts[1], None)
