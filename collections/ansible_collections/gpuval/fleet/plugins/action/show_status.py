# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Show where a run stands, from the store alone."""

from __future__ import annotations

import time
from datetime import datetime, timezone

from ansible_collections.gpuval.fleet.plugins.plugin_utils import runs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.actions import RUN_OPTIONS, ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence import MAX_RECORD_BYTES, Evidence, take_record
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store_access import STORE_OPTION, StoreAccess
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watching import NodeView, note, progress, status_lines


class ActionModule(ControllerAction):
    OPTIONS = {**RUN_OPTIONS, "store": STORE_OPTION}

    def work(self, options, task_vars):
        folder = self.folder(options)
        run = folder.read_run()
        store = StoreAccess(options["store"]).store()
        evidence, ages, moment = Evidence(), {}, datetime.now(timezone.utc)
        for entry in store.list(f"{run['folder']}/records/"):
            record = take_record(evidence, run, entry.key, store.get(entry.key, max_bytes=MAX_RECORD_BYTES))
            if record:
                age = (moment - entry.modified).total_seconds()
                ages[record["node"]] = min(age, ages.get(record["node"], age))
        views = self._views(folder, run, evidence)
        lines = [f"run {run['run_id']}, profile {run['profile']}", *status_lines(views, ages)]
        lines.append(progress(views, runs.seconds_since(run["created_at"])))
        for problem in evidence.problems:
            lines.append(f"refused: {problem['node'] or ''} {problem['stage'] or ''}: {problem['reason']}")
        for line in lines:
            self._display.display(line)
        return {"changed": False, "status": lines}

    @staticmethod
    def _views(folder, run, evidence):
        plans, launches = folder.read_plans(), folder.read_launches()
        views = []
        for name, expected in run["nodes"].items():
            unknown = {"stages": [{"name": stage, "expected_seconds": None} for stage in expected["stages"]]}
            launch = launches.get(name, {"state": "unknown", "message": "the node was never started"})
            view = NodeView(name, plans.get(name, unknown), launch)
            for stage, record in evidence.records.get(name, {}).items():
                note(view, stage, record, time.monotonic())
            views.append(view)
        return views
