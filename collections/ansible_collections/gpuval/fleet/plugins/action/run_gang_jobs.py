# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Have nodes of a cluster work together once their own stages have passed, and find the one for which that fails."""

from __future__ import annotations

from ansible.errors import AnsibleActionFail
from ansible_collections.gpuval.fleet.plugins.action.watch_jobs import ActionModule as WatchJobs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster import gangs as pods_of_gangs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.api import Cluster, ClusterError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.options import access_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.cluster.pod_settings import ManifestError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import session
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.orchestrate import Gangs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.access import StoreAccess


class ActionModule(WatchJobs):
    WORKLOADS = "run_gang_workloads"

    def work(self, options, task_vars):
        if self.check_mode:
            return {"changed": False, "skipped": True}
        folder, access = self.folder(options), StoreAccess(options["store"])
        checks = criteria.load([*criteria.shipped_files(), *options["criteria"]])
        # All wait for each other from their start: none may wait for a place of those that bring images.
        limits = {**options, **session.LIMITS, "max_transfers": 0, "accept_new_nodes": False}
        try:
            with Cluster(access_of(options)) as cluster:
                ways = session.ways(
                    folder,
                    access,
                    checks,
                    options,
                    lambda below: self._watch(limits, task_vars, cluster, below, access, checks),
                    self._display,
                )
                ways.address = self._address(options["namespace"], task_vars)
                settings = session.settings(options)
                session.begin(folder, settings)
                gangs = Gangs(folder, settings, ways)
                placed = session.placed(gangs.run["nodes"], task_vars["ansible_play_hosts_all"], task_vars["hostvars"])
                changed = gangs.carry_out(placed, session.properties(folder, gangs.run))
        except ClusterError as error:
            raise AnsibleActionFail(str(error)) from None
        return {"changed": changed, **session.summary(gangs.document)}

    def _address(self, namespace, task_vars):
        """What run.json of a round says of a member: the name of its pod, or the node's own address."""

        def address(run_id, member):
            name = member["node"]
            settings = self._pod_settings(name, task_vars)
            hostvars = task_vars["hostvars"]  # whose get() raises for who is not in the inventory
            facts = (hostvars[name].get("kubernetes_node") if name in hostvars else None) or {}
            try:
                return pods_of_gangs.member_address(run_id, name, namespace, settings, facts.get("addresses"))
            except ManifestError as error:
                raise RunError(str(error)) from None

        return address
