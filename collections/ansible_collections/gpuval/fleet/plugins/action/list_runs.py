# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""List the runs of an inventory, and write what a validation of the nodes that did not pass takes."""

from __future__ import annotations

from pathlib import Path

from ..plugin_utils.core.paths import project_path
from ..plugin_utils.core.text import some_of
from ..plugin_utils.jobs import stages as job_stages
from ..plugin_utils.runs import folder as run_folder
from ..plugin_utils.runs import origin, overview
from ..plugin_utils.runs.action import RunAction
from ..plugin_utils.runs.settings import SHIPPED_STAGES


class ActionModule(RunAction):
    def work(self, options, task_vars):
        if options["rerun"]:
            return self._rerun(options, task_vars["hostvars"])
        results = project_path(options["results_dir"])
        found = overview.rows(results, self.inventory)
        others = run_folder.of_others(results, self.inventory)
        message = f"{len(found)} run(s) of {origin.shown(self.inventory) or 'all inventories'} in {results}"
        message += "" if found else "; `make validate` starts one"
        self._display.display(*(overview.lines(found) if found else ()), message)
        if others:
            self._display.display(f"runs of other inventories: {origin.others_line(others)}")
        return {"changed": False, "runs": found, "msg": message}

    def _rerun(self, options, hosts):
        folder, target = self.own_folder(options), Path(options["rerun"])
        known = {*SHIPPED_STAGES, *job_stages.names(map(project_path, options["jobs"]))}
        names, settings = overview.rest(
            folder, lambda stage: stage in known or any(f"{stage}_workload" in hosts[name] for name in hosts)
        )
        what = f"validating {some_of(names)} again" if names else overview.passed_line(folder)
        message = f"run {folder.path.name}: {what}"
        self._display.display(message)
        if not self.check_mode:
            run_folder.write_bytes(target / "nodes", "".join(f"{name}\n" for name in names).encode())
            run_folder.write_json(target / "settings.json", settings)
        return {"changed": bool(names), "nodes": names, "msg": message}
