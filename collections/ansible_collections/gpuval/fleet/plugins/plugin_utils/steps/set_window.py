"""Change, while a run is watched, how many of its nodes work at once, and how many load images at once."""

from typing import Any

from ..runs import folder as run_folder
from ..runs import state
from ..runs.command import RunCommand, RunOptions
from ..watch import window


def set_window(
    action: RunCommand, options: RunOptions, *, max_nodes_at_once: int | None = None, max_transfers: int | None = None
) -> dict[str, Any]:
    limits = {"max_nodes_at_once": max_nodes_at_once, "max_transfers": max_transfers}
    if all(value is None for value in limits.values()):
        raise run_folder.RunError("nothing to set: give a number of nodes (`make window N=20`), of transfers, or both")
    for name, value in limits.items():
        if value is not None and value < 0:
            raise run_folder.RunError(f"{name} is {value}: give a whole number, 0 for no limit")
    folder = action.own_folder(options)
    run = folder.read_run()
    if run["finished_at"] is not None:
        raise run_folder.RunError(f"run {run['run_id']} ended at {run['finished_at']}: it has no window any more")
    status = folder.seen()
    if status.overdue:
        raise run_folder.RunError(f"run {run['run_id']} has no window any more, it is {status.line()}")
    before, (nodes, transfers) = window.read_window(folder, window.Window(-1, -1)), limits.values()
    after = window.Window(
        before.nodes if nodes is None else nodes, before.transfers if transfers is None else transfers
    )
    if after != before and not action.check_mode:
        window.write_window(folder, nodes, transfers)
    named = ((nodes, "node(s) at once"), (transfers, "node(s) loading images at once"))
    parts = [f"{number or 'all'} {what}" for number, what in named if number is not None]
    when = "from the next round of its watch"
    if status.attended is False:
        when = f"once {status.resume or state.RESUME}: no controller works on it"
    message = f"run {run['run_id']}: {', '.join(parts)}, {when}"
    action.display.display(message)
    return {"changed": after != before, "msg": message}
