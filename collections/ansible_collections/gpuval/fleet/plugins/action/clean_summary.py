# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Say what a clean removed and what it left behind, and fail when something is left."""

from __future__ import annotations

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.action import ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import project_path
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import cleaning


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        played = task_vars["ansible_play_hosts_all"]
        outcomes = {name: self._outcome(task_vars["hostvars"], name, options["variable"]) for name in played}
        outcomes |= cleaning.absent(options["nodes"], played, task_vars["groups"]["all"])
        summary = cleaning.summarize(options["run_ids"], outcomes, trial=self.check_mode)
        if not self.check_mode:
            self._remember(options, outcomes)
        self._display.display("\n".join(summary.lines))
        return {
            "changed": False,
            "failed": bool(summary.open),
            "counts": summary.counts,
            "not_clean": summary.open,
            "msg": f"not clean: {', '.join(summary.open)}" if summary.open else summary.lines[0],
        }

    @staticmethod
    def _remember(options, outcomes):
        """A node that is clean once need not be looked for when the inventory has it no more."""
        results, at = project_path(options["results_dir"]), run_folder.now()
        clean = [name for name, outcome in outcomes.items() if outcome["state"] == cleaning.CLEAN]
        for run_id in options["run_ids"] or run_folder.known_run_ids(results):
            folder = run_folder.RunFolder(results / run_id)
            if folder.run_file.exists():
                run_folder.write_json(folder.cleaned_file, {**folder.read_cleaned(), **dict.fromkeys(clean, at)})

    @staticmethod
    def _outcome(hostvars, name, variable):
        result = hostvars[name].get(variable) or {}
        if "outcome" in result:
            return result["outcome"]
        if result.get("failed") and not result.get("unreachable"):  # it hung for longer than cleaning a node may take
            return cleaning.answered(result)
        return cleaning.unreached(str(result.get("msg") or "the clean of this node did not take place"))
