# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Carry a run out over SSH: what is to be done on nodes is done by tasks beside the watch."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.action import RunAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.access import StoreAccess
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import launching
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.ssh_placement import SshPlacement, Work
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.watch import Limits, RunWatch


class ActionModule(RunAction):
    def work(self, options, task_vars):
        work = {
            kind: Work(Path(options[f"{kind}_tasks"]), options[f"{kind}_seconds"])
            for kind in ("launch", "fetch", "send")
        }
        placement = SshPlacement(self, task_vars, work, options["max_transfers"])
        try:
            if self.check_mode:
                launching.warm_schema()
                return self._show(placement)
            access = StoreAccess(options["store"])
            launching.warm(access.connection())
            checks = criteria.load([*criteria.shipped_files(), *options["criteria"]])
            watch = RunWatch(Limits.of(options), self.folder(options), access, checks, placement, self._display)
            started = watch.run()
        finally:
            placement.close()
        return {"changed": bool(started), "started": started}

    def _show(self, placement):
        """Check mode: the plan of each node."""
        problems = []
        for outcome in placement.plans():
            if outcome.failed:
                problems.append(f"{outcome.node}: {outcome.message}")
            elif self._task.diff:
                self._display.display(f"{outcome.node}:\n{outcome.result['diff']['after']}")
        if problems:
            return {"failed": True, "msg": "; ".join(problems)}
        return {"changed": True, "started": [], "msg": f"plans of {len(placement.present)} node(s)"}
