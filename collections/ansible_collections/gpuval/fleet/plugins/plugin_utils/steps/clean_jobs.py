"""Cancel the jobs that runs have left on a Slurm cluster, and see that they have ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.text import some_of
from ..runs import folder as run_folder
from ..runs.action import RunAction
from ..slurm.commands import Slurm
from ..slurm.placement import directory_of

POLL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class CleanJobsOptions:
    run_ids: Sequence[str] = ()
    results_dir: Path | None = None
    node_dir: str = ""
    deadline_seconds: int = 180


def clean_jobs(action: RunAction, options: CleanJobsOptions) -> dict[str, Any]:
    slurm, run_ids = Slurm(), options.run_ids
    _name_killed(action, options, run_ids)
    found = _open(slurm, run_ids)
    left = {}
    if not action.check_mode:
        slurm.cancel(sorted(found))
        until = time.monotonic() + options.deadline_seconds
        left = found
        while left and time.monotonic() < until:
            left = _open(slurm, run_ids)
            if left:
                time.sleep(POLL_SECONDS)
    if options.results_dir and not action.check_mode and not left:
        run_folder.mark_cleaned(options.results_dir, run_ids)
    shown = some_of(f"{job.id} ({job.node})" for job in (left or found).values())
    verb = "would cancel" if action.check_mode else "cancelled"
    message = f"Slurm: {verb} {len(found)} job(s)" + (f": {shown}" if found else "")
    if left:
        message = f"Slurm: {len(left)} job(s) have not ended: {shown}: scancel them, and see slurmd on their nodes"
    action.display.display(message)
    return {
        "changed": bool(found),
        "failed": bool(left),
        "cancelled": sorted(found),
        "left": sorted(left),
        "diff": {"before": "".join(f"{job.id} {job.node}\n" for job in found.values()), "after": ""},
        "msg": message,
    }


def _name_killed(action, options, run_ids):
    """Name the folders that jobs without their last records may have left: a clean of Slurm sees no node."""
    results = options.results_dir
    if results is None:
        return
    for folder in [run_folder.find(results, run_id) for run_id in run_ids] or run_folder.known_runs(results):
        if (run_folder.read_object(folder.run_file).get("state") or {}).get("cleaned_at"):
            continue
        launches = folder.read_launches()
        if names := [name for name, launch in launches.items() if launch.get("contact")]:
            left = f"{directory_of(options.node_dir)}/{folder.path.name}"
            action.display.warning(f"jobs that were killed may have left {left}: remove it on {some_of(names)}")


def _open(slurm, run_ids):
    """By id, the jobs of the runs that have not ended."""
    return {job.id: job for job in slurm.jobs().values() if not job.ended and (not run_ids or job.run_id in run_ids)}
