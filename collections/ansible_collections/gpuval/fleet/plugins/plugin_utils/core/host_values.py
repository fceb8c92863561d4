"""Reads variables of any host of the play within one action, without the process that a task on each host needs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import stages
from .ansible_internal import Origin, PlayWorker, is_set_by_task
from .paths import COLLECTION


def place_of(values: Mapping[str, Any], name: str) -> str:
    """Where a variable was set: ``group_vars/all.yml:3`` or ``-e``; empty if unknown, or in the collection."""
    key = next((key for key in values if key == name), None)
    # Of a variable that is set twice the key has the first origin, the value the last one, which counts.
    for part in (values.get(name), key):
        origin = Origin.get_tag(part)
        if origin is None:
            continue
        if not origin.path:
            return "-e" if "-e" in (origin.description or "") else ""
        path = Path(origin.path)
        if COLLECTION in path.parents:
            return ""
        path_text = os.path.relpath(path) if Path.cwd() in path.parents else str(path)
        return f"{path_text}:{origin.line_num}" if origin.line_num else path_text
    return ""


def set_by_operator(node: str, values: Mapping[str, Any], name: str) -> bool:
    """Whether the operator set the variable ``name`` of a node: neither a task nor a file of the collection did."""
    if is_set_by_task(node, name):
        return False
    origin = Origin.get_tag(next(key for key in values if key == name))
    return not (origin and origin.path and COLLECTION in Path(origin.path).parents)


def values_of(action: Any, node: str, task_vars: Mapping[str, Any]) -> Mapping[str, Any]:
    """All variables of a host of the play as the action's task sees them, untemplated."""
    return PlayWorker(action, task_vars).variables_of(node)


def templar_of(action: Any, values: Mapping[str, Any]) -> Any:
    """An Ansible templar with the variables ``values``, and defaults of stages for those that are not set."""
    return action._templar.copy_with_new_env(available_variables=stages.with_variables(action._templar, values))
