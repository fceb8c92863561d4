"""What the actions on one run share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.action import ControllerAction
from ..core.paths import project_path
from . import origin
from .folder import RunFolder, ensure_of, resolve


class RunAction(ControllerAction):
    """An action on the run that the options ``results_dir`` and ``run_id`` name."""

    #: That of this command: without a run id it is about a run of this inventory.
    inventory: Sequence[str] = ()

    def run(self, tmp: Any = None, task_vars: Any = None) -> dict[str, Any]:
        self.inventory = origin.inventory_of((task_vars or {}).get("ansible_inventory_sources") or ())
        return super().run(tmp, task_vars)

    def folder(self, options: dict[str, Any]) -> RunFolder:
        return resolve(project_path(options["results_dir"]), options["run_id"], self.inventory)

    def own_folder(self, options: dict[str, Any]) -> RunFolder:
        """The same; raises RunError for a run of another inventory."""
        folder = self.folder(options)
        ensure_of(folder.path.parent, folder.path.name, self.inventory)
        return folder
