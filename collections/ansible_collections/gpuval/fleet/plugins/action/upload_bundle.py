# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Put the models and images that a bundle brought into the S3 service of the inventory."""

from __future__ import annotations

from ansible_collections.gpuval.fleet.node.gpuval_workloads.loading import manifest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.action import ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import project_path
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import copy
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.access import StoreAccess

CARRIED = ("models", "images")


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        access = StoreAccess(options["store"])
        if access.embedded is not None:
            return {"changed": False, "msg": "the embedded store has what the bundle brought"}
        data = project_path(options["store"]["state_dir"]) / "store" / "data" / options["store"]["bucket"]
        keys = {
            path.relative_to(data).as_posix() for kind in CARRIED for path in (data / kind).rglob("*") if path.is_file()
        }
        if self.check_mode:
            return {"changed": bool(keys), "objects": len(keys), "msg": f"check mode: {len(keys)} objects would be put"}
        store = access.store()
        created = store.ensure_bucket()
        before = {entry.key for kind in CARRIED for entry in store.list(f"{kind}/")}
        for kind in CARRIED:
            if (data / kind).is_dir():
                copy.put(access, data / kind, kind, last=manifest.NAME)
        told = f"{len(keys)} objects that the bundle brought are in {store.connection.endpoint}"
        return {"changed": created or bool(keys - before), "objects": len(keys), "msg": told}
