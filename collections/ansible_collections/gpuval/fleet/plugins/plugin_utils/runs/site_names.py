"""Collects a site's names, addresses and secrets, which copies of a run for others must not contain."""

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
    """{host: its variables}, of a run's nodes that are still in the inventory, and of the play's hosts."""
    names = dict.fromkeys([*nodes, *task_vars["ansible_play_hosts_all"]])
    return {name: task_vars["hostvars"][name] for name in names if name in task_vars["hostvars"]}


def variables_of(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """{host: its variables that hold names, addresses or secrets}."""
    variables = {host: {name: values[name] for name in VARIABLES if name in values} for host, values in hosts.items()}
    for host, values in hosts.items():
        for name in filter(is_secret_variable, values.keys() - variables[host].keys()):
            with contextlib.suppress(AnsibleError):  # a template without a value names nothing
                variables[host][name] = values[name]
    return variables


def sensitive_of(variables: Mapping[str, Mapping[str, Any]], store: Mapping[str, Any]) -> Sensitive:
    """All that copies of a run must not contain. ``variables``: from `variables_of`; ``store``: the `store` option."""
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
    """Secret keys in store.json of the embedded store in `directory`; empty if the file is unreadable."""
    try:
        state = json.loads((directory / "store.json").read_text())
        return {state[side]["secret_key"] for side in ("writer", "reader", "signer")}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
