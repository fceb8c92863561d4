"""Actions accept the options that are documented, and no others."""

import importlib
from pathlib import Path

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.argument_specs import argument_spec

PLUGINS = Path(__file__).resolve().parents[3] / "collections/ansible_collections/gpuval/fleet/plugins"
ACTIONS = sorted(path.stem for path in (PLUGINS / "action").glob("*.py"))
ON_CONTROLLER = {path.stem for path in (PLUGINS / "modules").glob("*.yml")}


@pytest.mark.parametrize("name", ACTIONS)
def test_defaults_are_of_the_documented_type_and_unknown_and_missing_options_are_refused(name):
    spec = argument_spec(name)
    optional = {option: one for option, one in spec.items() if not one.get("required")}
    assert ArgumentSpecValidator(optional).validate({}).error_messages == []
    errors = " ".join(ArgumentSpecValidator(spec).validate({"no_such_option": 1}).error_messages)
    assert "no_such_option" in errors
    assert all(option in errors for option, one in spec.items() if one.get("required"))


def test_one_file_documents_an_action_without_a_half_on_the_node():
    for name in ON_CONTROLLER:
        assert not (PLUGINS / "modules" / f"{name}.py").exists(), name
        action = importlib.import_module(f"ansible_collections.gpuval.fleet.plugins.action.{name}")
        assert not hasattr(action, "DOCUMENTATION"), name


def test_an_option_of_the_module_overrides_that_of_a_fragment():
    spec = argument_spec("find_run")
    assert spec["store"]["required"] is False
    assert spec["store"]["options"]["bucket"] == {"type": "str", "required": True}
    assert argument_spec("open_run")["criteria"] == {"type": "list", "elements": "path", "default": []}
