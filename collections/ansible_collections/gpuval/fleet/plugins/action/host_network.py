# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Configure a node's network by the module, and confirm its changes over a new connection."""

from __future__ import annotations

from ansible.errors import AnsibleError

from ..plugin_utils.core.action import NodeAction


class ActionModule(NodeAction):
    def work(self, options, task_vars):
        answer = super().work(options, task_vars)
        attempt = answer.pop("attempt", None)
        if not attempt or answer.get("failed"):
            return answer
        arguments = {"state": "confirmed", "attempt": attempt, "directory": options["directory"]}
        try:
            self._connection.reset()
            confirmed = self.ask_node(self.name, arguments, task_vars)
        except AnsibleError as error:
            confirmed = {"failed": True, "msg": str(error.message)}
        if not confirmed.get("failed"):
            return answer
        message = (
            f"the changes could not be confirmed over a new connection, and the node rolls them back within 60 s "
            f"({'; '.join(answer['changes'])}): {confirmed['msg']}"
        )
        return {**answer, "failed": True, "msg": message, "rolled_back": True}
