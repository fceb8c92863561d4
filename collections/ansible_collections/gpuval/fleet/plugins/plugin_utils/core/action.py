"""What the collection's action plugins share."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from .argument_specs import argument_spec
from .errors import GpuvalError


class ControllerAction(ActionBase):
    """An action that works on the controller alone: options are checked, expected failures become one clear message."""

    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: Any = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        _checked, options = self.validate_argument_spec(argument_spec(type(self).__module__.rpartition(".")[2]))
        try:
            return {**result, **self.work(options, task_vars)}
        except GpuvalError as error:
            raise AnsibleActionFail(str(error)) from None  # Ansible adds the message of each cause again

    def work(self, options: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def check_mode(self) -> bool:
        return bool(self._task.check_mode)
