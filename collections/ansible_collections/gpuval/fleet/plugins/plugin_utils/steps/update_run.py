"""Change the window of a run that is watched, or record the error that ended its gangs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ansible.errors import AnsibleActionFail

from ..gang import session
from ..runs import state
from ..runs.action import RunAction, RunOptions
from ..watch import window


@dataclass(frozen=True, kw_only=True)
class UpdateRunOptions(RunOptions):
    max_nodes_at_once: int | None = None
    max_transfers: int | None = None
    gang_error: str | None = None


def update_run(action: RunAction, options: UpdateRunOptions) -> dict[str, Any]:
    return _set_window(action, options) if options.gang_error is None else _end_gangs(action, options)


def _end_gangs(action, options):
    """The nodes are judged and reported with this error as the reason."""
    if action.check_mode:
        return {"changed": False, "skipped": True}
    reason = session.abort(action.folder(options), options.gang_error or "no message")
    action.display.error(f"{reason}. What there is of the run is judged and reported all the same.")
    return {"changed": True, "reason": reason, "msg": reason}


def _set_window(action, options):
    asked = {name: getattr(options, name) for name in ("max_nodes_at_once", "max_transfers")}
    if all(value is None for value in asked.values()):
        raise AnsibleActionFail("nothing to set: give a number of nodes (`make window N=20`), of transfers, or both")
    for name, value in asked.items():
        if value is not None and value < 0:
            raise AnsibleActionFail(f"{name} is {value}: give a whole number, 0 for no limit")
    folder = action.own_folder(options)
    run = folder.read_run()
    if run["finished_at"] is not None:
        raise AnsibleActionFail(f"run {run['run_id']} ended at {run['finished_at']}: it has no window any more")
    seen = folder.seen()
    if seen.overdue:
        raise AnsibleActionFail(f"run {run['run_id']} has no window any more, it is {seen.line()}")
    none = window.Window(-1, -1)
    before = window.read(folder, none)
    nodes, transfers = asked.values()
    after = window.Window(
        before.nodes if nodes is None else nodes, before.transfers if transfers is None else transfers
    )
    if after != before and not action.check_mode:
        window.write(folder, nodes, transfers)
    parts = [
        f"{number or 'all'} {what}"
        for number, what in ((nodes, "node(s) at once"), (transfers, "node(s) loading images at once"))
        if number is not None
    ]
    when = "from the next round of its watch"
    if seen.attended is False:
        when = f"once {seen.resume or state.RESUME}: no controller works on it"
    message = f"run {run['run_id']}: {', '.join(parts)}, {when}"
    action.display.display(message)
    return {"changed": after != before, "msg": message}
