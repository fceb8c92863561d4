"""What is to run on each node of a cluster: its plan and its pod's settings, from the node's Ansible variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..watch import launching
from ..watch.orders import GANG_WORKLOADS, PLAN_VARIABLES, WORKLOADS, plan_of, values_for
from . import nodes, pod_settings
from .pod_settings import PodSettings

POD_VARIABLES = ("gpuval_pods", "gpuval_kueue_queue")


@dataclass(frozen=True)
class PodOrder:
    """What is to run on one node: its plan as SSH would have it, its pod's settings, its SKU."""

    plan: Mapping[str, Any]
    settings: PodSettings
    sku: str


class NodeOrders:
    """Makes the orders of a run. Raises PlanError."""

    def __init__(
        self, action: Any, task_vars: Mapping[str, Any], run: Mapping[str, Any], workloads: str = WORKLOADS
    ) -> None:
        self._action, self._task_vars, self._run, self._workloads = action, task_vars, run, workloads

    def order(self, name: str, node: Mapping[str, Any] | None = None, like: str = "") -> PodOrder:
        """The order of a node. `like`: the host whose variables a node has that joined the run; `node`: its object."""
        expected = self._run["nodes"][name]
        later = [GANG_WORKLOADS] if expected.get("gang_stages") else []
        chosen = self._values(name, node, like, (self._workloads, *later, *POD_VARIABLES, *PLAN_VARIABLES))
        declared = {**(chosen[GANG_WORKLOADS] if later else {}), **chosen[self._workloads]}
        plan = plan_of(self._run, name, chosen, launching.with_needed_packages(expected, declared, in_pods=True))
        settings = pod_settings.parse(*(chosen[variable] for variable in POD_VARIABLES))
        return PodOrder(plan, settings, expected["sku"])

    def pod_settings(self, name: str) -> PodSettings:
        return pod_settings.parse(*self._values(name, None, "", POD_VARIABLES).values())

    def _values(
        self, name: str, node: Mapping[str, Any] | None, like: str, variables: tuple[str, ...]
    ) -> dict[str, Any]:
        overrides = {}
        if like and node is not None:
            overrides = {
                "inventory_hostname": name,
                "inventory_hostname_short": name.split(".", maxsplit=1)[0],
                "kubernetes_node": {"exists": True, **nodes.describe(node)},
            }
        return values_for(self._action, name, self._task_vars, variables, overrides, like)
