# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan, complete or delete a DigitalOcean Kubernetes cluster for a run."""

from __future__ import annotations

import shlex

from ..plugin_utils.core.action import ControllerAction
from ..plugin_utils.core.escape import one_line
from ..plugin_utils.core.paths import project_path
from ..plugin_utils.provision import ProvisionError, cluster, plan
from ..plugin_utils.provision.api import Api, path_of


class ActionModule(ControllerAction):
    def work(self, options, task_vars):
        api, name, tag = Api(options["token"]), options["name"], plan.tag_of(options["name"])
        folder = project_path(options["inventory"] or f"inventories/{name}")
        timing = options["timeout_seconds"], options["poll_seconds"], self._display.display
        if options["state"] == "absent":
            return self._delete(api, tag, options, folder, timing)
        cluster.ensure_ours(folder)
        pools = plan.ordered_pools(options["node_pools"], tag)
        sizes = cluster.sizes(api)
        existing = bool(options["cluster"])
        planned = plan.make_plan(
            options["cluster"] or name, tag, options["region"], pools, cluster.clusters(api), existing=existing
        )
        if options["state"] == "planned":
            lines = [*planned.lines, plan.cost_line(pools, sizes, options["region"])]
            self._display.display(*lines)
            if planned.missing:
                cluster.check_quota(api, planned.missing)
                self._confirm(options, "create this")
            create = planned.cluster is None
            return {
                "changed": False, "create": create, "cluster": options["cluster"] or name, "tag": tag, "lines": lines,
                "node_pools": [pool.document for pool in pools],
            }  # fmt: skip
        if self.check_mode:
            return {"changed": bool(planned.missing), "files": []}
        if planned.cluster is None:
            reason = one_line(str(options["create_error"])) or "no reason given"
            raise ProvisionError(f"the cluster was not created: {reason}")
        cluster.complete(api, planned.cluster, planned.missing, self._display.display)
        ready = cluster.wait_until_ready(api, planned.cluster, pools, *timing)
        kubeconfig = api.get_bytes(f"{path_of(ready)}/kubeconfig")
        written = cluster.write_inventory(folder, kubeconfig, plan.expected_nodes(ready, pools, sizes))
        self._display.display(f"ready: `make validate INVENTORY={shlex.quote(str(folder))}`")
        return {"changed": bool(planned.missing or written), "files": written}

    def _delete(self, api, tag, options, folder, timing):
        wanted, kept = plan.deletions(cluster.clusters(api), tag)
        lines = [*(f"delete {one.line}" for one in wanted), *kept]
        for line in lines or [f"nothing carries the tag {tag}"]:
            self._display.display(line)
        if wanted:
            self._confirm(options, "delete this")
        removed = []
        if not self.check_mode:
            cluster.delete(api, tag, wanted, *timing)
            removed = cluster.remove_inventory(folder)
        return {"changed": bool(wanted or removed), "lines": lines, "files": removed}

    def _confirm(self, options, what):
        if not self.check_mode and options["confirm"] != options["name"]:
            raise ProvisionError(f"not confirmed: to {what}, add -e provision_confirm={options['name']}")
