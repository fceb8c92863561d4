"""Configure a node's network, and confirm the changes over a new connection."""

from typing import Any

from ansible.errors import AnsibleError

from ...module_utils.node_steps.host_network import HostNetworkOptions
from ..core.action import ControllerAction


def host_network(action: ControllerAction, options: HostNetworkOptions) -> dict[str, Any]:
    answer = action.ask_node("host_network", vars(options))
    attempt = answer.pop("attempt", None)
    if not attempt or answer.get("failed"):
        return answer
    try:
        action._connection.reset()
        arguments = {"state": "confirmed", "attempt": attempt, "directory": options.directory}
        confirmed = action.ask_node("host_network", arguments)
    except AnsibleError as error:
        confirmed = {"failed": True, "msg": str(error.message)}
    if not confirmed.get("failed"):
        return answer
    message = (
        f"the changes could not be confirmed over a new connection, and the node rolls them back within 60 s "
        f"({'; '.join(answer['changes'])}): {confirmed['msg']}"
    )
    return {**answer, "failed": True, "msg": message, "rolled_back": True}
