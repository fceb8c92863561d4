"""Find an earlier run by id, or the latest: on this controller, else another controller's in the store."""

from typing import Any

from ..core.step_options import StoreOptions
from ..runs import folder as run_folder
from ..runs import origin
from ..runs import state as run_state
from ..runs.action import RunAction, RunOptions
from ..store import file_recovery, stored_runs
from ..store.access import open_store
from ..watch import imported_run


def find_run(
    action: RunAction, options: RunOptions, *, folder: str = "", store: StoreOptions | None = None
) -> dict[str, Any]:
    if store is None:
        return _found(action.own_folder(options))
    results = options.results_dir
    own_folder = run_folder.own(results, options.run_id, folder, action.inventory)
    if own_folder is not None:
        if not action.check_mode:
            file_recovery.recover(own_folder, open_store(store), action.display.warning)
        action.name_newer(options.run_id, own_folder)
        run, state = own_folder.read_run(), own_folder.seen()
        if state.attended and state.name not in (run_state.JUDGED, run_state.FAILED):
            raise run_folder.RunError(
                f"run {run['run_id']} is {state.line()}: its report comes at its end. `make status` shows it now"
            )
        source = run.get("origin", {}).get("store")
        chosen = origin.store_of(store)
        if source and source != chosen:
            raise run_folder.RunError(
                f"run {run['run_id']} has its records in {source}, and the settings name {chosen}: use those of the run"
            )
        return _found(own_folder)
    if not (options.run_id or folder) and run_folder.known_runs(results):
        action.folder(options)  # raises RunError: runs are of other inventories, or none started
    access = open_store(store)
    if not access.known():
        action.folder(options).read_run()  # raises RunError with a remedy
    started = not action.check_mode and access.start()
    objects = access.store()
    run, lines = stored_runs.find(objects, options.run_id, folder)
    action.display.display(*lines)
    if run["finished_at"] is None:
        action.display.warning(f"run {run['run_id']} has not ended: it is judged as it stands, and only here")
    if action.check_mode:
        place = run_folder.find_or_place(results, run["run_id"], action.inventory)
        return {"changed": True, "run": run, "results": str(place.path), "msg": f"run {run['run_id']}"}
    imported = imported_run.import_run(objects, run, results, action.inventory)
    return {**_found(imported), "changed": True, "store_started": started}


def _found(folder):
    run = folder.read_run()
    return {"changed": False, "run": run, "results": str(folder.path), "msg": f"run {run['run_id']}"}
