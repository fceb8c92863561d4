"""Record the error that ended the preparation of a run, or its multi-node tests."""

from typing import Any

from ..gang import session
from ..records import launch_errors
from ..records.evidence import NOT_PREPARED, UNREAD
from ..runs import folder as run_folder
from ..runs import state
from ..runs.action import RunAction, RunOptions
from ..watch import launch_inputs


def update_run(
    action: RunAction,
    options: RunOptions,
    *,
    preparation_error: str | None = None,
    failed_subject: str = "",
    gang_error: str | None = None,
) -> dict[str, Any]:
    """`preparation_error`, `gang_error`: its text, else None; `failed_subject`: `store` if the store failed."""
    if preparation_error is not None:
        reason = f"{UNREAD if failed_subject == 'store' else NOT_PREPARED}: {preparation_error or 'no message'}"
        return _end_preparation(action, options, reason)
    # An error ends the multi-node tests, and becomes the reason in verdict and report.
    if action.check_mode:
        return {"changed": False, "skipped": True}
    reason = session.abort(action.folder(options), gang_error or "no message")
    action.display.error(f"{reason}. What there is of the run is judged and reported all the same.")
    return {"changed": True, "reason": reason, "msg": reason}


def _end_preparation(action, options, reason):
    """End a run whose preparation failed, so that no node is launched. Unreachable nodes keep the probe's reason."""
    folder = action.folder(options)
    run = folder.read_run()
    if action.check_mode or state.of(run).get("started_at"):
        return {"changed": False, "msg": f"run {run['run_id']} goes on with what there is"}
    steps = launch_errors.classify("", reason).steps
    launch = {"state": "failed", "message": reason, "remedy": f"{steps}, then validate again: it resumes this run"}
    probed = run_folder.read_json_or({}, folder.state / launch_inputs.PROBE_FILE)
    for name in run["nodes"]:
        failure = launch_inputs.unreachable(probed, name) or launch
        folder.write_launch(name, launch_errors.described({"node": name, **failure}))
    folder.add_problems([{"node": None, "stage": None, "reason": reason}])
    return {"changed": True, "reason": reason, "msg": reason}
