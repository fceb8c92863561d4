"""What is to run on each node of a cluster: its plan and its pod's settings, from the node's Ansible variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean

from ..core.host_values import templar_of, values_of
from ..runs import folder as run_folder
from ..runs import plans
from . import nodes, pod_settings
from .pod_settings import PodSettings

#: The variables of a node with the declarations of its stages: its own ones, and those of gangs.
WORKLOADS, GANG_WORKLOADS = "run_workloads", "run_gang_workloads"
POD_VARIABLES = ("gpuval_pods", "gpuval_kueue_queue")
PLAN_VARIABLES = (
    *("gpuval_heartbeat_seconds", "gpuval_telemetry", "gpuval_telemetry_seconds"),
    *("gpuval_workload_python", "gpuval_models_dir", "gpuval_container"),
)


@dataclass(frozen=True)
class Order:
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

    def order(self, name: str, node: Mapping[str, Any] | None = None, like: str = "") -> Order:
        """The order of a node. `like`: the host whose variables a node has that joined the run; `node`: its object."""
        chosen = self._values(name, node, like, (self._workloads, *POD_VARIABLES, *PLAN_VARIABLES))
        run, expected = self._run, self._run["nodes"][name]
        sampled = boolean(chosen["gpuval_telemetry"])
        plan = plans.build(
            plans.Settings(
                run_id=run["run_id"],
                node=name,
                created_at=run_folder.now(),
                deadline_seconds=run["deadline_seconds"],
                heartbeat_seconds=float(chosen["gpuval_heartbeat_seconds"]),
                runtime="host",
                sku=expected["sku"],
                gpu_count=expected["gpu_count"],
                python=chosen["gpuval_workload_python"],
                models_dir=chosen["gpuval_models_dir"] or None,
                container=chosen["gpuval_container"],
                telemetry_seconds=float(chosen["gpuval_telemetry_seconds"]) if sampled else 0.0,
                gang=plans.gang_of(run, name),
            ),
            expected["stages"],
            chosen[self._workloads],
        )
        settings = pod_settings.parse(*(chosen[variable] for variable in POD_VARIABLES))
        return Order(plan, settings, expected["sku"])

    def pod_settings(self, name: str) -> PodSettings:
        return pod_settings.parse(*self._values(name, None, "", POD_VARIABLES).values())

    def _values(
        self, name: str, node: Mapping[str, Any] | None, like: str, variables: tuple[str, ...]
    ) -> dict[str, Any]:
        values = values_of(self._action, like or name, self._task_vars)
        if like and node is not None:
            values = {
                **values,
                "inventory_hostname": name,
                "inventory_hostname_short": name.split(".", maxsplit=1)[0],
                "kubernetes_node": {"exists": True, **nodes.describe(node)},
            }
        templar = templar_of(self._action, values)
        try:
            return {variable: templar.template(values[variable]) for variable in variables}
        except AnsibleError as error:
            raise plans.PlanError(f"{name}: {error.message}") from None
