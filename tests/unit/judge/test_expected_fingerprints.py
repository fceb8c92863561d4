"""What settings imply for the fingerprints that floors depend on, as run.json keeps it."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import expected_fingerprints

from tests.kit.builders import SHIPPED, make_run
from tests.kit.gang_actions import open_run

TRAINING = ["{python}", "-m", "gpuval_workloads.training", "--model", "llama", "--size", "auto"]
COLLECTIVES = ["{python}", "-m", "gpuval_workloads.gang", "collectives"]


def implied(stage, sku="h200", **declaration):
    made = expected_fingerprints.of_stages({stage: declaration}, ["facts", stage])
    schemas.validate("run", make_run(setups=made), what="run")
    return {name: set(values) for name, values in expected_fingerprints.for_sku(made, sku).get(stage, {}).items()}


@pytest.mark.parametrize(
    ("sku", "arguments", "expected"),
    [
        ("h200", ["--seconds", 20], {"llama-1b 8x2048 bf16 eager"}),
        ("h200", ["--seconds", "300"], {"llama-1b 24x2048 bf16 compiled", "llama-1b 8x2048 bf16 eager"}),
        ("h100", ["--seconds", 300], {"llama-1b 8x2048 bf16 compiled", "llama-1b 8x2048 bf16 eager"}),
        ("mi300x", ["--seconds", 300], {"llama-1b 8x2048 bf16 eager"}),
        ("l40s", ["--seconds", 20], {"llama-small 16x1024 bf16 eager"}),
        ("h200", ["--precision", "fp32", "--batch-size", "4", "--seconds", 20], {"llama-1b 4x2048 fp32 eager"}),
        ("h200", ["--model", "resnet18"], {"resnet18 2048 bf16 eager"}),
    ],
)
def test_a_training_follows_from_its_command_and_the_memory_of_the_sku(sku, arguments, expected):
    assert implied("training", sku, command=[*TRAINING, *arguments]) == {"training_setup": expected}


@pytest.mark.parametrize("seconds", [20, 300, 14400])
def test_the_floor_of_the_h200_holds_for_what_every_profile_trains(seconds):
    (floor,) = [one for one in SHIPPED if one.name == "training_speed_h200"]
    asked = implied("training", command=[*TRAINING, "--seconds", seconds])["training_setup"]
    assert asked <= set(dict(floor.applies.fingerprints)["training_setup"])


@pytest.mark.parametrize(
    "command", [["./mine.sh"], [*TRAINING, "--nonsense"], [*TRAINING, "--help"], [*TRAINING, "--validation-only"], []]
)
def test_of_another_command_nothing_is_known(command, capfd):
    assert implied("training", command=command) == {}
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [(None, "on"), ({}, "on"), ({"NCCL_NVLS_ENABLE": "0"}, "off"), ({"NCCL_NVLS_ENABLE": 0}, "off"),
     ({"NCCL_NVLS_ENABLE": "2"}, "on")],
)  # fmt: skip
def test_nvls_is_on_unless_the_environment_of_the_stage_turns_it_off(environment, expected):
    assert implied("diagnostics", environment=environment) == {"diagnostics_nvls": {expected}}


def test_all_collectives_are_asked_for_unless_some_are_named():
    assert set.union(*implied("collective", command=COLLECTIVES).values()) == {"yes"}
    some = implied("collective", command=[*COLLECTIVES, "--only", "all_reduce", "all_gather"])
    assert {name for name, values in some.items() if values == {"yes"}} == {
        "gang_all_reduce_asked", "gang_all_gather_asked"
    }  # fmt: skip


@pytest.mark.parametrize(("names", "expected"), [([], None), (["Socket"], {"Socket"}), (["IB", "IBext*"], None)])
def test_a_network_of_fixed_names_is_known(names, expected):
    command = [*COLLECTIVES, *(["--expect-network", *names] if names else [])]
    assert implied("collective", command=command).get("gang_network") == expected


def test_opening_a_run_freezes_what_its_settings_imply(tmp_path):
    done, run = open_run(
        tmp_path, "one", ["node-1"], alone=False, gang_stages=[], profile_stages=["facts", "diagnostics", "training"],
        workloads={"facts": {"command": ["true"]}, "training": {"command": [*TRAINING, "--seconds", 20]},
                   "diagnostics": {"command": ["true"], "environment": {"NCCL_NVLS_ENABLE": "0"}}},
    )  # fmt: skip
    assert not done.failed
    assert run["setups"]["diagnostics"] == {"diagnostics_nvls": {"any": ["off"]}}
    assert run["setups"]["training"]["training_setup"]["h200"] == ["llama-1b 8x2048 bf16 eager"]
    _, again = open_run(
        tmp_path, "one", ["node-1"], alone=False, gang_stages=[], profile_stages=["facts", "diagnostics", "training"],
        workloads={"facts": {"command": ["true"]}, "training": {"command": ["other"]},
                   "diagnostics": {"command": ["true"]}},
    )  # fmt: skip
    assert again["setups"] == run["setups"]  # a run that is resumed keeps them


def test_a_sku_that_the_catalogue_does_not_know_has_no_training_to_be_held_to():
    assert implied("training", None, command=TRAINING) == {}
    assert implied("diagnostics", None) == {"diagnostics_nvls": {"on"}}
