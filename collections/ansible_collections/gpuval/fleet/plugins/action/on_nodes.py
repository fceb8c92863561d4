# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run a file with one task on every node of the play, as a single task of the play."""

import time
from contextlib import closing
from pathlib import Path

from ansible import context

from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.text import some_of
from ..plugin_utils.records import launch_errors
from ..plugin_utils.ssh.findings import REACHABLE
from ..plugin_utils.ssh.node_tasks import NodeTasks

WAIT_SECONDS = 5.0
PROGRESS_SECONDS = 20.0
MOST_NAMED = 5


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        nodes, began = list(task_vars["ansible_play_hosts"]), time.monotonic()
        tasks = NodeTasks(self, task_vars, options["at_once"] or context.CLIARGS.get("forks") or 5)
        changed, shown_at, failed = False, began, {}

        def add_failure(node, message, name="", remedy=""):
            failed[node] = f"{name}: {message}: {remedy}" if remedy else message
            self._display.warning(f"{node}: {self._task.name}: {failed[node]}")

        with closing(tasks):
            for node in nodes:
                finding = options["probe"].get(node, {"state": REACHABLE})
                if finding["state"] == REACHABLE:
                    tasks.submit(node, "task", Path(options["tasks"]), {}, options["seconds"])
                else:
                    add_failure(node, finding["message"], finding["state"], finding["remedy"])
            while tasks.busy:
                for outcome in tasks.wait(WAIT_SECONDS):
                    answer = outcome.result or {}
                    changed = changed or bool(answer.get("changed"))
                    for text in answer.get("warnings", ()):
                        self._display.warning(text)
                    if outcome.failed or outcome.unreachable:
                        message = launch_errors.plain(outcome.message)
                        row = launch_errors.classify("", message)
                        known = (row.name, row.steps) if row.name != "not_started" else ()
                        add_failure(outcome.node, message, *known)
                seconds = time.monotonic() - began
                if time.monotonic() - shown_at > PROGRESS_SECONDS and tasks.busy:
                    shown_at = time.monotonic()
                    done = f"{len(nodes) - len(tasks.busy)} of {len(nodes)} node(s) done, {len(failed)} failed"
                    self._display.display(f"{self._task.name}: {done}, {seconds:.0f} s")
        result = {"changed": changed, "failed_nodes": failed}
        if failed and (options["required"] or len(failed) == len(nodes)):
            named = some_of(failed, MOST_NAMED)
            return {**result, "failed": True, "msg": f"failed on {len(failed)} of {len(nodes)} node(s): {named}"}
        return result
