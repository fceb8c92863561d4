# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Record that the gangs of a run ended by an error, so that its nodes are judged and reported with that reason."""

from __future__ import annotations

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import clean_text
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import session
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.action import RunAction


class ActionModule(RunAction):
    def work(self, options, task_vars):
        if self.check_mode:
            return {"changed": False, "skipped": True}
        reason = session.broke_off(self.folder(options), options["message"] or "no message")
        self._display.error(clean_text(f"{reason}. What there is of the run is judged and reported all the same."))
        return {"changed": True, "reason": reason, "msg": reason}
