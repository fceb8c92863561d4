# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Hardware and software of a node as Ansible facts: a module collects them on the node, this action checks them."""

from ..plugin_utils.core.action import ControllerAction


class ActionModule(ControllerAction):
    _requires_connection = True

    def work(self, options, task_vars):
        return self.ask_node(self.name)
