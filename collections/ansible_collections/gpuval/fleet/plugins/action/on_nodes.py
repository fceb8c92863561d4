# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One task on every node, as one task of the play."""

from __future__ import annotations

from pathlib import Path

from ansible import context

from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.text import some_of
from ..plugin_utils.ssh.node_tasks import NodeTasks

WAIT_SECONDS = 5.0
MOST_NAMED = 5


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        nodes = list(task_vars["ansible_play_hosts"])
        tasks = NodeTasks(self, task_vars, context.CLIARGS.get("forks") or 5)  # they wait for their nodes
        changed, failed = False, {}

        try:
            for node in nodes:
                tasks.submit(node, "task", Path(options["tasks"]), {}, options["seconds"])
            while tasks.busy:
                for outcome in tasks.wait(WAIT_SECONDS):
                    changed = changed or bool((outcome.result or {}).get("changed"))
                    if outcome.failed or outcome.unreachable:
                        failed[outcome.node] = outcome.message
                        self._display.warning(f"{outcome.node}: {self._task.name}: {outcome.message}")
        finally:
            tasks.close()
        result = {"changed": changed, "failed_nodes": failed}
        if failed and (options["required"] or len(failed) == len(nodes)):
            named = some_of(failed, MOST_NAMED)
            return {**result, "failed": True, "msg": f"failed on {len(failed)} of {len(nodes)} node(s): {named}"}
        return result
