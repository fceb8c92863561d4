"""Put the evidence of the nodes and the controller's own files into one archive; on a cluster, gather it first."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from ...module_utils.host_evidence import Part, pack
from ...module_utils.redaction import SecretRedactor
from ..cluster import names, node_evidence
from ..cluster.api import Cluster, ClusterAccess, ClusterError
from ..core.escape import one_line
from ..core.paths import project_path
from ..core.schemas import Invalid
from ..core.step_options import STORE_KEYS, StoreOptions
from ..delivery import log_bundle
from ..runs.action import RunAction, RunOptions
from ..runs.folder import RunError, RunFolder

NAMED_NODES = 20
WORKERS = 8
OUTPUT_LINES = 20_000


@dataclass(frozen=True, kw_only=True)
class BundleLogsOptions(RunOptions, ClusterAccess):
    placement: Literal["ssh", "kubernetes", "slurm"] = "ssh"
    seconds: float = 120.0
    limit_bytes: int = 8000000
    store: StoreOptions


def bundle_logs(action: RunAction, options: BundleLogsOptions) -> dict[str, Any]:
    folder = log_bundle.run_folder_of(options.results_dir, options.run_id, action.inventory)
    action.name_newer(options.run_id, RunFolder(folder))
    unknown = log_bundle.unknown_run(options.results_dir, options.run_id)
    if unknown:
        action.display.warning(f"{unknown}. What the nodes have comes into {folder}")
    if action.check_mode:
        return {"changed": False, "msg": "check mode: nothing is written"}
    nodes = sorted({*_expected(folder), *action.task_vars["ansible_play_hosts_all"]})
    store = project_path(options.store["state_dir"]) / "store"
    secrets = log_bundle.secrets_of_store(store)
    if options.placement == "kubernetes":
        _gather_from_cluster(action, options, folder, nodes, secrets)
    made = log_bundle.bundle(folder, folder.name, nodes, store, secrets)
    lines = [f"logs of {made['nodes'] - len(made['without'])} of {made['nodes']} nodes: {made['path']}"]
    lines += [f"- without: {node}: {message}" for node, message in list(made["without"].items())[:NAMED_NODES]]
    if len(made["without"]) > NAMED_NODES:
        lines.append(f"- and {len(made['without']) - NAMED_NODES} more, see nodes.json")
    action.display.display(*lines)
    return {"changed": True, **made, "msg": lines[0]}


def _gather_from_cluster(action, options, folder, nodes, secrets):
    """Write an archive for each node that the cluster knows; others are named, not failed."""
    deadline = time.monotonic() + options.seconds
    secrets = {*secrets, *(options.store[name] for name in STORE_KEYS if options.store[name])}
    try:
        with Cluster(options, deadline_seconds=min(60.0, options.seconds)) as cluster:
            run_id = log_bundle.asked_run_id(folder, options.run_id)
            _gather(cluster, folder, run_id, nodes, secrets, options.limit_bytes, deadline)
    except ClusterError as error:
        for node in nodes:
            log_bundle.write_state(folder, node, "unreachable", f"the cluster: {error}")
        action.display.warning(f"no evidence of the cluster: {error}")


def _gather(cluster, folder, run_id, nodes, secrets, limit_bytes, deadline):
    selector = names.run_selector(run_id)
    jobs, pods = (cluster.list(kind, selector, untrimmed=True)[0] for kind in ("Job", "Pod"))
    events = cluster.list("Event", fields="involvedObject.kind!=Node")[0]
    objects = node_evidence.by_node(run_id, nodes, cluster.list("Node")[0], jobs, pods, events)
    redact = SecretRedactor({*secrets, *node_evidence.secrets_in([*jobs, *pods])})

    def output(pod, container):
        if time.monotonic() >= deadline:
            return Part("", note="not read: the time limit was reached")
        try:
            text = cluster.log(pod, container, limit_bytes=limit_bytes, tail_lines=OUTPUT_LINES)
        except ClusterError as error:
            return Part("", note=f"cannot be read: {one_line(str(error), 300)}")
        return Part("", text.encode())

    def gather_node(node):
        known = objects[node]
        if known.node is None and not (known.jobs or known.events):
            message = "the cluster has neither the node nor anything of this run on it"
            log_bundle.write_state(folder, node, "missing", message)
            return
        data, notes = pack(node_evidence.parts(known, output), redact, limit_bytes, now=time.time())
        message = "" if known.jobs else "the cluster no longer has a Job of this run for the node"
        log_bundle.write_archive(folder, node, data, message, notes)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(gather_node, nodes))


def _expected(folder):
    try:
        return list(RunFolder(folder).read_run()["nodes"])
    except (RunError, Invalid):  # there is none, or it is damaged
        return []
