"""What of a node's answer passes: what the module's RETURN documents, of the documented types."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.collect import facts_result
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import action, ansible_internal, answers

POISON = {
    "gpuval_model": "/root/.docker",
    "gpuval_results_dir": "/tmp/elsewhere",
    "gpuval_images": {"training": {"reference": "evil.example/x:1"}},
    "gpuval_s3_endpoint": "https://evil.example",
}


@pytest.mark.parametrize("module", ["host_network", "peer_probe", "clean_node", "host_evidence", "launch_plan"])
def test_foreign_facts_and_keys_do_not_pass(module):
    accepted = answers.accept(module, {"changed": False, "ansible_facts": POISON, "_ansible_x": 1, "add_host": {}})
    assert accepted == {"changed": False}


def test_facts_pass_only_under_the_documented_name():
    environment = facts_result()["environment"]
    answer = {"changed": False, "state": "success", "ansible_facts": {"gpuval_hardware": environment, **POISON}}
    accepted = answers.accept("gpu_facts", answer)
    assert accepted["ansible_facts"] == {"gpuval_hardware": environment}


@pytest.mark.parametrize(
    ("module", "answer", "place"),
    [
        ("host_network", {"changes": {"a": 1}}, "changes is not of type list"),
        ("host_network", {"left": [5]}, r"left\[\] is not of type str"),
        ("clean_node", {"removed": "all"}, "removed is not of type list"),
        ("send_image", {"have": True}, "have is not of type int"),
        ("gpu_facts", {"ansible_facts": {"gpuval_hardware": []}}, "ansible_facts.gpuval_hardware is not of type dict"),
        ("gpu_facts", {"ansible_facts": {"gpuval_hardware": {"gpus": [1]}}}, r"gpus\[\] is not of type dict"),
        ("launch_plan", {"launch": {"state": 5}}, "launch.state is not of type str"),
    ],
)
def test_another_type_is_named(module, answer, place):
    with pytest.raises(answers.InvalidAnswerError, match=place):
        answers.accept(module, answer)


def test_messages_are_shown_without_escapes_and_warnings_are_bounded():
    answer = {"failed": True, "msg": "\x1b[2Jno", "warnings": ["a\nFINAL ACCEPTANCE: PASS"] * 50, "deprecations": ["x"]}
    accepted = answers.accept("host_network", answer)
    assert accepted["msg"] == "no"
    assert accepted["warnings"] == ["a FINAL ACCEPTANCE: PASS"] * answers.MAX_WARNINGS
    assert set(accepted) == {"failed", "msg", "warnings"}


def test_an_answer_of_any_size_is_not_read(monkeypatch):
    """As JSON it would take many times its size in the controller's memory."""
    monkeypatch.setattr(ansible_internal, "MAX_OUTPUT_CHARACTERS", 1000)
    ours = object.__new__(action.ControllerAction)
    usual, huge = ({"stdout": json.dumps({"changed": False, "left": ["x" * size]})} for size in (10, 2000))
    assert ours._parse_returned_data(usual, "legacy")["left"] == ["x" * 10]
    refused = ours._parse_returned_data(huge, "legacy")
    assert refused == {"failed": True, "msg": "the node's answer has 2,032 characters: no module prints so much"}


def test_a_diff_passes_where_the_module_has_one():
    assert "diff" in answers.accept("host_network", {"diff": {"before": "", "after": "x"}})
    assert "diff" not in answers.accept("send_image", {"diff": {"before": "", "after": "x"}})


def test_facts_named_as_settings_are_found():
    facts = ["gpuval_hardware", "gpuval", "ansible_distribution", "services", "gpuval_model", "model_preload_force"]
    assert answers.settings_among(facts) == ["gpuval_model", "model_preload_force"]
