"""What the actions on one run share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.action import ControllerAction
from ..core.paths import project_path
from . import origin, state
from .folder import LATEST, RunFolder, ensure_of, of_others, read_object, resolve


class RunAction(ControllerAction):
    """An action on the run that the options ``results_dir`` and ``run_id`` name."""

    #: That of this command: without a run id it is about a run of this inventory.
    inventory: Sequence[str] = ()

    def run(self, tmp: Any = None, task_vars: Any = None) -> dict[str, Any]:
        self.inventory = origin.inventory_of((task_vars or {}).get("ansible_inventory_sources") or ())
        return super().run(tmp, task_vars)

    def folder(self, options: dict[str, Any]) -> RunFolder:
        folder = resolve(project_path(options["results_dir"]), options["run_id"], self.inventory)
        self.name_newer(options, folder.path)
        return folder

    def own_folder(self, options: dict[str, Any]) -> RunFolder:
        """The same; raises RunError for a run of another inventory."""
        folder = self.folder(options)
        ensure_of(folder.path.parent, folder.path.name, self.inventory)
        return folder

    def name_newer(self, options: dict[str, Any], chosen: Path) -> None:
        """Display which runs of other inventories are newer than the folder of the latest run of this one."""
        if options["run_id"] not in ("", LATEST):
            return
        since = state.opened_at(read_object(chosen / "run.json"))
        others = origin.others_line(of_others(chosen.parent, self.inventory, since))
        if others:
            self._display.display(f"newer runs of other inventories: {others}")
