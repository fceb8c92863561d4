"""Make a run's SSH keys once, and send each node its own."""

from typing import Any

from ansible.errors import AnsibleActionFail

from ..runs.action import RunAction, RunOptions
from ..ssh.run_keys import RunKeys, RunKeysError, node_files


def run_ssh_keys(action: RunAction, options: RunOptions, directory: str = "", port: int = 3022) -> dict[str, Any]:
    """Place a run's SSH keys on a node. `port`: of the SSH servers that nodes start for multi-node stages."""
    node = action.task_vars["inventory_hostname"]
    folder = action.folder(options)
    run = folder.read_run()
    if node not in run["nodes"]:
        raise AnsibleActionFail(f"{node} is not in run {run['run_id']}: validate with it under this run id, then retry")
    if not 0 < port < 65536:
        raise AnsibleActionFail(f"ssh_keys_port {port} is not a port")
    keys = RunKeys(folder.state / "ssh")
    if action.check_mode and not keys.folder.exists():
        return {"changed": True, "msg": "the keys would be made and placed"}
    try:
        with keys.locked():
            addresses = keys.resolved({name: _addresses(name, action.task_vars) for name in run["nodes"]})
            files = node_files(run["run_id"], node, keys, addresses, port)
    except RunKeysError as error:
        raise AnsibleActionFail(str(error)) from None
    arguments = {"directory": directory, "run_id": run["run_id"], "node": node, "files": files}
    answer = action.ask_node("run_ssh_keys", arguments)
    if answer.get("changed"):
        action.display.display(f"{node}: SSH keys of the run placed")
    return answer


def _addresses(node, task_vars):
    """Return the addresses by which other nodes reach a node: the declared ones, else the one that Ansible uses."""
    if node not in task_vars["hostvars"]:
        raise RunKeysError(f"{node} of the run is not in this inventory: give the whole inventory of the run")
    hostvars = task_vars["hostvars"][node]
    declared = hostvars.get("ssh_keys_addresses") or [hostvars.get("ansible_host") or node]
    return [str(address) for address in ([declared] if isinstance(declared, str) else declared)]
