# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Watch a run through the store: one LIST a round shows what changed, only that is read."""

from __future__ import annotations

import time

from ansible_collections.gpuval.fleet.plugins.module_utils.store import StoreError, StoreErrors
from ansible_collections.gpuval.fleet.plugins.plugin_utils import criteria, retry, runs, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.actions import RUN_OPTIONS, ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence import (
    MAX_RECORD_BYTES,
    Evidence,
    parse_key,
    take_record,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store_access import STORE_OPTION, StoreAccess, put_run
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watching import (
    NodeView,
    note,
    progress,
    to_ask,
    to_restart,
)

#: Nodes cancel by themselves at the deadline; their last records may still be on the way.
DEADLINE_SLACK_SECONDS = 120
PROGRESS_SECONDS = 30


class ActionModule(ControllerAction):
    OPTIONS = {
        **RUN_OPTIONS,
        "store": STORE_OPTION,
        "criteria": {"type": "list", "elements": "path", "default": []},
        "poll_seconds": {"type": "float", "default": 2.0},
        "pull_seconds": {"type": "float", "default": 15.0},
        "silence_seconds": {"type": "float", "default": 90.0},
        "retries": {"type": "int", "default": 1},
    }

    def work(self, options, task_vars):
        if self.check_mode:
            return {"changed": False, "skipped": True, "finished": True, "pull": [], "relaunch": {}}
        self.options = options
        self.run_folder = self.folder(options)
        self.run_info = self.run_folder.read_run()
        self.checks = criteria.load([*criteria.shipped_files(), *options["criteria"]])
        self.access = StoreAccess(options["store"])
        self.store = self.access.store()
        put_run(self.store, self.run_info)
        self.memory = self._remembered()
        problems = self.run_folder.problems_file
        self.evidence = Evidence(problems=runs.read_json(problems) if problems.exists() else [])
        now = time.monotonic()
        self.started = now - runs.seconds_since(self.run_info["created_at"])
        begun = now - runs.seconds_since(self.run_folder.begun_at(self.run_info))
        self.deadline = begun + self.run_info["deadline_seconds"] + DEADLINE_SLACK_SECONDS
        self.views = self._views()
        self.judged = {}
        for key in list(self.memory["seen"]):
            self._take(key, self._kept(key))
        self._remember_times(now)
        answer = self._watch()
        self._remember()
        return {"changed": False, **answer}

    def _watch(self):
        """Until all nodes are over, the deadline has passed, or nodes need something done over their connection."""
        spoke = float("-inf")
        away_since = None
        while True:
            now = time.monotonic()
            try:
                lines = self._round(now)
                if away_since is not None:
                    self._say(f"the store answers again after {now - away_since:.0f} s")
                    away_since = None
            except (StoreError, *StoreErrors) as error:
                lines = []
                if away_since is None:
                    away_since = now
                    self._say(f"the store does not answer, nodes go on and keep their records: {error}")
                self._revive()
            for line in lines:
                self._say(line)
            if lines or now - spoke >= PROGRESS_SECONDS:
                self._say(progress(list(self.views.values()), now - self.started))
                spoke = now
            if self.run_folder.read_run()["finished_at"] is not None:
                self._say("the run was closed by another command: the watch ends")
                return {"finished": True, "pull": [], "relaunch": {}}
            answer = self._decide(now)
            if answer is not None:
                return answer
            time.sleep(self.options["poll_seconds"])

    def _decide(self, now):
        views = list(self.views.values())
        relaunch = {} if now > self.deadline else self._relaunches()
        if relaunch:
            return {"finished": False, "pull": [], "relaunch": relaunch}
        if all(view.over for view in views):
            for view in views:
                if view.given_up:
                    self._say(f"{view.name}: its runner ends whenever it is started: read its runner.log on the node")
            return {"finished": True, "pull": [], "relaunch": {}}
        if now > self.deadline:
            late = [view.name for view in views if not view.over]
            self._say(
                f"the deadline of {self.run_info['deadline_seconds']:.0f} s has passed; not done: {', '.join(late)}"
            )
            return {"finished": True, "pull": [], "relaunch": {}}
        pull = to_ask(views, now, silence=self.options["silence_seconds"], interval=self.options["pull_seconds"])
        if pull:
            for name in pull:
                self.views[name].asked_at = now
            return {"finished": False, "pull": pull, "relaunch": {}}
        return None

    def _relaunches(self):
        """Attempt 2 for stages that may be measured again, and resumption where a runner is gone."""
        orders = {}
        for name in to_restart(list(self.views.values())):
            view = self.views[name]
            self._say(f"{name}: its runner is gone, the plan is taken up where it stands")
            self.memory["restarts"][name] = view.restarts + 1
            orders[name] = {"attempt": view.launch.get("attempt", 1), "stages": view.launch.get("stages", [])}
        if not self.options["retries"]:
            return orders
        for view in self.views.values():
            if view.launch.get("attempt", 1) > 1 or not view.launched or not view.complete:
                continue
            if self.judged.get(view.name) == view.changed_at:
                continue  # nothing new since: judging every node at every poll costs a hundred nodes seconds
            self.judged[view.name] = view.changed_at
            node = verdict.judge_node(self.run_info, view.name, self.evidence, self.checks)
            failed = verdict.failed_criteria(node, self.checks)
            stages = retry.stages_to_retry(view.plan["stages"], view.records, failed, 1 + self.options["retries"])
            if stages:
                self._say(f"{view.name}: {', '.join(stages)} again, as attempt 2")
                orders[view.name] = {"attempt": view.launch.get("attempt", 1) + 1, "stages": stages}
        return orders

    def _round(self, now):
        lines = []
        for entry in self.store.list(f"{self.run_info['folder']}/records/"):
            if self.memory["seen"].get(entry.key) == entry.stamp:
                continue
            raw = self.store.get(entry.key, max_bytes=MAX_RECORD_BYTES)
            self.memory["seen"][entry.key] = entry.stamp
            line = self._take(entry.key, raw, now)
            if line:
                lines.append(line)
        return lines

    def _take(self, key, raw, now=None):
        if raw is None:
            return None
        before = len(self.evidence.problems)
        record = take_record(self.evidence, self.run_info, key, raw)
        if record is None:
            new = self.evidence.problems[before:]
            return "; ".join(f"refused: {problem['node'] or key!r}: {problem['reason']}" for problem in new) or None
        node, stage = record["node"], record["stage"]
        runs.write_json(self.run_folder.evidence_file(node, stage), record)
        return note(self.views[node], stage, record, now if now is not None else time.monotonic())

    def _kept(self, key):
        """A record read in an earlier round of this or another controller; None when it was refused then."""
        place = parse_key(self.run_info["folder"], key)
        if place is None:
            return None
        try:
            return self.run_folder.evidence_file(place[2], place[1]).read_bytes()
        except FileNotFoundError:
            return None

    def _views(self):
        launches, plans = self.run_folder.read_launches(), self.run_folder.read_plans()
        views = {}
        for name, expected in self.run_info["nodes"].items():
            plan = plans.get(name) or {
                "stages": [{"name": stage, "expected_seconds": None} for stage in expected["stages"]]
            }
            launch = launches.get(name, {"state": "unknown", "message": "the node was never started"})
            views[name] = NodeView(name, plan, launch, restarts=self.memory["restarts"].get(name, 0))
        return views

    def _remember_times(self, now):
        """When each node was heard of and asked: the watch is left and begun again for the sake of other nodes."""
        for view in self.views.values():
            view.changed_at = self.started + self.memory["changed"].get(view.name, now - self.started)
            asked = self.memory["asked"].get(view.name)
            view.asked_at = None if asked is None else self.started + asked

    def _revive(self):
        """The embedded store is ours to keep alive; an S3 service is waited for."""
        if self.access.embedded is None:
            return
        try:
            if self.access.embedded.start():
                self._say("the embedded store was started again")
            self.store = self.access.store()  # with the keys of now: a clean of another run may have changed them
        except StoreError as error:
            self._say(str(error))

    @property
    def _memory_file(self):
        return self.run_folder.state / "watch.json"

    def _remembered(self):
        empty = {"seen": {}, "restarts": {}, "changed": {}, "asked": {}}  # times in seconds since the run was opened
        try:
            return {**empty, **runs.read_json(self._memory_file)}
        except FileNotFoundError:
            return empty

    def _remember(self):
        views = self.views.values()
        self.memory["changed"] = {view.name: view.changed_at - self.started for view in views}
        self.memory["asked"] = {view.name: view.asked_at - self.started for view in views if view.asked_at is not None}
        runs.write_json(self._memory_file, self.memory)
        runs.write_json(self.run_folder.problems_file, self.evidence.problems)

    def _say(self, line):
        self._display.display(line)
