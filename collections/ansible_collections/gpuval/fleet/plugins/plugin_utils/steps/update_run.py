"""Change the window of a run that is watched, or record the error that ended its preparation or its gangs."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail

from ..gang import session
from ..records import launch_errors
from ..records.evidence import NOT_PREPARED, UNREAD
from ..runs import folder as run_folder
from ..runs import state
from ..runs.action import RunAction, RunOptions
from ..watch import launch_inputs, launcher


class UpdateRunOptions(RunOptions):
    max_nodes_at_once: int | None = None
    max_transfers: int | None = None
    preparation_error: str | None = None
    #: What that error speaks of: `store`, or nothing.
    failed_subject: str = ""
    gang_error: str | None = None


def update_run(action: RunAction, options: UpdateRunOptions) -> dict[str, Any]:
    if options.preparation_error is not None:
        return _end_preparation(action, options)
    return _set_window(action, options) if options.gang_error is None else _end_gangs(action, options)


def _end_preparation(action, options):
    """End a run whose preparation failed: no node is launched. Nodes that the probe did not reach keep its finding."""
    folder = action.folder(options)
    run, error = folder.read_run(), options.preparation_error or "no message"
    if action.check_mode or state.of(run).get("started_at"):
        return {"changed": False, "msg": f"run {run['run_id']} goes on with what there is"}
    reason = f"{UNREAD if options.failed_subject == 'store' else NOT_PREPARED}: {error}"
    steps = launch_errors.classify("", reason).steps
    launch = {"state": "failed", "message": reason, "remedy": f"{steps}, then validate again: it resumes this run"}
    probed = run_folder.read_json_or({}, folder.state / launch_inputs.PROBE_FILE)
    for name in run["nodes"]:
        failure = launch_inputs.unreachable(probed, name) or launch
        folder.write_launch(name, launch_errors.described({"node": name, **failure}))
    folder.add_problems([{"node": None, "stage": None, "reason": reason}])
    return {"changed": True, "reason": reason, "msg": reason}


def _end_gangs(action, options):
    """End the gangs after an error, which becomes the reason in verdict and report."""
    if action.check_mode:
        return {"changed": False, "skipped": True}
    reason = session.abort(action.folder(options), options.gang_error or "no message")
    action.display.error(f"{reason}. What there is of the run is judged and reported all the same.")
    return {"changed": True, "reason": reason, "msg": reason}


def _set_window(action, options):
    limits = {"max_nodes_at_once": options.max_nodes_at_once, "max_transfers": options.max_transfers}
    if all(value is None for value in limits.values()):
        raise AnsibleActionFail("nothing to set: give a number of nodes (`make window N=20`), of transfers, or both")
    for name, value in limits.items():
        if value is not None and value < 0:
            raise AnsibleActionFail(f"{name} is {value}: give a whole number, 0 for no limit")
    folder = action.own_folder(options)
    run = folder.read_run()
    if run["finished_at"] is not None:
        raise AnsibleActionFail(f"run {run['run_id']} ended at {run['finished_at']}: it has no window any more")
    status = folder.seen()
    if status.overdue:
        raise AnsibleActionFail(f"run {run['run_id']} has no window any more, it is {status.line()}")
    before, (nodes, transfers) = launcher.read_window(folder, launcher.Window(-1, -1)), limits.values()
    after = launcher.Window(
        before.nodes if nodes is None else nodes, before.transfers if transfers is None else transfers
    )
    if after != before and not action.check_mode:
        launcher.write_window(folder, nodes, transfers)
    named = ((nodes, "node(s) at once"), (transfers, "node(s) loading images at once"))
    parts = [f"{number or 'all'} {what}" for number, what in named if number is not None]
    when = "from the next round of its watch"
    if status.attended is False:
        when = f"once {status.resume or state.RESUME}: no controller works on it"
    message = f"run {run['run_id']}: {', '.join(parts)}, {when}"
    action.display.display(message)
    return {"changed": after != before, "msg": message}
