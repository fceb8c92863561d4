# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

DOCUMENTATION = r"""
name: ssh_args
short_description: SSH arguments that check host keys against the pins of the inventory
version_added: 1.0.0
author: gpuval contributors (@gpuval)
description:
  - Ansible's own connections accept only the host keys that the step C(probe_nodes) pinned.
  - The operator's own C(ssh_args), from the inventory, the environment or C(ansible.cfg), follow.
  - Before the first probe of an inventory the operator's C(known_hosts) files apply; checking is never off.
options:
  _terms:
    description: Folder of the controller's state, C(gpuval_state_dir).
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
ansible_ssh_args: "{{ lookup('gpuval.fleet.ssh_args', gpuval_state_dir) }}"
"""

RETURN = r"""
_raw:
  description: Value for C(ansible_ssh_args).
  type: list
  elements: str
"""

from ansible import constants
from ansible.plugins.loader import connection_loader
from ansible.plugins.lookup import LookupBase
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import project_path
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh.known_hosts import pin_file, ssh_arguments


class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        pins = pin_file(project_path(terms[0]), variables.get("ansible_inventory_sources") or [])
        return [ssh_arguments(pins, self._own(variables))]

    @staticmethod
    def _own(variables):
        """Return the operator's own ssh_args: those of the host's variables, which exclude roles, else of Ansible."""
        host = variables["hostvars"][variables["inventory_hostname"]]
        if "ansible_ssh_args" in host:
            return str(host["ansible_ssh_args"])
        connection_loader.get("ssh", class_only=True)
        return str(constants.config.get_config_value("ssh_args", plugin_type="connection", plugin_name="ssh") or "")
