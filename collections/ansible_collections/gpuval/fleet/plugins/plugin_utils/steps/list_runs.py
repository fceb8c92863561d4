"""List the runs of an inventory, or write the nodes of a run that did not pass, to validate them again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core import extensions
from ..core.paths import project_path
from ..core.step_options import PathText
from ..core.text import some_of
from ..jobs import stages as job_stages
from ..runs import folder as run_folder
from ..runs import origin, overview
from ..runs.command import RunCommand, RunOptions


def list_runs(
    action: RunCommand, options: RunOptions, *, jobs: Sequence[PathText] = (), rerun: PathText = ""
) -> dict[str, Any]:
    if rerun:
        return _rerun(action, action.own_folder(options), jobs, Path(rerun))
    results = options.results_dir
    run_rows = overview.rows(results, action.inventory)
    other_runs = run_folder.of_others(results, action.inventory)
    message = f"{len(run_rows)} run(s) of {origin.shown(action.inventory) or 'all inventories'} in {results}"
    message += "" if run_rows else "; `make validate` starts one"
    action.display.display(*(overview.lines(run_rows) if run_rows else ()), message)
    if other_runs:
        action.display.display(f"runs of other inventories: {origin.others_line(other_runs)}")
    return {"changed": False, "runs": run_rows, "msg": message}


def _rerun(action, folder, jobs, target):
    """Write names and settings of the nodes to validate again into the folder `target`. `jobs`: paths of job files."""
    hosts = action.task_vars["hostvars"]
    stage_names = {*extensions.found("stages"), *job_stages.names(map(project_path, jobs))}
    names, settings = overview.rest(
        folder, lambda stage: stage in stage_names or any(f"{stage}_workload" in hosts[name] for name in hosts)
    )
    outcome = f"validating {some_of(names)} again" if names else overview.passed_line(folder)
    message = f"run {folder.path.name}: {outcome}"
    action.display.display(message)
    if not action.check_mode:
        run_folder.write_bytes(target / "nodes", "".join(f"{name}\n" for name in names).encode())
        run_folder.write_json(target / "settings.json", settings)
    return {"changed": bool(names), "nodes": names, "msg": message}
