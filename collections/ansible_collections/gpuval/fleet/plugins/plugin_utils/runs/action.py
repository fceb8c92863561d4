"""What the actions on one run share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.action import ControllerAction
from ..core.paths import project_path
from ..core.step_options import StepOptions
from . import origin, state
from .folder import LATEST, RunFolder, ensure_of, of_others, read_object, resolve


class RunOptions(StepOptions):
    """Options of steps that work on a run; without a run id, on the latest run of the inventory."""

    run_id: str = ""
    results_dir: Path = Path("results")


class RunAction(ControllerAction):
    """An action that may work on a run of this command's inventory."""

    #: That of this command: without a run id it is about a run of this inventory.
    inventory: Sequence[str] = ()

    def run(self, tmp: Any = None, task_vars: Any = None) -> dict[str, Any]:
        sources = (task_vars or {}).get("ansible_inventory_sources") or ()
        # each path in one form
        self.inventory = sorted(
            {str(Path(source).resolve()) if Path(source).exists() else source for source in sources}
        )
        return super().run(tmp, task_vars)

    def folder(self, options: RunOptions) -> RunFolder:
        return self.folder_of(options.results_dir, options.run_id)

    def folder_of(self, results_dir: str | Path, run_id: str) -> RunFolder:
        folder = resolve(project_path(results_dir), run_id, self.inventory)
        self.name_newer(run_id, folder)
        return folder

    def own_folder(self, options: RunOptions) -> RunFolder:
        """The run's folder, as from `folder`; raises RunError for a run of another inventory."""
        folder = self.folder(options)
        ensure_of(folder, self.inventory)
        return folder

    def name_newer(self, run_id: str, chosen: RunFolder) -> None:
        """Display which runs of other inventories are newer than `chosen`, the latest run of this inventory."""
        if run_id not in ("", LATEST):
            return
        since = state.opened_at(read_object(chosen.run_file))
        newer_runs = origin.others_line(of_others(chosen.results, self.inventory, since))
        if newer_runs:
            self._display.display(f"newer runs of other inventories: {newer_runs}")
