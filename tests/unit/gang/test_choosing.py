"""What of a node's own stages runs where tags choose stages of gangs."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans

PROFILE = ["facts", "image", "training"]
GANG = ["collective", "deepspeed"]
DECLARED = {
    "facts": {"command": ["x"]},
    "image": {"command": ["x"], "needs": ["facts"]},
    "training": {"command": ["x"], "needs": ["facts", "image"]},
    "collective": {"command": ["x"], "needs": ["facts", "image"]},
    "deepspeed": {"command": ["x"], "needs": ["facts", "image"]},
}


@pytest.mark.parametrize(
    ("run_tags", "skip_tags", "own", "gang"),
    [
        (["collective"], [], ["facts", "image"], ["collective"]),
        (["collective"], ["image"], ["facts"], ["collective"]),
        (["collective"], ["facts"], ["image"], ["collective"]),
        (["collective", "facts"], [], ["facts", "image"], ["collective"]),
        (["training"], [], PROFILE, []),
        (["all"], [], PROFILE, GANG),
    ],
)
def test_what_gangs_need_of_a_node_runs_too(run_tags, skip_tags, own, gang):
    assert plans.select(PROFILE, GANG, DECLARED, run_tags, skip_tags) == (own, gang)


def test_without_images_there_is_none_to_bring():
    assert plans.select(["facts", "training"], GANG, DECLARED, ["collective"], []) == (["facts"], ["collective"])


def test_what_a_gang_needs_is_followed_further():
    declared = {**DECLARED, "collective": {"command": ["x"], "needs": ["training"]}}
    assert plans.select(PROFILE, ["collective"], declared, ["collective"], [])[0] == PROFILE


def test_a_tag_of_a_stage_that_the_profile_lacks_ends_the_run():
    with pytest.raises(
        plans.PlanError, match=r"--tags storage: no stage of this run, which has facts, image, training, coll"
    ):
        plans.select(PROFILE, GANG, DECLARED, ["facts", "storage"], [])
    assert plans.select(["facts"], [], DECLARED, ["facts", "image"], []) == (["facts"], []), (
        "there may be no image to bring"
    )
