"""Watches runs whose nodes are those of a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.paths import project_path
from ..judge.check import Check
from ..runs import node_ids
from ..runs.folder import RunError, RunFolder
from ..watch import launching
from ..watch.watch import RunWatch, RunWatcher, WatchLimits
from . import inventory, joining
from .api import Cluster
from .gangs import member_address
from .orders import NodeOrders
from .placement import ClusterPlacement
from .pod_diagnosis import PodLimits
from .pod_settings import PodSettingsError


class ClusterWatcher(RunWatcher):
    """A watcher by the API of a cluster: a Job for each node, and one connection for all rounds of gangs."""

    _cluster: Cluster

    def __enter__(self) -> ClusterWatcher:
        self._cluster = Cluster(self._options)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._cluster.close()

    def plans(self) -> dict[str, str]:
        hosts = self._task_vars["ansible_play_hosts"]
        orders = NodeOrders(self._action, self._task_vars, self._options.run, self._workloads)
        return {name: launching.shown(orders.order(name).plan) for name in hosts}

    def watch(self, folder: RunFolder, limits: WatchLimits, checks: Sequence[Check]) -> list[str]:
        run, display = folder.read_run(), self._action._display
        store = launching.NodeStore.of(self._options.store, run, "kubernetes")
        placement = ClusterPlacement(
            self._cluster,
            run,
            folder,
            store,
            NodeOrders(self._action, self._task_vars, run, self._workloads).order,
            self._task_vars["ansible_play_hosts"],
            self._task_vars["ansible_play_hosts_all"],
            display.warning,
            PodLimits(
                self._options.patience_seconds,
                self._options.start_seconds,
                self._options.admission_seconds,
            ),
            self._join_rule(),
        )
        if self._gangs:  # members wait for each other from their start: none may wait for others' image pulls
            limits = replace(limits, max_transfers=0)
        try:
            started = RunWatch(limits, folder, store.access, checks, placement, display, store.client).run()
            placement.finish()
        finally:
            placement.close()
        return started

    def _join_rule(self) -> joining.Rule | None:
        options = self._options
        if self._gangs or not options.accept_new_nodes:
            return None

        def matches(name: str) -> bool:
            return bool(self._cluster.list("Node", options.selector, fields=f"metadata.name={name}")[0])

        labels = options.label_groups or inventory.LABEL_GROUPS
        ids = node_ids.NodeIdReader(project_path)(options.ids)
        return joining.Rule(matches, options.skus, ids, self._action._display.display, labels)

    def address(self, run_id: str, member: Mapping[str, Any]) -> str:
        """The name of the member's pod, or the node's own address. Raises RunError."""
        name, hostvars = member["node"], self._task_vars["hostvars"]
        settings = NodeOrders(self._action, self._task_vars, {}).pod_settings(name)
        facts = (hostvars[name].get("kubernetes_node") if name in hostvars else None) or {}  # hostvars.get() raises
        try:
            return member_address(run_id, name, self._options.namespace, settings, facts.get("addresses"))
        except PodSettingsError as error:
            raise RunError(str(error)) from None

    @property
    def requests(self) -> int:
        return sum(self._cluster.asked.values())
