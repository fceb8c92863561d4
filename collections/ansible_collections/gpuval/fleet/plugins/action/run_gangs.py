# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the stages of gangs once their members' own stages have passed, and search for the node that makes one fail."""

from __future__ import annotations

from ..plugin_utils.gang import document, session
from ..plugin_utils.gang.orchestrate import Gangs
from ..plugin_utils.judge import criteria
from ..plugin_utils.runs import folder as run_folder
from ..plugin_utils.runs import state as run_state
from ..plugin_utils.runs.action import RunAction
from ..plugin_utils.store.access import open_store
from ..plugin_utils.watch.watch import Limits
from .watch_run import WATCHERS


class ActionModule(RunAction):
    def work(self, options, task_vars):
        if self.check_mode:
            return {"changed": False, "skipped": True}
        folder, access = self.folder(options), open_store(options["store"])
        known = document.read(folder)
        if known and known["ended_at"] and run_folder.is_unreported(folder.read_run()):
            return {"changed": False, **session.summary(known)}
        folder.advance(run_state.WORKING)
        limits = Limits.of({**options, **session.LIMITS})
        checks = criteria.beside_shipped(options["criteria"])
        with WATCHERS[options["placement"]](self, options, task_vars, gangs=True) as watcher:
            context = session.context(
                folder, access, checks, options, lambda below: watcher.watch(below, limits, checks), self._display
            )
            context.address = watcher.address
            settings = session.settings(options)
            session.begin(folder, settings)
            gangs = Gangs(folder, settings, context)
            placed = session.placed(gangs.run["nodes"], task_vars["ansible_play_hosts_all"], task_vars["hostvars"])
            changed = gangs.run_all(placed, session.properties(folder, gangs.run))
        return {"changed": changed, **session.summary(gangs.document)}
