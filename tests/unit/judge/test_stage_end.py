"""Every rule on how a stage ended decides a case, and the first that applies counts."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import stage_end
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.stage_end import StageEnd
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.states import RUN_ENDED

from tests.kit.builders import make_record

USERS = [{"process": "python 12", "accelerator": "gpu:0"}]
POD = {"class": "evicted", "message": "the node was low on memory", "remedy": "free memory on {node}", "pod": "p-1"}


def record(stage="training", state="crash", message="exit code 1 without a result", exit_code=1, **environment):
    return make_record("node-1", stage, state=state, message=message, exit_code=exit_code, environment=environment)


def end(stage_record, **fields):
    return StageEnd("node-1", stage_record["stage"], stage_record, **fields)


CASES = {
    "succeeded": (end(record(state="success")), "pass", ""),
    "contact lost": (end(record(state="running"), contact=POD), "missing", "evicted"),
    "run not ended": (end(record(state="running"), resume="make validate"), "missing", "training_running"),
    "no image": (end(record("image", fault="no_image")), "missing", "no_image"),
    "cause outside the node": (end(record("loading", "failure", "no rclone", fault="no_rclone")), "missing", ""),
    "disk full": (end(record(message="[Errno 28] No space left on device")), "missing", "disk_full"),
    "refused its part in a gang": (
        StageEnd("node-1", "collective", refusal="run first is at work on this node", of_gang=True),
        "missing",
        "",
    ),
    "no success of a gang": (end(record("collective", state="timeout"), of_gang=True), "missing", ""),
    "beside other work": (end(record(accelerator_users=USERS)), "missing", ""),
    "failed": (end(record("dataset_a", "failure", "dataset a: wrong checksum of b")), "fail", "wrong_digest"),
    "ended by a clean": (end(record(state="pending"), cleaned=True), "missing", ""),
    "no end": (StageEnd("node-1", "training"), "missing", "training_missing"),
}


def rule_of(stage):
    return next(rule for rule in stage_end.RULES if rule.applies(stage))


def test_every_rule_has_a_case():
    assert list(CASES) == [rule.name for rule in stage_end.RULES]


@pytest.mark.parametrize("name", CASES)
def test_the_rule_decides_its_case(name):
    stage, verdict, failure_class = CASES[name]
    judged = stage_end.judge_end(stage)
    assert rule_of(stage).name == name
    assert judged.entry["verdict"] == verdict
    if verdict != "pass":
        assert judged.failure_class == (failure_class or f"{stage.stage}_{stage.state}")
        assert judged.entry["remedy"]
        assert "{" not in judged.entry["remedy"]


def test_a_cleaned_run_says_so_and_a_lost_pod_says_why():
    assert CASES["ended by a clean"][0].reason == f"pending: {RUN_ENDED}"
    reason = CASES["contact lost"][0].reason
    assert reason.endswith("; its pod ended (evicted): the node was low on memory")
    assert stage_end.judge_end(CASES["contact lost"][0]).entry["remedy"] == "free memory on node-1"
