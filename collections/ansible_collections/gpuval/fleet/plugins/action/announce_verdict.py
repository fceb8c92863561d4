# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Print the FINAL ACCEPTANCE block, and fail unless the run passed."""

from __future__ import annotations

from ansible import constants
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import final_block
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.action import RunAction

CALLBACK = "gpuval.fleet.acceptance"
ACCEPTED = ("PASS", "PARTIAL")


class ActionModule(RunAction):
    def work(self, options, task_vars):
        if self.check_mode:
            return {"changed": False, "skipped": True}
        folder = self.folder(options)
        report = run_folder.read_report(folder)
        if CALLBACK not in constants.config.get_config_value("CALLBACKS_ENABLED"):
            self._display.display(final_block(report))
        verdict = report["verdict"]
        return {
            "changed": False,
            "failed": verdict not in ACCEPTED,
            "acceptance_report": str(folder.path / "report.json"),
            "verdict": verdict,
            "msg": f"FINAL ACCEPTANCE: {verdict}; read {folder.path / 'report.html'}",
        }
