"""Launch the plans of a run on its nodes, and watch the run until every node is done."""

from typing import Any

from ..cluster.api import ClusterAccess
from ..judge import criteria
from ..runs import folder as run_folder
from ..runs import state as run_state
from ..runs.action import RunAction
from ..watch.scheduler import scheduler_of
from ..watch.watch import WatchOptions


class WatchRunOptions(WatchOptions, ClusterAccess):
    pass


def watch_run(action: RunAction, options: WatchRunOptions) -> dict[str, Any]:
    folder = action.folder(options)
    if not action.check_mode and run_folder.is_unreported(folder.read_run()):
        return {"changed": False, "started": [], "requests": 0, "msg": "its nodes are done: it is collected"}
    watcher = scheduler_of(options.placement)(action, options)
    if action.check_mode:
        plans = watcher.plans()
        for name, plan in plans.items() if action.diff else ():
            action.display.display(f"{name}:", *plan.split("\n"))
        return {"changed": True, "started": [], "msg": f"plans of {len(plans)} node(s)"}
    checks = criteria.beside_shipped(options.criteria)
    folder.advance(run_state.WORKING)
    run_folder.remember(folder)
    with watcher:
        started = watcher.watch(folder, options, checks)
        return {"changed": bool(started), "started": started, "requests": watcher.requests}
