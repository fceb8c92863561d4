# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run a step on a node: its controller half runs here and asks its node half, which Ansible runs on the node."""

from .controller import ActionModule as ControllerStep


class ActionModule(ControllerStep):
    _requires_connection = True
    folder_of_steps = "node_steps"

    def run(self, tmp=None, task_vars=None):
        """Merge the task's mapping `settings`, which a role renders as one template, into the task's options."""
        self._task.args |= self._task.args.pop("settings", {})
        return super().run(tmp, task_vars)
