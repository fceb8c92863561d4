"""Put the evidence of the nodes and the controller's own files into one archive; on a cluster, gather it first."""

from contextlib import suppress
from functools import partial
from typing import Any

from ..cluster.api import ClusterAccess
from ..core.paths import project_path
from ..core.schemas import Invalid
from ..core.step_options import STORE_KEYS, StoreOptions
from ..delivery import log_bundle
from ..runs import site_names
from ..runs.action import RunAction, RunOptions
from ..runs.folder import RunError, RunFolder
from ..watch.scheduler import scheduler_of

NAMED_NODES = 20


class BundleLogsOptions(RunOptions, ClusterAccess):
    placement: str = "ssh"
    seconds: float = 120.0
    limit_bytes: int = 8000000
    store: StoreOptions


def bundle_logs(action: RunAction, options: BundleLogsOptions) -> dict[str, Any]:
    folder = log_bundle.run_folder_of(options.results_dir, options.run_id, action.inventory)
    action.name_newer(options.run_id, RunFolder(folder))
    if unknown := log_bundle.unknown_run(options.results_dir, options.run_id):
        action.display.warning(f"{unknown}. What the nodes have comes into {folder}")
    if action.check_mode:
        return {"changed": False, "msg": "check mode: nothing is written"}
    names = {*action.task_vars["ansible_play_hosts_all"]}
    with suppress(RunError, Invalid):  # run.json is missing or damaged
        names |= RunFolder(folder).read_run()["nodes"].keys()
    nodes = sorted(names)
    store = project_path(options.store["state_dir"]) / "store"
    secrets = site_names.secrets_of_store(store)
    keep = partial(log_bundle.write_archive, folder), partial(log_bundle.write_state, folder)
    hidden = {*secrets, *(options.store[name] for name in STORE_KEYS if options.store[name])}
    run_id = log_bundle.asked_run_id(folder, options.run_id)
    scheduler_of(options.placement)(action, options).gather(run_id, nodes, hidden, *keep)
    bundle = log_bundle.bundle(folder, folder.name, nodes, store, secrets)
    lines = [f"logs of {bundle['nodes'] - len(bundle['without'])} of {bundle['nodes']} nodes: {bundle['path']}"]
    lines += [f"- without: {node}: {message}" for node, message in list(bundle["without"].items())[:NAMED_NODES]]
    if len(bundle["without"]) > NAMED_NODES:
        lines.append(f"- and {len(bundle['without']) - NAMED_NODES} more, see nodes.json")
    action.display.display(*lines)
    return {"changed": True, **bundle, "msg": lines[0]}
