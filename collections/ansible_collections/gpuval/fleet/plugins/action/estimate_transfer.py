# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare what the nodes are to load with what the store can give before the deadline, and warn."""

from __future__ import annotations

import json

from ..module_utils.store import StoreError
from ..plugin_utils.artifacts import model_source
from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.runs import datasets
from ..plugin_utils.store import transfer_estimate
from ..plugin_utils.store.access import open_store

MAX_IMAGE_DOCUMENT_BYTES = 65536


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        access = open_store(options["store"])
        if self.check_mode and not access.running():
            return {"changed": False, "msg": "check mode: the embedded store does not run"}
        try:
            return self._compare(access, options)
        except StoreError as error:  # an estimate; other tasks report what is wrong with the store
            return {"changed": False, "msg": f"not known, the store could not be read: {error}"}

    def _compare(self, access, options):
        store = access.store()
        folders = [model_source.folder_name(options["model"])] if options["model"] else []
        folders += [one.folder for one in datasets.parse(options["datasets"])]
        model = [(entry.key, entry.size) for folder in folders for entry in store.list(f"models/{folder}/")]
        wanted = sum(size for _key, size in model) + self._images(store, options["images"])
        planned = transfer_estimate.Transfer(options["nodes"], wanted, options["deadline_seconds"])
        bandwidth = None if planned.is_trivial else self._bandwidth(access, store, model, options)
        message, warning = transfer_estimate.describe(planned, bandwidth)
        if warning:
            self._display.warning(warning)
        return {
            "changed": False,
            "msg": message,
            "warning": warning,
            "bytes_per_node": planned.bytes_per_node,
            "total_bytes": planned.total_bytes,
            "bits_per_second": bandwidth.bits_per_second if bandwidth else None,
            "seconds": planned.seconds(bandwidth) if bandwidth else None,
        }

    @staticmethod
    def _bandwidth(access, store, model, options):
        given = options["bits_per_second"]
        measured = None if given > 0 else transfer_estimate.measure(store, model)
        return transfer_estimate.choose(given, measured, access.link_bits_per_second())

    @staticmethod
    def _images(store, references):
        if not references:
            return 0
        entries = [entry for entry in store.list("images/") if entry.key.endswith(".json")]
        documents = []
        for entry in sorted(entries, key=lambda entry: entry.modified):
            try:
                document = json.loads(store.get(entry.key, max_bytes=MAX_IMAGE_DOCUMENT_BYTES))
            except ValueError:
                continue
            documents += [document] if isinstance(document, dict) else []
        return transfer_estimate.image_bytes(documents, references)
