"""Actions and steps accept the options that they declare, and no others; playbooks and roles pass no others."""

import ast
import importlib

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import step_options
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import COLLECTION
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.step_options import argument_spec

from tests.kit.actions import run_action
from tests.kit.options import run_options

PLUGINS = COLLECTION / "plugins"
ACTIONS = sorted(path.stem for path in (PLUGINS / "action").glob("*.py"))
STEPS = sorted(path.stem for path in (step_options.UTILS / "steps").glob("[a-z]*.py"))
NODE_STEPS = sorted(path.stem for path in (step_options.UTILS / "node_steps").glob("[a-z]*.py"))
ON_CONTROLLER = {path.stem for path in (PLUGINS / "modules").glob("*.yml")}
#: Options that the watch adds to the one task of a file.
ADDED = {"launch.yml": {"store"}, "fetch.yml": {"store"}}
CONTROLLER, NODE = "gpuval.fleet.controller", "gpuval.fleet.node"


def spec_of(name):
    for names, folder in ((STEPS, "steps"), (NODE_STEPS, "node_steps")):
        if name in names:
            return step_options.step_spec(step_options.load_step(name, folder))
    if name != "store_upload":
        return argument_spec(name)
    action = importlib.import_module(f"ansible_collections.gpuval.fleet.plugins.action.{name}")
    return step_options.group_spec(action.StoreUploadOptions)


@pytest.mark.parametrize("name", [*ACTIONS, *STEPS, *NODE_STEPS])
def test_defaults_are_of_the_documented_type_and_unknown_and_missing_options_are_refused(name):
    spec = spec_of(name)
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


def tasks_of(value):
    """All uses of the actions that run steps in a document."""
    if isinstance(value, dict):
        found = [value[action] for action in (CONTROLLER, NODE) if action in value]
        return found + [task for item in value.values() for task in tasks_of(item)]
    return [task for item in value for task in tasks_of(item)] if isinstance(value, list) else []


def test_playbooks_and_roles_pass_options_that_steps_have_and_each_step_is_used():
    files = [*COLLECTION.glob("playbooks/*.yml"), *COLLECTION.glob("roles/*/tasks/*.yml")]
    used = set()
    for path in files:
        for task in tasks_of(yaml.safe_load(path.read_text())):
            spec = spec_of(task["step"])
            used.add(task["step"])
            assert {*task} - {"step", "settings"} <= {*spec}, f"{path}: {task['step']}"
            required = {option for option, one in spec.items() if one.get("required")}
            assert required <= {*task, *ADDED.get(path.name, ())}, f"{path}: {task['step']}"
    assert used == {*STEPS, *NODE_STEPS}


def test_nodes_get_the_half_of_every_step():
    """Ansible sends what the source of a module imports."""
    tree = ast.walk(ast.parse((PLUGINS / "modules/node.py").read_text()))
    imports = [part for part in tree if isinstance(part, ast.ImportFrom) and part.module.endswith(".node_steps")]
    sent = {name.name for part in imports for name in part.names}
    assert sent == {*NODE_STEPS} == {path.stem for path in (PLUGINS / "module_utils/node_steps").glob("[a-z]*.py")}


def test_every_removed_action_says_what_replaces_it():
    routing = yaml.safe_load((COLLECTION / "meta/runtime.yml").read_text())["plugin_routing"]
    assert not {*routing["modules"]} & {*ACTIONS, *ON_CONTROLLER}
    for name, entry in routing["modules"].items():
        assert (NODE if name in NODE_STEPS else CONTROLLER) in entry["tombstone"]["warning_text"], name


def test_options_come_from_the_signature(tmp_path):
    spec = spec_of("find_run")
    assert spec["store"]["default"] is None
    assert spec["store"]["options"]["bucket"] == {"type": "str", "required": True}
    assert spec["results_dir"] == {"type": "str", "default": "results"}
    assert spec_of("open_run")["criteria"] == {"type": "list", "elements": "path", "default": []}
    assert spec_of("reach_node")["what"]["choices"] == ["shell", "follow"]
    assert spec_of("watch_run")["kubeconfig"]["type"] == "path"
    step = step_options.load_step("list_runs")
    given = {"run_id": "", "results_dir": str(tmp_path), "jobs": [], "rerun": ""}
    arguments = step_options.step_arguments(step, given)
    assert (arguments["options"].results_dir, arguments["rerun"]) == (tmp_path, "")
    step = step_options.load_step("clean_scheduler")
    given = {name: option.get("default") for name, option in step_options.step_spec(step).items()} | {"results_dir": ""}
    assert step_options.step_arguments(step, given)["options"].results_dir is None


def test_a_step_that_is_unknown_is_refused_with_the_nearest_name():
    outcome = run_action("list_run", {})
    assert outcome.failed
    assert "step 'list_run' is unknown; is it list_runs?" in outcome.text


def test_a_task_with_retries_runs_its_step_again(tmp_path):
    """Ansible calls the same action with the same arguments."""
    arguments = {"step": "list_runs", "results_dir": str(tmp_path)}
    assert not any(run_action("controller", arguments).failed for _attempt in range(2))


def test_files_of_options_are_named_by_variables_of_the_environment_and_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SITE", str(tmp_path))
    (tmp_path / "site.json").write_text("[]")
    for path in ("$SITE/site.json", "site.json"):
        outcome = run_action("open_run", run_options(tmp_path, "r", baseline=path))
        assert "cannot be read" not in outcome.text
        assert "site.json" in outcome.text
    paths = {"list_runs": "rerun", "mad_jobs": "secrets_file", "prepare_cluster": "role_file", "reach_node": "file"}
    for step, option in {**paths, "render_manifests": "path", "write_hostfile": "path"}.items():
        assert spec_of(step)[option]["type"] == "path", step
