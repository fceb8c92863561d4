"""Which stages run, and what the plan says of them."""

from dataclasses import replace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans

from tests.kit.plan_settings import SETTINGS

PROFILE = ["facts", "training", "loading", "inference"]
DECLARATIONS = {
    "facts": {"command": ["{runner}", "facts"]},
    "training": {"command": ["{python}", "-m", "train"], "needs": ["facts"], "tags": ["pyt"]},
    "loading": {"command": ["load"]},
    "inference": {"command": ["serve"], "needs": ["facts", "loading"]},
}


@pytest.mark.parametrize(
    ("run_tags", "skip_tags", "expected"),
    [
        (["all"], [], PROFILE),
        ([], [], PROFILE),
        (["training"], [], ["facts", "training"]),
        (["pyt"], [], ["facts", "training"]),
        (["inference"], [], ["facts", "loading", "inference"]),
        (["loading"], [], ["facts", "loading"]),
        (["all"], ["training"], ["facts", "loading", "inference"]),
        (["training"], ["facts"], ["training"]),
        (["training", "loading"], [], ["facts", "training", "loading"]),
    ],
)
def test_tags_choose_stages_and_what_they_need(run_tags, skip_tags, expected):
    assert plans.select_stages(PROFILE, DECLARATIONS, run_tags, skip_tags) == expected


@pytest.mark.parametrize(
    ("own", "gang_stages", "skip_tags", "unmet"),
    [
        (PROFILE, [], [], []),
        (["facts", "inference"], [], [], ["inference needs loading, which no stage before it brings: add loading"]),
        (["facts", "inference", "loading"], [], [], ["inference needs loading, which no stage before it brings: move"]),
        (["facts", "inference"], [], ["loading"], []),  # the model is there from an earlier run
        (["training", "inference"], [], ["pyt"], ["training needs facts", "inference needs facts", "needs loading"]),
        (["training"], [], ["facts"], []),
        (["facts"], ["mine"], [], ["mine needs dataset_c4", "mine needs training"]),
        (["facts", "dataset_c4", "training"], ["mine"], [], []),
        (["odd"], [], [], ["odd needs not_declared, which no stage before it brings: add not_declared"]),
    ],
)
def test_what_no_stage_brings_is_named_all_at_once(own, gang_stages, skip_tags, unmet):
    declarations = {
        **DECLARATIONS,
        "dataset_c4": {"command": ["load"]},
        "mine": {"command": ["x"], "needs": ["training", "image"], "datasets": ["c4"]},
        "odd": {"command": ["x"], "needs": ["not_declared"]},
    }
    problems = plans.unmet_needs(own, gang_stages, declarations, skip_tags)
    assert len(problems) == len(unmet)
    for words in unmet:
        assert any(words in problem for problem in problems), problems
    if unmet and not skip_tags:
        with pytest.raises(plans.PlanError) as refused:
            plans.select(own, gang_stages, declarations, [], [])
        assert all(problem in str(refused.value) for problem in problems)


@pytest.mark.parametrize(
    "requires",
    ["torch", ["torch"], [{"import": "a", "start": "b"}], [{"install": "a"}], [{"import": "a", "when": "b"}]],
)
def test_a_wrong_requirement_is_refused_by_name(requires):
    with pytest.raises(plans.PlanError, match=r"soak_workload.requires: .* write \{import: MODULE"):
        plans.stage("soak", {"command": ["x"], "requires": requires}, ["soak"])


def test_requirements_are_for_the_launch_and_in_no_plan():
    assert "requires" not in plans.stage("soak", {"command": ["x"], "requires": [{"import": "torch"}]}, ["soak"])


def test_tags_that_choose_nothing_name_the_stages_there_are():
    with pytest.raises(plans.PlanError, match=r"facts, training, loading, inference.*--tags typo"):
        plans.select_stages(PROFILE, DECLARATIONS, ["typo"], [])


def test_a_load_without_an_image_says_what_lacks_and_names_no_tag():
    with pytest.raises(plans.PlanError) as refused:
        plans.select_stages(PROFILE, DECLARATIONS, ["image"], [])
    assert str(refused.value).startswith(f"there is no image to load: the stages of the run are {', '.join(PROFILE)}.")
    assert "gpuval_images names some" in str(refused.value) and "--tags" not in str(refused.value)


def test_an_undeclared_stage_is_named_with_the_variable_that_is_missing():
    with pytest.raises(plans.PlanError, match="define soak_workload"):
        plans.select_stages([*PROFILE, "soak"], DECLARATIONS, ["all"], [])


def test_a_plan_follows_its_schema_and_drops_needs_that_do_not_run():
    plan = plans.build(SETTINGS, ["training"], DECLARATIONS)
    schemas.validate("plan", plan, what="plan")
    (stage,) = plan["stages"]
    assert stage["needs"] == []
    assert stage["tags"] == ["pyt", "training"]
    assert stage["on_failure"] == "continue"


@pytest.mark.parametrize(
    ("sku", "count", "expected"),
    [
        ("auto", None, {"vendor": "auto", "count": None}),
        ("cpu", 8, {"vendor": "cpu", "count": 0}),
        ("h200", 8, {"vendor": "auto", "count": 8}),
        ("nvidia", 4, {"vendor": "nvidia", "count": 4}),
    ],
)
def test_accelerator(sku, count, expected):
    assert plans.accelerator(sku, count) == expected


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        ({"command": ["x"], "timeout": 3}, "unknown keys timeout"),
        ({}, "no command"),
        ({"command": ["x"], "output": "megatorn"}, "no reader is called 'megatorn'; is it megatron?"),
        ({"command": ["x"], "output": ["vllm", 3]}, "no reader is called 3; there are megatron"),
        ({"command": ["x"], "output": {"name": "vllm"}}, "no reader is called {'name'"),
        ({"command": ["x"], "output": ["vllm"] * 9}, "9 programs"),
    ],
)
def test_a_wrong_declaration_is_refused_by_name(declaration, problem):
    with pytest.raises(plans.PlanError) as caught:
        plans.stage("soak", declaration, ["soak"])
    assert str(caught.value).startswith("soak_workload")
    assert problem in str(caught.value)


def test_a_reader_that_does_not_exist_ends_the_run_at_its_opening():
    declarations = {**DECLARATIONS, "training": {"command": ["x"], "output": ["deepspeed", "hugging_face"]}}
    with pytest.raises(plans.PlanError, match=r"training_workload\.output: no reader is called 'hugging_face'"):
        plans.select_stages(PROFILE, declarations, [], [])
    assert plans.select_stages(PROFILE, declarations, ["loading"], []) == ["facts", "loading"]


@pytest.mark.parametrize(
    ("asked", "names"),
    [(None, []), ("", []), ("vllm", ["vllm"]), (["vllm", "deepspeed", "vllm"], ["vllm", "deepspeed"])],
)
def test_a_plan_holds_the_readers_that_its_stage_asks_for(asked, names):
    declarations = {**DECLARATIONS, "training": {"command": ["x"], "output": asked}}
    plan = plans.build(SETTINGS, PROFILE, declarations)
    schemas.validate("plan", plan, what="plan")
    assert [one["name"] for one in plan["stages"][1]["output"]] == names
    assert plan["stages"][0]["output"] == []


def test_another_attempt_holds_only_the_stages_asked_for():
    plan = plans.build(SETTINGS, PROFILE, DECLARATIONS)
    second = plans.for_attempt(plan, ["training"], 2)
    schemas.validate("plan", second, what="plan")
    assert second["attempt"] == 2
    assert [stage["name"] for stage in second["stages"]] == ["training"]


def test_containers_and_images_of_a_plan():
    declarations = {
        **DECLARATIONS,
        "training": {
            "command": ["{python}"],
            "image": "train:1",
            "container": {"memory_bytes": "1073741824", "cpus": "1.5", "ulimits": {"nofile": 5}, "user": ""},
        },
    }
    settings = replace(SETTINGS, runtime="auto", container={"python": "python", "cpus": 8})
    images = {"train:1": {"id": None, "archive": None}}
    plan = plans.build(settings, ["training", "loading"], declarations, images=images)
    schemas.validate("plan", plan, what="the plan")
    assert plan["images"] == images
    assert plan["stages"][0]["container"] == {
        "python": "python",
        "cpus": 1.5,
        "memory_bytes": 1 << 30,
        "ulimits": {"nofile": "5"},
    }
    assert plan["stages"][1]["image"] is None
    assert plans.build(SETTINGS, ["loading"], DECLARATIONS)["stages"][0]["container"] is None


def test_members_of_a_gang_meet_in_the_networks_of_their_hosts():
    """In a bridge of its own the container of a member does not have the address at which the others look for it."""
    gang = {"name": "all", "index": 0, "port": 29500, "ssh_port": 3022, "members": []}
    settings = replace(SETTINGS, container={"network": "bridge", "cpus": 8}, gang=gang)
    own = {**DECLARATIONS, "loading": {"command": ["x"], "container": {"network": "macvlan7"}}}
    training, loading = plans.build(settings, ["training", "loading"], own)["stages"]
    assert training["container"] == {"cpus": 8.0, "ssh_keys": True}  # the host's, which is the default
    assert loading["container"]["network"] == "macvlan7"  # asked for by the stage itself
    alone = plans.build(replace(settings, gang=None), ["training"], own)["stages"][0]
    assert alone["container"]["network"] == "bridge"


@pytest.mark.parametrize(
    ("container", "said"), [({"memory": 1}, "unknown keys memory"), ({"cpus": "many"}, "'many' is not a number")]
)
def test_what_is_wrong_with_a_container_is_named(container, said):
    with pytest.raises(plans.PlanError, match=said):
        plans.stage("training", {"command": ["x"], "container": container}, [])


def test_containers_without_any_image_are_refused():
    with pytest.raises(plans.PlanError, match="none of training, loading has an image"):
        plans.check_images("docker", {"facts": None, "image": None, "training": None, "loading": None})
    plans.check_images("docker", {"facts": None, "training": "a:1", "loading": None})
    plans.check_images("podman", {"facts": None})
    plans.check_images("auto", {"training": None})
