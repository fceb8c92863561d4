"""Make the store usable: start the embedded store or check the S3 service, and ensure that the bucket exists."""

from pathlib import Path
from typing import Any, Literal

from ...module_utils.store import StoreError
from ..core.paths import project_path
from ..core.step_options import StepOptions, StoreOptions
from ..runs import cleanable, origin, plans
from ..runs import folder as run_folder
from ..runs.action import RunAction
from ..store import preflight
from ..store.access import open_store
from ..watch import launch_inputs


class ServeStoreOptions(StepOptions):
    state: Literal["started", "stopped"] = "started"
    run_id: str = ""
    rotate_keys: bool = False
    unless_needed_in: Path | None = None
    deadline_seconds: float = 7200.0
    store: StoreOptions


def serve_store(action: RunAction, options: ServeStoreOptions) -> dict[str, Any]:
    access = open_store(options.store)
    if options.state == "stopped":
        results = options.unless_needed_in
        if results and any(cleanable.active(results, origin.store_of(options.store))):
            return {"changed": False, "stopped": False, "msg": "a run needs the store: it goes on"}
        if action.check_mode:
            return {"changed": access.objects is not None and access.running()}
        stopped = access.stop()
        rotated = access.rotate() if options.rotate_keys else False
        return {"changed": stopped or rotated, "stopped": stopped, "rotated": rotated}
    if in_clear := preflight.tls_remark(options.store["endpoint"]):
        action.display.warning(in_clear)
    if action.check_mode:
        return {"changed": not access.running(), "msg": "check mode: the store is left alone"}
    if options.run_id:
        _ensure_loadable(action, access, options)
    try:
        preflight_outcome = preflight.examine(access, options.deadline_seconds)
    except StoreError as error:
        error.subject = "store"
        raise
    if preflight_outcome.problems:
        action.display.display(*(f"preflight: {problem}" for problem in preflight_outcome.problems[1:]))
        failure = StoreError(f"preflight: {preflight_outcome.problems[0]}")
        failure.subject = "store"
        raise failure
    action.display.display("preflight: the store takes uploads by signed URL and can be read")
    for remark in preflight_outcome.remarks:
        action.display.warning(remark)
    return {"changed": preflight_outcome.changed, "endpoint": preflight_outcome.store.connection.endpoint}


def _ensure_loadable(action, access, options):
    """Raise PlanError if no node of a run to start could load the models and datasets of its stages."""
    folder = run_folder.find(project_path(options.store["results_dir"]), options.run_id)
    if folder.seen().started:
        return
    hostvars = action.task_vars["hostvars"]
    for name, node in folder.read_run()["nodes"].items():
        connection = str(hostvars.get(name, {}).get("ansible_connection") or action.connection)
        if not plans.loads(node["stages"]) or access.reachable_from_nodes(connection.rpartition(".")[2]):
            return
    raise plans.PlanError(f"preflight: {launch_inputs.NO_MODEL.format(nodes='the nodes')}")
