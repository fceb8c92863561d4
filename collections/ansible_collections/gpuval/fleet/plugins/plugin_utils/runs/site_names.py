"""Names, addresses and secrets of a site that no copy of a run for others may contain."""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError

from ..core.paths import project_path
from ..core.step_options import STORE_KEYS
from ..internal_data.sensitive import VARIABLES, Sensitive, is_secret_variable
from . import job_secrets


def hosts_of(nodes: Iterable[str], task_vars: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Variables by host: of a run's nodes that are still in the inventory, and of the play's hosts."""
    names = dict.fromkeys([*nodes, *task_vars["ansible_play_hosts_all"]])
    return {name: task_vars["hostvars"][name] for name in names if name in task_vars["hostvars"]}


def variables_of(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By host, its variables that hold names, addresses or secrets."""
    variables = {host: {name: values[name] for name in VARIABLES if name in values} for host, values in hosts.items()}
    for host, values in hosts.items():
        for name in filter(is_secret_variable, values.keys() - variables[host].keys()):
            with contextlib.suppress(AnsibleError):  # a template that has no value, of no use here
                variables[host][name] = values[name]
    return variables


def sensitive_of(variables: Mapping[str, Mapping[str, Any]], store: Mapping[str, Any]) -> Sensitive:
    """What controller, inventory and store know. ``variables``: as `variables_of` returns; ``store``: the option."""
    sensitive = Sensitive()
    sensitive.add_controller(project_path("."))
    for node, values in variables.items():
        sensitive.add_variables(node, values)
    sensitive.secrets |= secrets_of_store(project_path(store["state_dir"]) / "store")
    sensitive.secrets |= {store[key] for key in STORE_KEYS} - {""} | job_secrets.hidden(store)
    sensitive.secrets |= {value for name, value in os.environ.items() if is_secret_variable(name)} - {""}
    sensitive.add_variables("", {"gpuval_s3_endpoint": store["endpoint"]})
    return sensitive


def secrets_of_store(directory: Path) -> set[str]:
    """Secret keys of the embedded store in `directory`, to redact."""
    try:
        state = json.loads((directory / "store.json").read_text())
        return {state[side]["secret_key"] for side in ("writer", "reader", "signer")}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
