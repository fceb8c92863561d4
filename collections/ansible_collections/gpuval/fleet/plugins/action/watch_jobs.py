# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Carry a run out on a cluster: one process makes the Jobs of all nodes in their turn, and watches all of them."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import (
    inventory,
    joining,
    nodes,
    pod_diagnosis,
    pod_settings,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import Cluster, ClusterError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.options import access_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.placement import (
    ClusterPlacement,
    Order,
    StoreForPods,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.host_values import templar_of, values_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import project_path
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import node_ids, plans
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.action import RunAction
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.access import StoreAccess
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.rclone import rclone_config
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import launching
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.watch import Limits, RunWatch

#: The variables of a node that make its plan and its pod.
VARIABLES = (
    "gpuval_pods",
    "gpuval_kueue_queue",
    "gpuval_heartbeat_seconds",
    "gpuval_telemetry",
    "gpuval_telemetry_seconds",
    "gpuval_workload_python",
    "gpuval_models_dir",
    "gpuval_container",
)


class ActionModule(RunAction):
    #: The variable of a node that has the declarations of its stages.
    WORKLOADS = "run_workloads"

    def work(self, options, task_vars):
        if self.check_mode:
            return self._show(self._orders(options["run"], task_vars), task_vars)
        folder, access = self.folder(options), StoreAccess(options["store"])
        checks = criteria.load([*criteria.shipped_files(), *options["criteria"]])
        try:
            with Cluster(access_of(options)) as cluster:
                return self._watch(options, task_vars, cluster, folder, access, checks)
        except ClusterError as error:
            raise AnsibleActionFail(str(error)) from None

    def _orders(self, run, task_vars):
        def order(name, node=None, like=""):
            return self._order(name, node, like, run, run["deadline_seconds"], task_vars)

        return order

    def _watch(self, options, task_vars, cluster, folder, access, checks):
        run = folder.read_run()
        store = StoreForPods(
            client=access.store(),
            reader=rclone_config(access.reader()),
            ca=access.ca() or "",
            reachable=access.reachable_from_nodes("kubernetes"),
            valid_seconds=run["deadline_seconds"] + launching.SIGNED_SLACK_SECONDS,
        )
        placement = ClusterPlacement(
            cluster,
            run,
            folder,
            store,
            self._orders(run, task_vars),
            task_vars["ansible_play_hosts"],
            task_vars["ansible_play_hosts_all"],
            self._display.warning,
            pod_diagnosis.Limits.of(options["patience_seconds"], options["start_seconds"]),
            self._rule(options, cluster) if options["accept_new_nodes"] else None,
        )
        try:
            watch = RunWatch(Limits.of(options), folder, access, checks, placement, self._display, store.client)
            started = watch.run()
            placement.finish()
        finally:
            placement.close()
        return {"changed": bool(started), "started": started, "requests": placement.requests}

    def _rule(self, options, cluster):
        def matches(name):
            return bool(cluster.list("Node", options["selector"], fields=f"metadata.name={name}")[0])

        wanted = options["label_groups"] or inventory.LABEL_GROUPS
        ids = node_ids.Reader(project_path)(options["ids"])
        return joining.Rule(matches, options["skus"], ids, self._display.display, wanted)

    def _order(self, name, node, like, run, deadline, task_vars):
        values = values_of(self, like or name, task_vars)
        if like:  # a node that joined is no host: its variables are those of one of its kind, with its own name
            values = {
                **values,
                "inventory_hostname": name,
                "inventory_hostname_short": name.split(".")[0],
                "kubernetes_node": {"exists": True, **nodes.describe(node)},
            }
        templar = templar_of(self, values)
        try:
            chosen = {key: templar.template(values[key]) for key in (self.WORKLOADS, *VARIABLES)}
        except AnsibleError as error:
            raise plans.PlanError(f"{name}: {error.message}") from None
        expected = run["nodes"][name]
        plan = plans.build(
            plans.Settings(
                run_id=run["run_id"],
                node=name,
                created_at=run_folder.now(),
                deadline_seconds=deadline,
                heartbeat_seconds=float(chosen["gpuval_heartbeat_seconds"]),
                runtime="host",
                sku=expected["sku"],
                gpu_count=expected["gpu_count"],
                python=chosen["gpuval_workload_python"],
                models_dir=chosen["gpuval_models_dir"] or None,
                container=chosen["gpuval_container"],
                telemetry_seconds=_period(chosen["gpuval_telemetry"], chosen["gpuval_telemetry_seconds"]),
                gang=plans.gang_of(run, name),
            ),
            expected["stages"],
            chosen[self.WORKLOADS],
        )
        settings = pod_settings.parse(chosen["gpuval_pods"], chosen["gpuval_kueue_queue"])
        return Order(plan, settings, expected["sku"])

    def _pod_settings(self, name, task_vars):
        values = values_of(self, name, task_vars)
        templar = templar_of(self, values)
        pods_wanted, queue = (templar.template(values[key]) for key in ("gpuval_pods", "gpuval_kueue_queue"))
        return pod_settings.parse(pods_wanted, queue)

    def _show(self, order, task_vars):
        """Check mode: what each node would be asked to do."""
        for name in task_vars["ansible_play_hosts"]:
            plan = order(name).plan
            if self._task.diff:
                self._display.display(f"{name}:\n{launching.shown(plan)}")
        return {"changed": True, "started": [], "msg": f"plans of {len(task_vars['ansible_play_hosts'])} node(s)"}


def _period(wanted, seconds):
    """How often a node is sampled; 0 is not at all."""
    return float(seconds) if boolean(wanted) else 0.0
