# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Launch the plans of a run and watch it until every node is done, over SSH, on Kubernetes or on Slurm."""

from __future__ import annotations

from ..plugin_utils.cluster.watcher import ClusterWatcher
from ..plugin_utils.judge import criteria
from ..plugin_utils.runs import folder as run_folder
from ..plugin_utils.runs import state as run_state
from ..plugin_utils.runs.action import RunAction
from ..plugin_utils.slurm.placement import SlurmWatcher
from ..plugin_utils.watch.ssh_placement import SshWatcher
from ..plugin_utils.watch.watch import Limits

#: By the option `placement`.
WATCHERS = {"ssh": SshWatcher, "kubernetes": ClusterWatcher, "slurm": SlurmWatcher}


class ActionModule(RunAction):
    def work(self, options, task_vars):
        folder = self.folder(options)
        if not self.check_mode and run_folder.is_unreported(folder.read_run()):
            return {"changed": False, "started": [], "requests": 0, "msg": "its nodes are done: it is collected"}
        watcher = WATCHERS[options["placement"]](self, options, task_vars)
        if self.check_mode:
            return self._show(watcher.plans())
        checks = criteria.beside_shipped(options["criteria"])
        folder.advance(run_state.WORKING)
        run_folder.remember(folder.path.parent, folder.path.name)
        with watcher:
            started = watcher.watch(folder, Limits.of(options), checks)
            return {"changed": bool(started), "started": started, "requests": watcher.requests}

    def _show(self, plans):
        if self._task.diff:
            for name, plan in plans.items():
                self._display.display(f"{name}:", *plan.split("\n"))
        return {"changed": True, "started": [], "msg": f"plans of {len(plans)} node(s)"}
