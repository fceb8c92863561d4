# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find a run that was opened earlier: by id, or the latest; of another controller in the store."""

from __future__ import annotations

from ..plugin_utils.core.paths import project_path
from ..plugin_utils.runs import folder as run_folder
from ..plugin_utils.runs import origin
from ..plugin_utils.runs import state as run_state
from ..plugin_utils.runs.action import RunAction
from ..plugin_utils.store import file_recovery, stored_runs
from ..plugin_utils.store.access import open_store
from ..plugin_utils.watch import imported_run


class ActionModule(RunAction):
    def work(self, options, task_vars):
        if options["store"] is None:
            return self._found(self.own_folder(options))
        results = project_path(options["results_dir"])
        own = run_folder.own(results, options["run_id"], options["folder"], self.inventory)
        if own is not None:
            if not self.check_mode:
                file_recovery.recover(own, open_store(options["store"]), self._display.warning)
            self.name_newer(options, own.path)
            self._ensure_over(own, options["store"])
            return self._found(own)
        if not (options["run_id"] or options["folder"]) and run_folder.known_run_ids(results):
            self.folder(options)  # the runs here are of other inventories, or none began; says so
        access = open_store(options["store"])
        if not access.known():
            self.folder(options).read_run()  # says what to do
        started = not self.check_mode and access.start()
        store = access.store()
        run, lines = stored_runs.find(store, options["run_id"], options["folder"])
        self._display.display(*lines)
        if run["finished_at"] is None:
            self._display.warning(f"run {run['run_id']} has not ended: it is judged as it stands, and only here")
        if self.check_mode:
            folder = run_folder.RunFolder(results / run["run_id"])
            return {"changed": True, "run": run, "results": str(folder.path), "msg": f"run {run['run_id']}"}
        return {**self._found(imported_run.bring(store, run, results)), "changed": True, "store_started": started}

    @staticmethod
    def _ensure_over(folder, store):
        """What its controller works on is judged when that ends, and published where it was."""
        run, seen = folder.read_run(), folder.seen()
        if seen.attended and seen.name not in (run_state.JUDGED, run_state.FAILED):
            raise run_folder.RunError(
                f"run {run['run_id']} is {seen.line()}: its report comes at its end. `make status` shows it now"
            )
        its, this = run.get("origin", {}).get("store"), origin.store_of(store, project_path(store["state_dir"]))
        if its and its != this:
            raise run_folder.RunError(
                f"run {run['run_id']} has its records in {its}, and the settings name {this}: use those of the run"
            )

    @staticmethod
    def _found(folder):
        run = folder.read_run()
        return {"changed": False, "run": run, "results": str(folder.path), "msg": f"run {run['run_id']}"}
