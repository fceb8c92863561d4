"""Datasets: what is declared, the stages that load them, and where these come in a profile."""

from dataclasses import replace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import datasets, plans
from gpuval_runner import layout
from gpuval_runner import plan as node_plan

from tests.kit.plan_settings import SETTINGS

DECLARED = [{"name": "cifar10", "source": "/data/cifar.tar"}, {"name": "texts", "source": "store:texts/"}]
LOADING = {"command": ["{python}", "-m", "load"], "needs": ["image"], "image": "load:1"}
DECLARATIONS = {
    "facts": {"command": ["{runner}", "facts"]},
    "image": {"command": ["{runner}", "image"]},
    "training": {"command": ["train"], "datasets": ["cifar10"]},
    "tuning": {"command": ["tune"], "datasets": ["texts", "cifar10"], "needs": ["training"]},
    "together": {"command": ["train"], "datasets": ["texts"]},
    **datasets.workloads(DECLARED, LOADING),
}
PROFILE = ["facts", "image", "training", "tuning"]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("cifar10", r"gpuval_datasets\[1\]: 'cifar10' is no dataset: write {name: ..., source: ...}"),
        ({"name": "a", "sourse": "/x"}, "unknown keys sourse; is it source?"),
        ({"source": "/x"}, r"gpuval_datasets\[1\].name: '' must be"),
        ({"name": "Cifar-10", "source": "/x"}, "'Cifar-10' must be 1 to 23 small letters"),
        ({"name": "a" * 24, "source": "/x"}, "must be 1 to 23"),
        ({"name": "../a", "source": "/x"}, "must be 1 to 23"),
        ({"name": "a"}, r"\(a\): no source: give a folder, an archive, or store:FOLDER"),
        ({"name": "a", "source": "store:"}, "'store:' is no source"),
        ({"name": "a", "source": "store:x/../models"}, "is no source"),
        ({"name": "a", "source": "store:models/datasets--gpuval--a/"}, "is no source"),
        ({"name": "a", "source": "/x", "sha256": "abc"}, "sha256 'abc' must be 64 hexadecimal digits"),
        ({"name": "first", "source": "/x"}, "two datasets have the name first"),
    ],
)
def test_a_mistake_in_the_declaration_is_named(entry, problem):
    with pytest.raises(datasets.DatasetError, match=problem):
        datasets.parse([{"name": "first", "source": "/data"}, entry])


def test_a_dataset_has_one_name_everywhere():
    (cifar10, texts) = datasets.parse(DECLARED)
    assert cifar10.folder == layout.DATASET_FOLDER + "cifar10"
    assert texts.stage == "dataset_texts"
    longest = datasets.parse([{"name": "a" * 23, "source": "/x", "sha256": "A" * 64}])[0]
    assert layout.STAGE_NAME.fullmatch(longest.stage)
    assert longest.sha256 == "a" * 64


def test_each_dataset_is_loaded_before_the_first_stage_that_names_it():
    expected = ["facts", "image", "dataset_cifar10", "training", "dataset_texts", "tuning"]
    assert plans.with_datasets(PROFILE, [], DECLARATIONS) == expected
    with_gang = plans.with_datasets(PROFILE[:3], ["together"], DECLARATIONS)
    assert with_gang == ["facts", "image", "dataset_cifar10", "training", "dataset_texts"]
    assert plans.with_datasets(["facts", "image"], [], DECLARATIONS) == ["facts", "image"]


def test_multi_node_stages_in_pods_have_no_datasets_and_that_is_found_first():
    with pytest.raises(plans.PlanError, match=r"datasets of together: pods of multi-node stages have no datasets"):
        plans.with_datasets(PROFILE, ["together"], DECLARATIONS, in_pods=True)
    assert "dataset_texts" in plans.with_datasets(PROFILE, [], DECLARATIONS, in_pods=True)


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (
            ["cifar"],
            "datasets of training: no dataset cifar; is it cifar10.; gpuval_datasets declares cifar10, t",
        ),
        (["imagenet"], "no dataset imagenet; gpuval_datasets declares cifar10, texts"),
        ("cifar10", r"datasets of training: 'cifar10' is no list of names: write \[cifar10\]"),
        ([1], "is no list of names"),
    ],
)
def test_a_misspelled_dataset_is_found_before_the_run_is_opened(asked, problem):
    declarations = {**DECLARATIONS, "training": {"command": ["train"], "datasets": asked}}
    with pytest.raises(plans.PlanError, match=problem):
        plans.with_datasets(PROFILE, [], declarations)


def test_tags_choose_the_datasets_of_their_stages():
    profile = plans.with_datasets(PROFILE, [], DECLARATIONS)
    chosen = plans.select_stages(profile, DECLARATIONS, ["training"], [])
    assert chosen == ["facts", "image", "dataset_cifar10", "training"]
    assert plans.select_stages(profile, DECLARATIONS, ["dataset_texts"], []) == ["facts", "image", "dataset_texts"]
    own, gangs = plans.select(profile, ["together"], DECLARATIONS, ["together"], [])
    assert (own, gangs) == (["facts", "image", "dataset_texts"], ["together"])
    assert plans.loads(chosen) and not plans.loads(["facts", "training"])


def test_the_plan_says_which_datasets_a_stage_reads_and_that_it_needs_them():
    profile = plans.with_datasets(PROFILE, [], DECLARATIONS)
    plan = plans.build(replace(SETTINGS, runtime="auto"), profile, DECLARATIONS)
    schemas.validate("plan", plan, what="plan")
    tuning = plan["stages"][-1]
    assert tuning["datasets"] == ["texts", "cifar10"]
    assert tuning["needs"] == ["training", "dataset_texts", "dataset_cifar10"]
    loading = next(stage for stage in plan["stages"] if stage["name"] == "dataset_texts")
    assert loading["command"][-2:] == ["--dataset", "texts"]
    assert loading["needs"] == ["image"]
    assert node_plan.parse(plan).stage("tuning").datasets == ("texts", "cifar10")
    assert plans.with_needs(plan["stages"], ["training"]) == ["image", "dataset_cifar10", "training"]
    tuning["datasets"] = ["../x"]
    with pytest.raises(node_plan.NodePlanError, match=r"'\.\./x' is not the name of a dataset"):
        node_plan.parse(plan)
