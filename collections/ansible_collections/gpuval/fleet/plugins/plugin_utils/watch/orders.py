"""The plan of each node from its Ansible variables, for placements without Ansible's own tasks on nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean

from ..core.host_values import templar_of, values_of
from ..runs import folder as run_folder
from ..runs import plans

#: The variables of a node with the declarations of its stages: its own ones, and those of gangs.
WORKLOADS, GANG_WORKLOADS = "run_workloads", "run_gang_workloads"
PLAN_VARIABLES = (
    *("gpuval_heartbeat_seconds", "gpuval_telemetry", "gpuval_telemetry_seconds"),
    *("gpuval_workload_python", "gpuval_models_dir", "gpuval_container"),
)


def values_for(
    action: Any,
    name: str,
    task_vars: Mapping[str, Any],
    variables: tuple[str, ...],
    others: Mapping[str, Any] | None = None,
    like: str = "",
) -> dict[str, Any]:
    """Variables of a node, templated. `like`: the host that has them; `others` replace some. Raises PlanError."""
    values = {**values_of(action, like or name, task_vars), **(others or {})}
    templar = templar_of(action, values)
    try:
        return {variable: templar.template(values[variable]) for variable in variables}
    except AnsibleError as error:
        raise plans.PlanError(f"{name}: {error.message}") from None


def plan_of(
    run: Mapping[str, Any], name: str, chosen: Mapping[str, Any], declared: Mapping[str, Any]
) -> dict[str, Any]:
    """The plan of a node, whose stages run where the runner does. `chosen` has PLAN_VARIABLES."""
    sampled = boolean(chosen["gpuval_telemetry"])
    return plans.build(
        plans.PlanSettings.of(
            run,
            name,
            created_at=run_folder.now(),
            heartbeat_seconds=float(chosen["gpuval_heartbeat_seconds"]),
            runtime="host",
            python=chosen["gpuval_workload_python"],
            models_dir=chosen["gpuval_models_dir"] or None,
            container=chosen["gpuval_container"],
            telemetry_seconds=float(chosen["gpuval_telemetry_seconds"]) if sampled else 0.0,
        ),
        run["nodes"][name]["stages"],
        declared,
    )
