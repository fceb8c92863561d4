# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the step (a function named by the option `step`) of a task that needs only the controller, no node."""

from ..plugin_utils.core.step_options import load_step, step_arguments, step_spec
from ..plugin_utils.runs.action import RunAction


class ActionModule(RunAction):
    folder_of_steps = "steps"

    def spec(self):
        self._step = load_step(str(self._task.args.get("step", "")), self.folder_of_steps)
        return {"step": {"type": "str", "required": True}, **step_spec(self._step)}

    def work(self, options, task_vars):
        if options.get("results_dir"):
            self.adopt_runs(options["results_dir"])
        return self._step(self, **step_arguments(self._step, options))
