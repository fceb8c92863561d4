"""Reads the records of a watched run that changed in the store, found by one LIST, and writes there what only the
controller knows, so that the store alone describes the run."""

import os
import time
from typing import Any

from ...module_utils.store import Store, StoreError
from ..core import schemas
from ..records import launch_errors
from ..records.digests import BY_CHANNEL, digest_of_bytes
from ..records.evidence import MAX_RECORD_BYTES, UNREAD, as_written, claimed_end, is_whole, parse_key, take_record
from ..runs import applied_criteria, publishing
from ..runs import folder as run_folder
from ..store import unread
from ..store.access import ensure_same_run, put_run
from ..store.backend import StoreBackend
from ..store.preflight import refused, upload
from .decisions import update
from .watched_run import UNKNOWN, WatchedRun
from .window import Window

#: Interval at which the watch tests an upload by signed URL, and the object that it uploads.
UPLOADS_SECONDS = 10.0
UPLOAD_CHECK = "report/upload-check"
#: Maximum seconds before an unreachable store is tried again, and seconds to wait for its answer then.
AWAY_SECONDS, AWAY_TIMEOUT = 15.0, 5.0
#: Start of the message of a node that waits for the other nodes of a multi-node stage.
WAITING = "waiting "


class StorePoller:
    def __init__(self, watched: WatchedRun, access: StoreBackend, progress: publishing.WatchProgress) -> None:
        self._watched, self._access, self._progress = watched, access, progress
        self._guard = access.guard(watched.info["folder"], lambda: watched.store)
        self._away_since: float | None = None
        #: When an unreachable store is read again.
        self.due_at = float("-inf")
        #: {key that cannot be read while others can: time of the next try}
        self._unread: dict[str, float] = {}
        #: Keys of invalid records in the store: these records are fetched from their nodes instead.
        self._refused: set[str] = set()
        self._uploads_checked_at, self._uploads_fail_since = float("-inf"), float("inf")

    def restore(self) -> None:
        """Load the records that an earlier watch of this run has read into the results folder."""
        for digests in (self._watched.folder.state / "returned").glob("*.json"):
            digests.unlink()  # that watch may not have kept the fetched records: fetch again
        for key in list(self._watched.memory.seen):
            parts = parse_key(self._watched.info["folder"], key)
            file = self._watched.folder.evidence_file(parts[2], parts[1]) if parts else None
            if file is None or not os.path.lexists(file):  # an invalid record has no file
                continue
            if is_whole(file, "records", self._watched.info["run_id"]):
                self.accept(key, file.read_bytes())
            else:
                del self._watched.memory.seen[key]  # read the record from the store again

    @property
    def by_store(self) -> bool:
        """Whether records come by the store: the controller can read it, and it accepts uploads of nodes."""
        return self._away_since is None and self._uploads_fail_since == float("inf")

    @property
    def unread_nodes(self) -> set[str]:
        """Names of nodes whose records do not come by the store, although it can be read."""
        parsed = (parse_key(self._watched.info["folder"], key) for key in (*self._unread, *self._refused))
        return {parts[2] for parts in parsed if parts}

    def read(self, now: float) -> list[str]:
        """Read the records that changed in the store. Returns a line of text for each stage whose state changed. Raises
        StoreError if the store does not list the records, or none can be read and one fails for the first time."""
        watched, began, has_read = self._watched, time.monotonic(), False
        errors: dict[str, StoreError] = {}
        lines: list[str | None] = [*self._guard(now)]
        for entry in sorted(watched.store.list(f"{watched.info['folder']}/records/"), key=lambda new: new.modified):
            if watched.memory.seen.get(entry.key) == entry.stamp or self._unread.get(entry.key, now) > now:
                continue
            try:
                raw = watched.store.get(entry.key, max_bytes=MAX_RECORD_BYTES)
            except StoreError as error:
                errors[entry.key] = error
                if time.monotonic() - began > AWAY_SECONDS:
                    break  # the next poll reads the other records
                continue
            has_read = True
            self._unread.pop(entry.key, None)
            watched.memory.seen[entry.key] = entry.stamp
            lines.append(self.accept(entry.key, raw, now, entry.stamp))
        if not has_read and errors.keys() - self._unread.keys():
            raise next(iter(errors.values()))
        for key in (key for key in errors if key not in self._unread):
            _, stage, node = parse_key(watched.info["folder"], key) or ("", None, None)
            reason, steps = unread.in_words(errors[key], watched.folder)
            watched.evidence.add_problem(f"{UNREAD}: {reason}", node=node, stage=stage)
            lines.append(f"{node or repr(key)}: the store does not give its record: {reason}: {steps}")
        self._unread |= dict.fromkeys(errors, now + AWAY_SECONDS)
        return [line for line in lines if line]

    def answered(self, now: float) -> None:
        """Note that the store answered, report the end of an outage, and test uploads when due."""
        if self._away_since is not None:
            self._watched.say(f"the store answers again after {now - self._away_since:.0f} s")
            self._away_since, self.due_at = None, float("-inf")
            self._watched.store = self._access.store()
        if now - self._uploads_checked_at >= UPLOADS_SECONDS:
            self._uploads_checked_at = now
            self._check_uploads(now)

    def _check_uploads(self, now: float) -> None:
        """Test an upload by signed URL, as nodes do it: it may fail while other requests succeed. Raises StoreError."""
        watched, failing = self._watched, self._uploads_fail_since <= now
        problem = refused(upload(watched.store, f"{watched.info['folder']}/{UPLOAD_CHECK}"))
        if problem and not failing:
            self._uploads_fail_since = now
            steps = launch_errors.classify("", problem).steps
            watched.say(f"{problem}: nodes keep their records, which are fetched from them: {steps}")
            watched.evidence.add_problem(f"{problem} at {run_folder.now()}")
        elif failing and not problem:
            watched.say(f"the store takes uploads by signed URL again after {now - self._uploads_fail_since:.0f} s")
            self._uploads_fail_since = float("inf")

    def failed(self, now: float, error: StoreError) -> None:
        """Handle a store that does not answer: report that once, ask less often, restart the embedded store."""
        if self._away_since is None:
            self._away_since = now
            reason, steps = unread.in_words(error, self._watched.folder)
            self._watched.say(f"the store does not answer; nodes continue and keep their records: {reason}: {steps}")
        self.due_at = now + min(AWAY_SECONDS, now - self._away_since)
        try:
            if self._access.start():
                self._watched.say("the embedded store was restarted")
            # a clean of another run may have rotated the store's keys
            self._watched.store = Store(self._access.connection(), timeout=AWAY_TIMEOUT, attempts=1)
        except StoreError as broken:
            self._watched.say(str(broken))

    def _note_refusal(self, key: str, raw: bytes, *, is_of_store: bool) -> None:
        """Handle an invalid record. One from the store is fetched from its node later; one that came from the node
        itself and claims the end of an attempt ends its stage."""
        _, stage, node = parse_key(self._watched.info["folder"], key) or ("", "", "")
        view = self._watched.views.get(node)
        if view is None or stage not in view.stages:
            return
        if is_of_store:
            self._refused.add(key)
        elif attempt := claimed_end(raw):
            view.refused[stage] = attempt

    def accept(self, key: str, raw: bytes, now: float | None = None, stamp: str | None = None) -> str | None:
        """Check a node's record and keep it as evidence. Returns a line if a state changed or the record is invalid.
        `now`: time of arrival on the monotonic clock, None for a record read earlier; `stamp`: the store's version of
        the record, None for one that did not come by the store."""
        watched = self._watched
        watched.memory.seen.setdefault(key, "")  # a later controller finds the record in the results
        before = len(watched.evidence.problems)
        record = take_record(watched.evidence, watched.info, key, raw)
        self._progress.note(watched.info, key, stamp, record)
        self._refused.discard(key)
        if record is None:
            self._note_refusal(key, raw, is_of_store=stamp is not None)
            new = watched.evidence.problems[before:]
            return "; ".join(f"refused: {problem['node'] or key!r}: {problem['reason']}" for problem in new) or None
        node, stage = record["node"], record["stage"]
        view = watched.views[node]
        known, digests = view.records.get(stage), watched.memory.digests
        is_confirmed = record == known and digests.get(key) == BY_CHANNEL  # the store has the record that the node gave
        if now is not None and record is not known and not is_confirmed:  # an outdated record changes nothing
            digests[key] = digest_of_bytes(raw, MAX_RECORD_BYTES) if stamp else BY_CHANNEL
        run_folder.write_json(watched.folder.evidence_file(node, stage), as_written(record))
        if view.lost:
            view.lost, view.misses = False, 0
        if now is not None:
            view.answered_at = now
            if view.launch.get("contact"):
                watched.write_launch(view, launch_errors.heard_again(view.launch))
        message = record["message"]
        messages = (one.records.get(stage, {}).get("message") for one in watched.views.values())
        is_new = record["state"] == "running" and message.startswith(WAITING) and message not in messages
        line = update(view, stage, record, time.monotonic() if now is None else now)
        return line or (f"{node} {stage}: {message}" if is_new else None)


#: Minimum interval between two uploads of the watch's state, and what each node adds to it.
INTERVAL_SECONDS, INTERVAL_SECONDS_A_NODE = 2.0, 0.01


class WatchPublisher:
    def __init__(self, watched: WatchedRun, silence_seconds: float, display: Any) -> None:
        self._watched, self._silence_seconds, self._display = watched, silence_seconds, display
        self._documents = publishing.DocumentPublisher(watched.folder)
        self._published_at = float("-inf")
        self.progress = publishing.WatchProgress()
        #: Whether run.json changed since its last upload.
        self.run_changed = True
        #: Nodes whose plan this controller has uploaded.
        self._plans: set[str] = set()

    def publish_run(self) -> None:
        """Upload run.json and the run's criteria if run.json changed. Raises StoreError, and RunError if the store has
        another run of this name."""
        if not self.run_changed:
            return
        watched = self._watched
        ensure_same_run(watched.store, watched.info)
        put_run(watched.store, watched.info)
        criteria = applied_criteria.kept_criteria(watched.folder)
        if criteria:
            publishing.put(watched.store, watched.info, applied_criteria.CRITERIA_FILE, criteria)
        self.run_changed = False

    def publish(self, now: float, window: Window, *, if_due: bool = False, ended: bool = False) -> None:
        """Upload the state of all launches and the progress. If the store is unreachable, the next call repeats it."""
        watched = self._watched
        interval = max(INTERVAL_SECONDS, INTERVAL_SECONDS_A_NODE * len(watched.views))
        if if_due and now - self._published_at < interval:
            return
        self._published_at = now
        nodes = {
            view.name: publishing.NodeUpdate(view.plan, None if view.launch is UNKNOWN else view.launch, view.to_start)
            for view in watched.views.values()
        }
        document = publishing.watch_document(
            watched.info,
            nodes,
            watched.evidence.problems,
            run_seconds=now - watched.opened,
            begun_seconds=now - watched.begun,
            window=(window.nodes, window.transfers),
            silence_seconds=self._silence_seconds,
            ended=ended,
        )
        try:
            for view in watched.views.values():
                # Upload plans here: each launch would need a connection of its own.
                if view.launched and view.name not in self._plans and watched.folder.plan_file(view.name).exists():
                    plan = watched.folder.read_plan(view.name)
                    publishing.put(watched.store, watched.info, f"plans/{view.name}.json", plan)
                    self._plans.add(view.name)
            self._documents.publish(watched.store, watched.info, document, now)
            self.progress.publish(watched.store, watched.info)
        except StoreError as error:
            if ended:
                watched.say(f"the end of the watch was not written to the store: {error}")
        except schemas.Invalid as error:  # an invalid document must not end the watch
            self._display.warning(f"the state of the launches was not written to the store: {error}")
