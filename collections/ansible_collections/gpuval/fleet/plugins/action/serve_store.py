# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make the store usable: start the embedded one, or check the S3 service; see that the bucket is there."""

from __future__ import annotations

from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.store.access import StoreAccess, credentials_outlive


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        access = StoreAccess(options["store"])
        embedded = access.embedded
        if options["state"] == "stopped":
            return self._stop(embedded, options)
        if self.check_mode:
            return {"changed": bool(embedded) and not embedded.running(), "msg": "check mode: the store is left alone"}
        started = embedded.start() if embedded else False
        store = access.store()
        created = store.ensure_bucket()
        if not credentials_outlive(store, options["deadline_seconds"]):
            self._display.warning(
                "the S3 credentials expire before the deadline: uploads signed with them will fail then, and records "
                "will be fetched over SSH. Use longer-lived keys, or a shorter gpuval_deadline_seconds."
            )
        return {"changed": started or created, "endpoint": store.connection.endpoint, "embedded": embedded is not None}

    def _stop(self, embedded, options):
        if embedded is None:
            return {"changed": False, "msg": "an S3 service of its own: nothing to stop"}
        if self.check_mode:
            return {"changed": embedded.running()}
        stopped = embedded.stop()
        rotated = embedded.rotate() if options["rotate_keys"] else False
        return {"changed": stopped or rotated, "stopped": stopped, "rotated": rotated}
