"""Roles pass every option that actions of gangs have; what an operator sets is not lost on the way."""

import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import settings

from tests.kit.options import documented


def test_every_option_is_passed_by_a_declared_setting():
    gangs, _collect = yaml.safe_load((settings.ROLES / "run/tasks/gangs.yml").read_text())
    (task,) = gangs["block"]
    (passed,) = (value for name, value in task.items() if name.startswith("gpuval.fleet."))
    assert set(documented("gangs", "gang_members")) <= set(passed)
    known = settings.declared()
    assert passed["tapered"] == "{{ gpuval_gang_tapered }}"
    assert known.defaults["gpuval_gang_tapered"] is False
    assert known.options["gpuval_gang_tapered"]["type"] == "bool"
