# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of run_ssh_keys: make the run's keys once, hand each node its own in one round trip."""

from __future__ import annotations

from dataclasses import dataclass

from ansible.errors import AnsibleActionFail

from ..plugin_utils.runs.action import RunAction, RunOptions
from ..plugin_utils.ssh.run_keys import RunKeys, RunKeysError, node_files


@dataclass(frozen=True, kw_only=True)
class SshKeysOptions(RunOptions):
    directory: str = ""
    #: Of the SSH servers that nodes start for the work.
    port: int = 3022


class ActionModule(RunAction):
    options_type = SshKeysOptions
    _requires_connection = True

    def work(self, options, task_vars):
        node = task_vars["inventory_hostname"]
        folder = self.folder(options)
        run = folder.read_run()
        if node not in run["nodes"]:
            raise AnsibleActionFail(
                f"{node} is not in run {run['run_id']}: validate with it under this run id, then again"
            )
        if not 0 < options.port < 65536:
            raise AnsibleActionFail(f"ssh_keys_port {options.port} is not a port")
        arguments = {
            "directory": options.directory,
            "run_id": run["run_id"],
            "node": node,
        }
        keys = RunKeys(folder.state / "ssh")
        if self.check_mode and not keys.folder.exists():
            return {"changed": True, "msg": "the keys would be made and placed"}
        try:
            with keys.locked():
                addresses = keys.resolved({name: _addresses(name, task_vars) for name in run["nodes"]})
                arguments["files"] = node_files(run["run_id"], node, keys, addresses, options.port)
        except RunKeysError as error:
            raise AnsibleActionFail(str(error)) from None
        answer = self.ask_node("run_ssh_keys", arguments, task_vars)
        if answer.get("changed"):
            self._display.display(f"{node}: SSH keys of the run placed")
        return answer


def _addresses(node, task_vars):
    """What other nodes see of a node: as declared, else what the controller connects to."""
    if node not in task_vars["hostvars"]:
        raise RunKeysError(f"{node} of the run is not in this inventory: give the whole inventory of the run")
    hostvars = task_vars["hostvars"][node]
    declared = hostvars.get("ssh_keys_addresses") or [hostvars.get("ansible_host") or node]
    return [str(address) for address in ([declared] if isinstance(declared, str) else declared)]
