# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make the store usable: start the embedded one, or check the S3 service; see that the bucket is there."""

from __future__ import annotations

from ..module_utils.store import StoreError
from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.runs import cleanable, origin, plans
from ..plugin_utils.runs.folder import RunFolder
from ..plugin_utils.store import preflight
from ..plugin_utils.store.access import open_store
from ..plugin_utils.watch import launching


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        access = open_store(options["store"])
        if options["state"] == "stopped":
            return self._stop(access, options)
        in_clear = preflight.tls_remark(options["store"]["endpoint"])
        if in_clear:
            self._display.warning(in_clear)
        if self.check_mode:
            return {"changed": not access.running(), "msg": "check mode: the store is left alone"}
        if options["run_id"]:
            self._ensure_loadable(access, options, task_vars)
        found = preflight.examine(access, options["deadline_seconds"])
        if found.problems:
            self._display.display(*(f"preflight: {problem}" for problem in found.problems[1:]))
            raise StoreError(f"preflight: {found.problems[0]}")
        self._display.display("preflight: the store takes uploads by signed URL and can be read")
        for remark in found.remarks:
            self._display.warning(remark)
        return {"changed": found.changed, "endpoint": found.store.connection.endpoint}

    def _ensure_loadable(self, access, options, task_vars):
        """Raises StoreError where no node of a run that is to start could load what its stages need."""
        folder = RunFolder(project_path(options["store"]["results_dir"]) / options["run_id"])
        if folder.seen().started:
            return
        nodes = folder.read_run()["nodes"]
        if all(
            plans.loads(node["stages"]) and not access.reachable_from_nodes(self._transport(name, task_vars))
            for name, node in nodes.items()
        ):
            raise StoreError(f"preflight: {launching.NO_MODEL.format(nodes='the nodes')}")

    def _transport(self, name, task_vars):
        connection = task_vars["hostvars"].get(name, {}).get("ansible_connection") or self._task.connection
        return str(connection).rpartition(".")[2]

    def _stop(self, access, options):
        if options["unless_needed_in"] and self._needed(options):
            return {"changed": False, "stopped": False, "msg": "a run needs the store: it goes on"}
        if self.check_mode:
            return {"changed": access.objects is not None and access.running()}
        stopped = access.stop()
        rotated = access.rotate() if options["rotate_keys"] else False
        return {"changed": stopped or rotated, "stopped": stopped, "rotated": rotated}

    @staticmethod
    def _needed(options):
        results, state = project_path(options["unless_needed_in"]), project_path(options["store"]["state_dir"])
        return bool(cleanable.find(results, (), "", origin.store_of(options["store"], state)).active)
