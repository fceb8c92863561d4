# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Show where a run stands, from the store alone, once or until it has ended."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from ..module_utils.store import StoreError
from ..plugin_utils.core.escape import console_line
from ..plugin_utils.core.parent_process import Parent
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.core.text import some_of
from ..plugin_utils.runs import folder, overview, publishing
from ..plugin_utils.runs import state as run_state
from ..plugin_utils.runs.action import RunAction
from ..plugin_utils.status import lines as status_lines
from ..plugin_utils.status import status as run_status
from ..plugin_utils.status.reader import StatusReader
from ..plugin_utils.store import file_recovery, stored_runs
from ..plugin_utils.store.access import open_store

#: A watch without news prints its progress at least this often.
QUIET_SECONDS = 60.0
#: A run is watched at most so long beyond its deadline.
BEYOND_SECONDS = 1800.0
MOST_REFUSED = 20


class ActionModule(RunAction):
    def work(self, options, task_vars):
        if options["interval_seconds"] <= 0 or options["watch_seconds"] < 0:
            raise folder.RunError("status_interval_seconds must be greater than 0, and status_watch_seconds not less")
        self.options = options
        self.lines = []
        results = project_path(options["results_dir"])
        self.own = folder.own(results, options["run_id"], options["folder"], self.inventory, opened=True)
        if self.own:
            self.name_newer(options, self.own.path)
        if not (self.own or options["run_id"] or options["folder"]) and folder.known_run_ids(results):
            self.folder(options)  # the runs here are of other inventories; says so
        access = open_store(options["store"])
        if self.own and not self.check_mode:
            file_recovery.recover(self.own, access, self._display.warning)
        if self.own and not access.known() and (verdict := self._last_verdict()):
            return verdict
        if self.own and self.own.seen().never_started:  # its reason is here, whether the store answers or not
            here = run_status.Known(run=self.own.read_run(), moment=datetime.now(timezone.utc))
            return self._concluded(run_status.status_of(self._with_own(here)))
        self.store = access.store()
        self.reader = StatusReader(self.store, self._run())
        status = self._look()
        self._show(status)
        if options["watch"] and not status.over:
            status = self._watch(status)
            self._show(status)
        return self._concluded(status)

    def _concluded(self, status):
        result = {
            "changed": False,
            "msg": status_lines.conclusion(status),
            "run_id": status.known.run["run_id"],
            "verdict": status.verdict,
        }
        if not status.accepted:  # the message of a task that failed is printed, and its result whole
            return {**result, "failed": True}
        self._say(result["msg"])
        return {**result, "status": self.lines, "nodes": {node.name: node.state for node in status.nodes}}

    def _last_verdict(self):
        """The end of a run whose store `make clean` has removed; None before its end, or if its report is to come."""
        run, verdict = self.own.read_run(), publishing.judged(self.own)
        if run["finished_at"] is None or (verdict is None and folder.is_unreported(run)):
            return None
        if verdict is None:
            raise folder.RunError(overview.without_verdict(self.own, run))
        message = f"{status_lines.ended_line(run['run_id'], verdict)}: {self.own.path / 'report.html'}"
        self._say(message)
        result = {"changed": False, "msg": message, "run_id": run["run_id"], "verdict": verdict["verdict"]}
        return {**result, "failed": verdict["verdict"] not in run_status.ACCEPTED}

    def _run(self):
        if self.own:
            return self.own.read_run()
        run, lines = stored_runs.find(self.store, self.options["run_id"], self.options["folder"])
        for line in lines:
            self._say(line)
        return run

    def _look(self):
        known = self.reader.look()
        age = (known.moment - known.watch_modified).total_seconds() if known.watch_modified else None
        known = self._with_own(known) if self.own else replace(known, controller=run_state.seen(known.run, age))
        return run_status.status_of(known)

    def _with_own(self, known):
        """On the controller of the run: with what it could not put into the store."""
        run, seen = self.own.read_run(), self.own.seen()
        if known.watch is None and seen.started:
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
                ended=seen.name != run_state.WORKING,
            )
            sign = timedelta(seconds=self.own.sign_age() or 0.0)
            known = replace(known, watch=document, watch_modified=known.moment - sign)
        path = publishing.verdict_file(self.own)
        verdict = (folder.read_object(path) if run["finished_at"] else {}) or known.verdict
        return replace(known, run=run, verdict=verdict, controller=seen)

    def _watch(self, status):
        """Until the run is over or the deadline has come; what is new, and now and then that nothing is."""
        parent = Parent()
        until = time.monotonic() + (self.options["watch_seconds"] or max(0.0, status.left) + BEYOND_SECONDS)
        spoke, away = time.monotonic(), False
        while not status.over:
            now = time.monotonic()
            if now >= until:
                self._say("the time for watching is over: give more with status_watch_seconds")
                break
            time.sleep(max(0.0, min(self.options["interval_seconds"], until - now)))
            parent.check()
            try:
                after = self._look()
                if away:
                    self._say("the store answers again")
                away = False
            except StoreError as error:
                if not away:
                    self._say(f"the store does not answer: {error}")
                away = True
                continue
            nodes = self._chosen(after)
            lines = status_lines.changes(status, after, nodes, lines=self.options["lines"])
            lines += status_lines.round_changes(status, after)
            if after.at_gangs and after.round:  # the run's own deadline is that of the nodes' own stages
                until = max(until, now + max(0.0, after.round.left) + BEYOND_SECONDS)
            lines += [line for line in after.known.refused if line not in status.known.refused][:MOST_REFUSED]
            status = after
            if lines or time.monotonic() - spoke >= QUIET_SECONDS:
                for line in [*lines, status_lines.progress_line(status)]:
                    self._say(line)
                spoke = time.monotonic()
        return status

    def _show(self, status):
        nodes = self._chosen(status)
        if status.never_started:  # the conclusion says all
            return
        whole = self.options["whole"] or bool(self.options["nodes"]) or self._display.verbosity > 0
        lines = [*status_lines.head_lines(status), "", *status_lines.table_lines(status, nodes, whole=whole)]
        if self.options["lines"]:
            lines += ["", *status_lines.done_lines(status, nodes)]
        refused = status.known.refused
        lines += refused[:MOST_REFUSED]
        if len(refused) > MOST_REFUSED:
            lines.append(f"... and {len(refused) - MOST_REFUSED} more that were refused")
        for line in lines:
            self._say(line)

    def _chosen(self, status):
        try:
            return run_status.chosen(status, self.options["nodes"])
        except KeyError as error:
            nodes = some_of(sorted(status.known.run["nodes"]))
            raise folder.RunError(f"no node of the run fits {error.args[0]!r}; it has {nodes}") from None

    def _say(self, line):
        line = console_line(line)
        self.lines.append(line)
        self._display.display(line)
