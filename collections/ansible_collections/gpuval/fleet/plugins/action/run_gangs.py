# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Have nodes work together over SSH once their own stages have passed, and find the one for which that fails."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import session
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.orchestrate import Gangs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.action import RunAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.access import StoreAccess
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import launching
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.ssh_placement import SshPlacement, Work
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.watch import Limits, RunWatch


class ActionModule(RunAction):
    def work(self, options, task_vars):
        if self.check_mode:
            return {"changed": False, "skipped": True}
        folder, access = self.folder(options), StoreAccess(options["store"])
        limits = Limits.of({**options, **session.LIMITS})
        checks = criteria.load([*criteria.shipped_files(), *options["criteria"]])
        work = {
            kind: Work(Path(options[f"{kind}_tasks"]), options[f"{kind}_seconds"])
            for kind in ("launch", "fetch", "send")
        }
        launching.warm(access.connection())

        def carry(below):
            place = {"run_place": {"run_id": below.path.name, "results_dir": str(below.path.parent)}}
            placement = SshPlacement(self, task_vars, work, options["max_transfers"], place)
            try:
                RunWatch(limits, below, access, checks, placement, self._display).run()
            finally:
                placement.close()

        ways = session.ways(folder, access, checks, options, carry, self._display)
        settings = session.settings(options)
        session.begin(folder, settings)
        gangs = Gangs(folder, settings, ways)
        placed = session.placed(gangs.run["nodes"], task_vars["ansible_play_hosts_all"], task_vars["hostvars"])
        changed = gangs.carry_out(placed, session.properties(folder, gangs.run))
        return {"changed": changed, **session.summary(gangs.document)}
