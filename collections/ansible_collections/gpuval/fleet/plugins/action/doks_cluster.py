# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Create or delete a DigitalOcean Kubernetes cluster for a run, or list what the account has."""

from __future__ import annotations

import shlex

from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.provision import ProvisionError, cluster, plan
from ..plugin_utils.provision.api import DigitalOceanApi, path_of


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        api, show = DigitalOceanApi(options["token"]), self._display.display
        if options["state"] == "listed":
            lines = cluster.account_lines(api, options["region"])
            show(*lines)
            return {"changed": False, "lines": lines}
        name, tag = options["name"], plan.tag_of(options["name"])
        folder = project_path(options["inventory"] or f"inventories/{name}")
        waiting = options["timeout_seconds"], options["poll_seconds"], show
        if options["state"] == "absent":
            return self._delete(api, tag, options, folder, waiting)
        cluster.ensure_ours(folder)
        pools = plan.ordered_pools(options["node_pools"], tag)
        sizes, region = cluster.sizes(api), options["region"]
        settings = {"name": options["cluster"] or name, "region": region, "version": options["version"], "tags": [tag]}
        order = plan.make_plan(
            settings["name"], tag, region, pools, cluster.clusters(api), existing=bool(options["cluster"])
        )
        lines = [*order.lines, plan.cost_line(pools, sizes, region)]
        show(*lines)
        if order.missing:
            cluster.check_quota(api, order.missing)
            self._confirm(options, "create this")
        if self.check_mode:
            return {"changed": bool(order.missing), "lines": lines, "files": []}
        if options["vpc"]:
            settings["vpc_uuid"] = options["vpc"]
        present = cluster.create_missing(api, order, settings, show)
        ready = cluster.wait_until_ready(api, present, pools, *waiting)
        kubeconfig = api.get_bytes(f"{path_of(ready)}/kubeconfig")
        written = cluster.write_inventory(folder, kubeconfig, plan.expected_nodes(ready, pools, sizes))
        show(f"ready: `make validate INVENTORY={shlex.quote(str(folder))}`")
        return {"changed": bool(order.missing or written), "lines": lines, "files": written}

    def _delete(self, api, tag, options, folder, waiting):
        deletions, kept = plan.deletions(cluster.clusters(api), tag)
        lines = [*(f"delete {deletion.line}" for deletion in deletions), *kept]
        self._display.display(*(lines or [f"nothing carries the tag {tag}"]))
        if deletions:
            self._confirm(options, "delete this")
        removed = []
        if not self.check_mode:
            cluster.delete(api, tag, deletions, *waiting)
            removed = cluster.remove_inventory(folder)
        return {"changed": bool(deletions or removed), "lines": lines, "files": removed}

    def _confirm(self, options, purpose):
        if not self.check_mode and options["confirm"] != options["name"]:
            raise ProvisionError(f"not confirmed: to {purpose}, add -e provision_confirm={options['name']}")
