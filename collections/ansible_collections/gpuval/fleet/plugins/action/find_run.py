# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find a run that was opened earlier: by id, or the latest."""

from __future__ import annotations

from ansible_collections.gpuval.fleet.plugins.plugin_utils.actions import RUN_OPTIONS, ControllerAction


class ActionModule(ControllerAction):
    OPTIONS = RUN_OPTIONS

    def work(self, options, task_vars):
        folder = self.folder(options)
        run = folder.read_run()
        return {"changed": False, "run": run, "results": str(folder.path), "msg": f"run {run['run_id']}"}
