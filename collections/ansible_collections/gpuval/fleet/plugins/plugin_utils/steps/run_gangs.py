"""Run the multi-node stages on nodes whose own stages passed, and search for the node that makes one fail."""

from dataclasses import replace
from typing import Any

from ..cluster.api import ClusterAccess
from ..core.step_options import PathText
from ..gang import document, session
from ..gang.orchestrate import GangContext, Gangs, GangSettings
from ..judge import criteria
from ..runs import folder as run_folder
from ..runs import state as run_state
from ..runs.action import RunAction
from ..store.access import open_store
from ..watch.scheduler import scheduler_of
from ..watch.watch import WatchOptions


class RunGangsOptions(WatchOptions, ClusterAccess, GangSettings):
    baseline: PathText = ""


def run_gangs(action: RunAction, options: RunGangsOptions) -> dict[str, Any]:
    if action.check_mode:
        return {"changed": False, "skipped": True}
    folder, access = action.folder(options), open_store(options.store)
    gang_document = document.read(folder)
    if gang_document and gang_document["ended_at"] and run_folder.is_unreported(folder.read_run()):
        return {"changed": False, **session.summary(gang_document)}
    folder.advance(run_state.WORKING)
    session.ensure_valid(options)
    limits = replace(options, **session.LIMITS)
    checks = criteria.beside_shipped(options.criteria)
    with scheduler_of(options.placement)(action, options, gangs=True) as watcher:
        context = GangContext(
            run_round=lambda below: watcher.watch(below, limits, checks),
            judge=session.judge_of(folder, checks, options.criteria, options.baseline),
            publish=session.publisher_of(folder, access, action.display),
            display=action.display.display,
            address=watcher.address,
            repeatable={check.name for check in checks if check.retry},
        )
        session.begin(folder, options)
        gangs = Gangs(folder, options, context)
        placed = session.placed(
            gangs.run["nodes"], action.task_vars["ansible_play_hosts_all"], action.task_vars["hostvars"]
        )
        changed = gangs.run_all(placed, session.properties(folder, gangs.run))
    return {"changed": changed, **session.summary(gangs.document)}
