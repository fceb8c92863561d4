# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Upload the controller's files to the `store` of the roles, the embedded one included; else the module does it."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gpuval.fleet.plugins.module_utils.store import StoreError
from ansible_collections.gpuval.fleet.plugins.module_utils.upload import upload
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store_access import STORE_OPTION, StoreAccess


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        if "store" not in self._task.args:
            return {**result, **self._execute_module(module_name="gpuval.fleet.store_upload", task_vars=task_vars)}
        _checked, options = self.validate_argument_spec(
            argument_spec={
                "store": STORE_OPTION,
                "src": {"type": "list", "elements": "path", "required": True},
                "prefix": {"type": "str", "required": True},
            }
        )
        try:
            connection = StoreAccess(options["store"]).connection()
        except StoreError as error:
            raise AnsibleActionFail(str(error)) from None  # Ansible adds the message of each cause again
        done = upload(connection, options["src"], options["prefix"], check_mode=self._task.check_mode)
        return {**result, **done}
