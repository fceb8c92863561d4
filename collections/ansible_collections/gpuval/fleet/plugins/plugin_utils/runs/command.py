"""Base class of commands on one run, with or without Ansible."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.paths import project_path
from ..core.step_options import STORE_KEYS, StepOptions
from . import origin, state
from .folder import LATEST, RunFolder, adopt, ensure_of, of_others, read_object, resolve

#: Environment variable with the path of a file, to which commands append settings of the inventory.
REMEMBERED = "GPUVAL_REMEMBERED"


class RunOptions(StepOptions):
    """Options of a step that works on a run: the latest of the inventory if `run_id` is empty."""

    run_id: str = ""
    results_dir: Path = Path("results")


class RunCommand:
    """A command that may work on a run of its inventory."""

    #: Sources of the inventory: without a run id the command is about the latest run of this inventory.
    inventory: Sequence[str] = ()
    #: {node: arguments with which to reach it over SSH}, as an earlier playbook remembered them.
    ways: Mapping[str, Any] = {}
    display: Any
    check_mode: Any = False

    def remembers(self) -> bool:
        """Whether `tools/look.py` asked for the settings of the inventory."""
        return bool(os.environ.get(REMEMBERED)) and not self.check_mode

    def remember(self, **settings: Any) -> None:
        """Add settings to the file that `tools/look.py` named, for looks at runs without Ansible; no secrets."""
        if self.remembers():
            with Path(os.environ[REMEMBERED]).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(settings) + "\n")

    def remember_place(self, options: Any) -> None:
        """Remember where a step finds the runs and the store. A store whose keys are in variables is not remembered."""
        store = {key: value for key, value in (options.store or {}).items() if not key.startswith("secrets")}
        paths = {
            key: str(project_path(store[key])) for key in ("state_dir", "results_dir", "ca_file") if store.get(key)
        }
        place = {"results_dir": str(options.results_dir), "run_id": options.run_id, "folder": options.folder}
        self.remember(**place, store=None if any(store.get(key) for key in STORE_KEYS) else store | paths)

    def use_inventory(self, sources: Iterable[str]) -> None:
        """Set the inventory's sources, with absolute paths, without duplicates."""
        self.inventory = sorted(
            {str(Path(source).resolve()) if Path(source).exists() else source for source in sources}
        )

    def adopt_runs(self, results_dir: str | Path) -> None:
        """Move runs of release 1.0 to the folders of their inventories, once."""
        if not self.check_mode:
            for folder in adopt(project_path(results_dir)):
                self.display.display(f"run {folder.path.name} is now in {folder.path}")

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
        if newer_runs := origin.others_line(of_others(chosen.results, self.inventory, since)):
            self.display.display(f"newer runs of other inventories: {newer_runs}")
