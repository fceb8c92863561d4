"""Base class of the Ansible actions that work on one run."""

from typing import Any

from ..core.action import ControllerAction
from .command import RunCommand, RunOptions

__all__ = ["RunAction", "RunOptions"]


class RunAction(ControllerAction, RunCommand):
    """An Ansible action that may work on a run of the play's inventory."""

    def run(self, tmp: Any = None, task_vars: Any = None) -> dict[str, Any]:
        self.use_inventory((task_vars or {}).get("ansible_inventory_sources") or ())
        return super().run(tmp, task_vars)
