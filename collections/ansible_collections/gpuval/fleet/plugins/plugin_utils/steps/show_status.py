"""Show where a run stands, from its folder or the store, once or until it has ended."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from ...module_utils.errors import StoreError
from ..core.console import COLUMNS
from ..core.escape import console_line
from ..core.processes import Parent
from ..core.step_options import StoreOptions
from ..core.text import some_of
from ..runs import folder, overview, publishing
from ..runs import state as run_state
from ..runs.command import RunCommand, RunOptions
from ..status import lines as status_lines
from ..status import status as run_status
from ..status.folder_reader import is_current, read_status

#: A watch without news prints its progress at least this often.
QUIET_SECONDS = 60.0
#: Max seconds to watch a run beyond its deadline.
BEYOND_SECONDS = 1800.0
MOST_REFUSED = 20


class RunEnded(Exception):  # noqa: N818 - no error
    """The end of a run is known without its store. The argument is the result of the step."""


class ShowStatusOptions(RunOptions):
    store: StoreOptions
    folder: str = ""
    nodes: Sequence[str] = ()
    whole: bool = False
    lines: bool = False
    watch: bool = False
    interval_seconds: float = 10.0
    watch_seconds: float = 0.0


def show_status(action: RunCommand, options: ShowStatusOptions) -> dict[str, Any]:
    if options.interval_seconds <= 0 or options.watch_seconds < 0:
        raise folder.RunError("status_interval_seconds must be greater than 0, and status_watch_seconds not less")
    action.remember_place(options)
    try:
        return StatusDisplay(action, options).show()
    except RunEnded as ended:
        return ended.args[0]


class StatusDisplay:
    def __init__(self, action, options):
        self.action, self.options, self.lines = action, options, []
        self.reader = None

    def show(self):
        action, options, results = self.action, self.options, self.options.results_dir
        self.own = folder.own(results, options.run_id, options.folder, action.inventory, opened=True)
        if self.own:
            action.name_newer(options.run_id, self.own)
        if not (self.own or options.run_id or options.folder) and folder.known_runs(results):
            action.folder(options)  # raises RunError: the runs here are of other inventories
        if not (self.own and is_current(self.own)):
            self._open_store()
        status = self._look()
        self._show(status)
        if options.watch and not status.over:
            status = self._watch(status)
            self._show(status)
        return self._concluded(status)

    def _open_store(self):
        """Read the run from the store from now on. Raises RunEnded for a run whose end is known without the store."""
        from ..status.reader import StatusReader  # noqa: PLC0415 - seldom needed, takes a tenth of a second
        from ..store import file_recovery, stored_runs  # noqa: PLC0415
        from ..store.access import open_store  # noqa: PLC0415

        action, options = self.action, self.options
        access = open_store(options.store)
        if self.own and not action.check_mode:
            file_recovery.recover(self.own, access, action.display.warning)
        if self.own and not access.known():
            self._end_with_verdict()
        if self.own and self.own.seen().never_started:  # the folder has its reason, even if the store is down
            stored = run_status.StoredStatus(run=self.own.read_run(), moment=datetime.now(timezone.utc))
            raise RunEnded(self._concluded(run_status.Status(self._with_own(stored))))
        store = access.store()
        run, lines = (self.own.read_run(), []) if self.own else stored_runs.find(store, options.run_id, options.folder)
        self._say(*lines)
        self.reader = StatusReader(store, run)

    def _concluded(self, status):
        result = {
            "changed": False,
            "msg": status_lines.conclusion(status),
            "run_id": status.known.run["run_id"],
            "verdict": status.verdict,
        }
        if not status.accepted:  # Ansible prints message and result of a failed task
            return {**result, "failed": True}
        self._say(result["msg"])
        return {**result, "status": self.lines, "nodes": {node.name: node.state for node in status.nodes}}

    def _end_with_verdict(self):
        """Raise RunEnded with the verdict of a run whose store `make clean` removed. Returns if the run has not ended,
        or was not reported yet."""
        run, verdict = self.own.read_run(), publishing.judged(self.own)
        if run["finished_at"] is None or (verdict is None and folder.is_unreported(run)):
            return
        if verdict is None:
            raise folder.RunError(overview.without_verdict(self.own, run))
        message = f"{status_lines.ended_line(run['run_id'], verdict)}: {self.own.path / 'report.html'}"
        self._say(message)
        result = {"changed": False, "msg": message, "run_id": run["run_id"], "verdict": verdict["verdict"]}
        raise RunEnded({**result, "failed": verdict["verdict"] not in run_status.ACCEPTED})

    def _look(self):
        stored = read_status(self.own) if self.own else None
        if stored is None:
            if self.reader is None:  # the run's controller ended since the last look
                self._open_store()
            stored = self.reader.look()
        age = (stored.moment - stored.watch_modified).total_seconds() if stored.watch_modified else None
        stored = self._with_own(stored) if self.own else replace(stored, controller=run_state.seen(stored.run, age))
        return run_status.Status(stored)

    def _with_own(self, stored):
        """The status with data that only the run's own controller has, since it could not upload them."""
        run, state = self.own.read_run(), self.own.seen()
        if stored.watch is None and state.started:
            launches, plans = self.own.read_launches(), self.own.read_plans()
            updates = {name: publishing.NodeUpdate(plans.get(name), launches.get(name)) for name in run["nodes"]}
            document = publishing.watch_document(
                run,
                updates,
                [],
                run_seconds=folder.seconds_since(run["created_at"]),
                begun_seconds=folder.seconds_since(self.own.begun_at(run)),
                window=(0, 0),
                silence_seconds=run_status.DEFAULT_SILENCE_SECONDS,
                ended=state.name != run_state.WORKING,
            )
            sign = timedelta(seconds=self.own.sign_age() or 0.0)
            stored = replace(stored, watch=document, watch_modified=stored.moment - sign)
        path = self.own.verdict_file
        verdict = (folder.read_object(path) if run["finished_at"] else {}) or stored.verdict
        return replace(stored, run=run, verdict=verdict, controller=state)

    def _watch(self, status):
        """Show changes until the run is over or the time limit is reached, and now and then that nothing changed."""
        parent = Parent()
        until = time.monotonic() + (self.options.watch_seconds or max(0.0, status.left) + BEYOND_SECONDS)
        spoke, away = time.monotonic(), False
        while not status.over:
            now = time.monotonic()
            if now >= until:
                self._say("the time for watching is over: give more with status_watch_seconds")
                break
            time.sleep(max(0.0, min(self.options.interval_seconds, until - now)))
            parent.check()
            try:
                after = self._look()
                if away:
                    self._say("the store answers again")
                away = False
            except StoreError as error:
                if self.own and publishing.is_final(self.own.read_run(), publishing.judged(self.own)):
                    self._end_with_verdict()  # the run was cleaned since the last look
                if not away:
                    self._say(f"the store does not answer: {error}")
                away = True
                continue
            nodes = self._chosen(after)
            lines = status_lines.changes(status, after, nodes, lines=self.options.lines)
            lines += status_lines.round_changes(status, after)
            if after.at_gangs and after.round:  # the run's own deadline is that of the nodes' own stages
                until = max(until, now + max(0.0, after.round.left) + BEYOND_SECONDS)
            lines += [line for line in after.known.refused if line not in status.known.refused][:MOST_REFUSED]
            status = after
            self._say(*lines)
            if lines or COLUMNS or time.monotonic() - spoke >= QUIET_SECONDS:
                self.lines.append(status_lines.progress_line(status))
                self.action.display.progress(self.lines[-1])
                spoke = time.monotonic()
        return status

    def _show(self, status):
        nodes = self._chosen(status)
        if status.never_started:  # only the concluding message is printed
            return
        complete = self.options.whole or bool(self.options.nodes) or self.action.display.verbosity > 0
        lines = [*status_lines.head_lines(status), "", *status_lines.table_lines(status, nodes, complete=complete)]
        if self.options.lines:
            lines += ["", *status_lines.done_lines(status, nodes)]
        refused = status.known.refused
        lines += refused[:MOST_REFUSED]
        if len(refused) > MOST_REFUSED:
            lines.append(f"... and {len(refused) - MOST_REFUSED} more that were refused")
        self._say(*lines)

    def _chosen(self, status):
        try:
            return run_status.chosen(status, self.options.nodes)
        except KeyError as error:
            nodes = some_of(sorted(status.known.run["nodes"]))
            raise folder.RunError(f"no node of the run fits {error.args[0]!r}; it has {nodes}") from None

    def _say(self, *lines):
        cleaned = [*map(console_line, lines)]
        self.lines += cleaned
        self.action.display.display(*cleaned)
