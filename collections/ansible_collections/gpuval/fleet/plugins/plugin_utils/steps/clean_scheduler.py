"""Remove what runs created in Kubernetes or Slurm, and wait until it is gone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cluster.api import ClusterAccess
from ..runs.action import RunAction
from ..watch.scheduler import scheduler_of


@dataclass(frozen=True, kw_only=True)
class CleanSchedulerOptions(ClusterAccess):
    placement: str
    #: Runs to clean; empty: all runs.
    run_ids: Sequence[str] = ()
    results_dir: Path | None = None
    #: Whether to delete volumes of runs; and whether models stay on nodes.
    volumes: bool = False
    keep_models: bool = False
    node_dir: str = ""
    deadline_seconds: int = 180


def clean_scheduler(action: RunAction, options: CleanSchedulerOptions) -> dict[str, Any]:
    return scheduler_of(options.placement)(action, options).clean()
