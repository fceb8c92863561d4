"""Create or delete a DigitalOcean Kubernetes cluster for a run, or list what the account has."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..core.paths import project_path
from ..core.step_options import StepOptions
from ..provision import ProvisionError, cluster, plan
from ..provision.api import DigitalOceanApi, path_of
from ..runs.action import RunAction


class DoksClusterOptions(StepOptions):
    state: Literal["present", "absent", "listed"]
    token: str
    name: str = ""
    cluster: str = ""
    region: str = ""
    version: str = "latest"
    vpc: str = ""
    node_pools: Sequence[Mapping[str, Any]] = ()
    confirm: str = ""
    timeout_seconds: float = 1800.0
    poll_seconds: float = 10.0
    inventory: str = ""


def doks_cluster(action: RunAction, options: DoksClusterOptions) -> dict[str, Any]:
    api, show = DigitalOceanApi(options.token), action.display.display
    if options.state == "listed":
        lines = cluster.account_lines(api, options.region)
        show(*lines)
        return {"changed": False, "lines": lines}
    name, tag = options.name, plan.tag_of(options.name)
    folder = project_path(options.inventory or f"inventories/{name}")
    waiting = options.timeout_seconds, options.poll_seconds, show
    if options.state == "absent":
        return _delete(action, api, tag, options, folder, waiting)
    cluster.ensure_ours(folder)
    pools = plan.ordered_pools(options.node_pools, tag)
    sizes, region = cluster.sizes(api), options.region
    settings: dict[str, Any] = {
        "name": options.cluster or name,
        "region": region,
        "version": options.version,
        "tags": [tag],
    }
    order = plan.make_plan(settings["name"], tag, region, pools, cluster.clusters(api), existing=bool(options.cluster))
    lines = [*order.lines, plan.cost_line(pools, sizes, region)]
    show(*lines)
    if order.missing:
        cluster.check_quota(api, order.missing)
        _confirm(action, options, "create this")
    if action.check_mode:
        return {"changed": bool(order.missing), "lines": lines, "files": []}
    if options.vpc:
        settings["vpc_uuid"] = options.vpc
    present = cluster.create_missing(api, order, settings, show)
    ready = cluster.wait_until_ready(api, present, pools, *waiting)
    kubeconfig = api.get_bytes(f"{path_of(ready)}/kubeconfig")
    written = cluster.write_inventory(folder, kubeconfig, plan.expected_nodes(ready, pools, sizes))
    show(f"ready: `make validate INVENTORY={shlex.quote(str(folder))}`")
    return {"changed": bool(order.missing or written), "lines": lines, "files": written}


def _delete(action, api, tag, options, folder, waiting):
    deletions, staying = plan.deletions(cluster.clusters(api), tag)
    lines = [*(f"delete {deletion.line}" for deletion in deletions), *staying]
    action.display.display(*(lines or [f"nothing carries the tag {tag}"]))
    if deletions:
        _confirm(action, options, "delete this")
    removed = []
    if not action.check_mode:
        cluster.delete(api, tag, deletions, *waiting)
        removed = cluster.remove_inventory(folder)
    return {"changed": bool(deletions or removed), "lines": lines, "files": removed}


def _confirm(action, options, purpose):
    if not action.check_mode and options.confirm != options.name:
        raise ProvisionError(f"not confirmed: to {purpose}, add -e provision_confirm={options.name}")
