from dataclasses import dataclass

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.attempts import stages_to_retry


@dataclass
class Failed:
    stage: str
    retry: bool


def stage(name, *, retry=("crash", "timeout"), needs=(), on_failure="continue"):
    return {"name": name, "retry": list(retry), "needs": list(needs), "on_failure": on_failure}


def record(state, attempt=1, fault=None):
    ended = {"exit_code": None, "signal": None, "stage": "training", "environment": {"fault": fault}}
    return {"state": state, "attempt": attempt, **ended}


PLAN = [
    stage("facts", retry=()),
    stage("loading"),
    stage("training", retry=("crash", "slow")),
    stage("inference", needs=["loading"]),
]
FINE = {
    "facts": record("success"),
    "loading": record("success"),
    "training": record("success"),
    "inference": record("success"),
}


@pytest.mark.parametrize(
    ("changed", "failed", "expected"),
    [
        ({}, [], []),
        ({"training": record("crash")}, [], ["training"]),
        ({"training": record("crash", fault="no_image")}, [], []),
        ({"training": record("crash", fault="store_away")}, [], ["training"]),
        ({"training": record("timeout")}, [], []),
        ({"training": record("failure")}, [], []),
        ({"training": record("cancelled")}, [], []),
        ({"training": record("running")}, [], []),
        ({"training": record("crash", attempt=2)}, [], []),
        ({"training": record("crash")}, [Failed("training", False)], []),
        ({"training": record("crash")}, [Failed("loading", False)], ["training"]),
        ({}, [Failed("training", True)], ["training"]),
        ({}, [Failed("training", True), Failed("training", False)], []),
        ({}, [Failed("loading", True)], []),
        ({"facts": record("crash")}, [], []),
        ({"loading": record("crash"), "inference": record("skipped")}, [], ["loading", "inference"]),
        ({"loading": record("crash"), "inference": record("success")}, [], ["loading"]),
        ({"loading": record("failure"), "inference": record("skipped")}, [], []),
        ({"loading": record("crash"), "inference": record("skipped", attempt=2)}, [], ["loading"]),
        ({"loading": record("timeout"), "training": record("crash")}, [], ["loading", "training"]),
    ],
)  # fmt: skip
def test_choice(changed, failed, expected):
    assert stages_to_retry(PLAN, {**FINE, **changed}, failed) == expected


@pytest.mark.parametrize(("fault", "expected"), [("delivery", ["image", "training"]), ("no_image", [])])
def test_a_stage_without_its_image_is_retried_with_the_stage_that_brings_it(fault, expected):
    plan = [stage("image"), stage("training")]
    records = {
        "image": {**record("crash", fault=fault), "stage": "image", "exit_code": 1},
        "training": record("crash", fault="no_image"),
    }
    assert stages_to_retry(plan, records, []) == expected


def test_stages_after_a_stop_go_with_the_stage_that_stopped_them():
    plan = [stage("a", on_failure="stop"), stage("b"), stage("c", needs=["b"])]
    records = {"a": record("crash"), "b": record("skipped"), "c": record("skipped")}
    assert stages_to_retry(plan, records, []) == ["a", "b", "c"]


def test_nothing_is_run_behind_a_stop_that_stays():
    plan = [stage("a", on_failure="stop"), stage("b", retry=("crash",)), stage("c", needs=["b"])]
    records = {"a": record("failure"), "b": record("skipped"), "c": record("skipped")}
    assert stages_to_retry(plan, records, []) == []


def test_a_stage_that_also_needs_another_failed_stage_stays_skipped():
    plan = [stage("a"), stage("b"), stage("c", needs=["a", "b"])]
    records = {"a": record("crash"), "b": record("failure"), "c": record("skipped")}
    assert stages_to_retry(plan, records, []) == ["a"]


def test_more_attempts_and_missing_records():
    records = {"training": record("crash", attempt=2)}
    assert stages_to_retry(PLAN, records, [], max_attempts=3) == ["training"]
    assert stages_to_retry(PLAN, {}, []) == []


@pytest.mark.parametrize("state", ["crash", "timeout", "failure", "skipped", "success"])
def test_nothing_is_run_again_of_a_node_whose_plan_is_not_known(state):
    names = [{"name": name, "expected_seconds": None} for name in ("facts", "training")]
    records = {"facts": record("success"), "training": record(state)}
    assert stages_to_retry(names, records, [Failed("training", True)]) == []
