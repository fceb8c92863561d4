# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the forms of the report that people and other programs read, from report.json and the evidence beside it."""

from __future__ import annotations

from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import write_forms
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import applied_criteria, publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.action import RunAction


class ActionModule(RunAction):
    def work(self, options, task_vars):
        if self.check_mode:
            return {"changed": False, "skipped": True}
        folder = self.folder(options)
        report = run_folder.read_report(folder)
        paths = write_forms(report, folder.path)
        held_against = applied_criteria.criteria_file(folder)
        return {
            "changed": True,
            "folder": report["run"]["folder"],
            "files": [
                *(str(path) for path in paths.values()),
                str(folder.path / "report.json"),
                str(publishing.keep_verdict(folder, report)),
            ],
            "run_file": str(folder.run_file),
            "run_files": [str(path) for path in (folder.run_file, held_against) if path.exists()],
            "from_store": folder.is_copy,
            "msg": f"report in {folder.path}",
        }
