"""Roles pass every option that actions of gangs have; what an operator sets is not lost on the way."""

from dataclasses import fields

import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.orchestrate import GangSettings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import settings


def test_every_option_is_passed_by_a_declared_setting():
    gangs, _collect = yaml.safe_load((settings.ROLES / "run/tasks/gangs.yml").read_text())
    (task,) = gangs["block"]
    (passed,) = (value for name, value in task.items() if name.startswith("gpuval.fleet."))
    assert {field.name for field in fields(GangSettings)} <= set(passed)
    known = settings.declared()
    assert passed["tapered"] == "{{ gpuval_gang_tapered }}"
    assert known.defaults["gpuval_gang_tapered"] is False
    assert known.options["gpuval_gang_tapered"]["type"] == "bool"
