"""What the actions on one run share."""

from __future__ import annotations

from typing import Any

from ..core.action import ControllerAction
from ..core.paths import project_path
from .folder import RunFolder, resolve


class RunAction(ControllerAction):
    """An action on the run that the options ``results_dir`` and ``run_id`` name."""

    @staticmethod
    def folder(options: dict[str, Any]) -> RunFolder:
        return resolve(project_path(options["results_dir"]), options["run_id"])
