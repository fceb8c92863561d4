# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a cluster knows of each node of a run, into the results. A node unknown to it is named, not failed."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor

from ansible_collections.gpuval.fleet.plugins.module_utils.host_evidence import Part, pack
from ansible_collections.gpuval.fleet.plugins.module_utils.redaction import Redaction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import names, node_evidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import Cluster, ClusterError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.options import access_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.action import ControllerAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.escape import one_line
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import project_path
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.schemas import Invalid
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery import log_bundle
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

WORKERS = 8
OUTPUT_LINES = 20_000
SECRETS = ("access_key", "secret_key", "session_token", "read_access_key", "read_secret_key")


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        folder = log_bundle.run_folder_of(project_path(options["results_dir"]), options["run_id"])
        if self.check_mode:
            return {"changed": False, "gathered": [], "msg": "check mode: nothing is gathered"}
        nodes = sorted({*_expected(folder), *options["nodes"]})
        deadline = time.monotonic() + options["seconds"]
        try:
            with Cluster(access_of(options), deadline_seconds=min(60.0, options["seconds"])) as cluster:
                gathered = self._gather(cluster, folder, nodes, options, deadline)
        except ClusterError as error:
            for node in nodes:
                _tell(folder, node, "unreachable", f"the cluster: {error}")
            self._display.warning(f"no evidence of the cluster: {error}")
            gathered = []
        return {
            "changed": bool(gathered),
            "gathered": gathered,
            "msg": f"evidence of {len(gathered)} of {len(nodes)} node(s)",
        }

    def _gather(self, cluster, folder, nodes, options, deadline):
        selector = names.run_selector(folder.name)
        jobs, pods = (cluster.list(kind, selector, whole=True)[0] for kind in ("Job", "Pod"))
        events = cluster.list("Event", fields="involvedObject.kind!=Node")[0]
        objects = node_evidence.by_node(folder.name, nodes, cluster.list("Node")[0], jobs, pods, events)
        redact = Redaction({*self._secrets(options), *node_evidence.secrets_in([*jobs, *pods])})

        def output(pod, container):
            if time.monotonic() >= deadline:
                return Part("", note="not read: the time was over")
            try:
                text = cluster.log(pod, container, limit_bytes=options["limit_bytes"], tail_lines=OUTPUT_LINES)
            except ClusterError as error:
                return Part("", note=f"cannot be read: {one_line(str(error), 300)}")
            return Part("", text.encode())

        def one(node):
            known = objects[node]
            if known.node is None and not (known.jobs or known.events):
                _tell(folder, node, "missing", "the cluster has neither the node nor anything of this run on it")
                return None
            data, notes = pack(node_evidence.parts(known, output), redact, options["limit_bytes"], now=time.time())
            run_folder.write_bytes(log_bundle.archive_file(folder, node), data)
            told = "" if known.jobs else "the cluster has no Job of this run for the node any more"
            more = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            shown = {one_line(name, 200): one_line(note, 300) for name, note in sorted(notes.items())[:200]}
            _tell(folder, node, log_bundle.GATHERED, told, shown, **more)
            return node

        with ThreadPoolExecutor(WORKERS) as pool:
            return [node for node in pool.map(one, nodes) if node]

    @staticmethod
    def _secrets(options):
        store = options["store"]
        embedded = log_bundle.secrets_of_store(project_path(store["state_dir"]) / "store")
        return {*embedded, *(store[name] for name in SECRETS if store[name])}


def _expected(folder):
    try:
        return list(run_folder.RunFolder(folder).read_run()["nodes"])
    except (run_folder.RunError, Invalid):  # there is none, or it is damaged
        return []


def _tell(folder, node, state, message, notes=None, **more):
    told = {"state": state, "message": one_line(message, 600), "notes": notes or {}, **more}
    run_folder.write_json(log_bundle.state_file(folder, node), told)
