"""Variables of any node of the play from within one action: no process per node, as a task on each of them takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.executor.process import worker as ansible_worker


def values_of(action: Any, node: str, task_vars: Mapping[str, Any]) -> Mapping[str, Any]:
    """All variables of a node of the play as the action's task sees them, untemplated."""
    worker = ansible_worker.current_worker
    if worker is None:
        raise AnsibleActionFail("gpuval reads nodes' variables within a worker process of ansible-playbook only")
    manager = worker._variable_manager
    values: Mapping[str, Any] = manager.get_vars(
        play=action._task.get_play(),
        host=manager._inventory.get_host(node),
        task=action._task,
        _hosts=task_vars["ansible_play_hosts"],
        _hosts_all=task_vars["ansible_play_hosts_all"],
    )
    return values


def templar_of(action: Any, values: Mapping[str, Any]) -> Any:
    """What templates with those variables: `.template(value)`."""
    return action._templar.copy_with_new_env(available_variables=values)
