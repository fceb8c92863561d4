"""The plan that the shipped roles make of a profile: their defaults, templated as Ansible does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import stages

ROLES = Path(__file__).resolve().parents[2] / "collections/ansible_collections/gpuval/fleet/roles"


class Variables:
    """The roles' defaults with others in their place."""

    def __init__(self, hosts: list[str], **others: Any) -> None:
        loader, values = DataLoader(), {}
        for file in sorted(ROLES.glob("*/defaults/main.yml")):
            values |= loader.load_from_file(str(file), trusted_as_template=True) or {}
        values |= stages.variables(others["gpuval_profile"])
        values |= {
            "ansible_play_hosts_all": hosts,
            "ansible_play_hosts": hosts,
            "inventory_hostname": hosts[0],
            **others,
        }
        self._templar = Templar(loader=loader, variables=values)

    def __getitem__(self, name: str) -> Any:
        return self._templar.template(trust_as_template("{{ " + name + " }}"))
