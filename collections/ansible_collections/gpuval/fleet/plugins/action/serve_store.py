# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make the store usable: start the embedded one, or check the S3 service; see that the bucket is there."""

from __future__ import annotations

from ..module_utils.store import StoreError
from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.urls import in_clear
from ..plugin_utils.store import preflight
from ..plugin_utils.store.access import credentials_outlive, open_store


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        access = open_store(options["store"])
        if options["state"] == "stopped":
            return self._stop(access, options)
        if in_clear(options["store"]["endpoint"]):
            self._display.warning(
                f"gpuval_s3_endpoint {options['store']['endpoint']} has no TLS: a listener on the network gets the "
                "signed URLs of all nodes, and can write evidence in their names and read models. Use https://, with "
                "gpuval_s3_ca_file for a certificate of your own."
            )
        if self.check_mode:
            return {"changed": not access.running(), "msg": "check mode: the store is left alone"}
        started = access.start()
        store = access.store()
        try:
            created = store.ensure_bucket(create=access.creates_bucket)
        except StoreError as error:
            raise StoreError(". ".join(filter(None, (str(error), preflight.clock(store))))) from error
        found = preflight.findings(access, store)
        if found:
            self._display.display(*(f"preflight: {finding}" for finding in found[1:]))
            raise StoreError(f"preflight: {found[0]}")
        self._display.display("preflight: the store takes uploads by signed URL and can be read")
        writes = "" if access.objects else preflight.writing_reader(access, store)
        for remark in (access.shortage(), preflight.clock(store), writes):
            if remark:
                self._display.warning(remark)
        if not credentials_outlive(store, options["deadline_seconds"]):
            self._display.warning(
                "the S3 credentials expire before the deadline: uploads signed with them will fail then, and records "
                "will be fetched over SSH. Use longer-lived keys, or a shorter gpuval_deadline_seconds."
            )
        return {"changed": started or created, "endpoint": store.connection.endpoint}

    def _stop(self, access, options):
        if self.check_mode:
            return {"changed": access.objects is not None and access.running()}
        stopped = access.stop()
        rotated = access.rotate() if options["rotate_keys"] else False
        return {"changed": stopped or rotated, "stopped": stopped, "rotated": rotated}
