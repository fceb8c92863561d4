# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run a step that works on a node: its half on the controller, which asks the one on the node."""

from .controller import ActionModule as ControllerStep


class ActionModule(ControllerStep):
    _requires_connection = True
    folder_of_steps = "node_steps"

    def run(self, tmp=None, task_vars=None):
        """Take options out of `settings`, which a role renders as one template for all of them."""
        self._task.args |= self._task.args.pop("settings", {})
        return super().run(tmp, task_vars)
