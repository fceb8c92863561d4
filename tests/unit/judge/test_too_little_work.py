"""Too few steps, requests or repeats are no evidence against a node: the minima are data."""

import dataclasses
import json
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import SHIPPED, check, healthy, judge, judge_metric, make_run, metric, real_records

DATA = Path(__file__).parents[2] / "data"

(LOSS_FALLS,) = [check for check in SHIPPED if check.name == "training_loss_falls"]


def losses(first, last, steps=None):
    counted = [] if steps is None else [metric("training_steps_count", steps)]
    return [metric("training_loss_first", first, "loss"), metric("training_loss_last", last, "loss"), *counted]


@pytest.mark.parametrize(
    ("steps", "last", "verdict"),
    [
        (3, 9.526, "missing"),  # fell by 4.74 % in 190 s
        (9, 10.0, "missing"),
        (19, 9.526, "missing"),
        (20, 9.526, "fail"),
        (200, 10.0, "fail"),
        (3, 9.0, "pass"),
        (200, 4.0, "pass"),
        (None, 9.526, "fail"),
        (3, None, "fail"),  # NaN
    ],
)
def test_too_few_steps_do_not_fail_a_node(steps, last, verdict):
    (entry,) = judge_metric(LOSS_FALLS, losses(10.0, last, steps))
    assert entry["verdict"] == verdict
    if verdict == "missing":
        assert f"training_steps_count is {steps}, fewer than 20: too little work" in entry["reason"]
        assert "train longer" in entry["remedy"]


@pytest.mark.parametrize("file", ["cpu/runs.json", "h200/runs.json"])
@pytest.mark.parametrize(
    ("steps", "last", "verdict"), [(1, 10.0, "INCOMPLETE"), (19, 9.9, "INCOMPLETE"), (20, 9.9, "FAIL")]
)
def test_a_node_whose_loss_does_not_fall_is_no_pass_after_few_steps(file, steps, last, verdict):
    name, stages = next(entry for entry in json.loads((DATA / file).read_text()).items() if "training" in entry[1])
    records = real_records(name, {stage: stages[stage] for stage in ("facts", "training")})
    set_figures = losses(10.0, last, steps)
    names = {figure["name"] for figure in set_figures}
    figures = records["training"]["metrics"]
    figures[:] = [figure for figure in figures if figure["name"] not in names] + set_figures
    run = make_run((name,), stages=list(records))
    (node,) = judge(run, RunEvidence(records={name: records}), [LOSS_FALLS])["nodes"]
    assert node["verdict"] == verdict, [entry for entry in node["checks"] if entry["verdict"] in ("fail", "missing")]
    assert node["class"] == "training_loss_falls"


SAMPLED = [one for one in SHIPPED if one.samples_from and one.kind in ("min", "max")]


@pytest.mark.parametrize("limit", SAMPLED, ids=lambda one: one.name)
@pytest.mark.parametrize("are_few", [True, False])
def test_a_figure_of_too_few_samples_fails_no_node(limit, are_few):
    """The reason has the count and the minimum. One that counts itself has its limit as minimum."""
    # of_gang: a failure of a gang is missing anyway
    everywhere = {"stage": "training", "scope": "node", "parts_from": None, "catalogue_sku": None, "of_gang": False}
    everywhere["severity"] = "required"
    limit = dataclasses.replace(limit, **everywhere, applies=check().applies)
    bad = limit.value / 2 if limit.kind == "min" else limit.value * 2
    samples = limit.min_samples - (1 if are_few else 0)
    figures = [metric(limit.samples_from, samples, "count")]
    if limit.samples_from != limit.metric:
        figures += [metric(limit.metric, bad, limit.unit)]
    entry = judge_metric(limit, figures)[0]
    if are_few:
        assert entry["verdict"] == "missing"
        words = f"{limit.samples_from} is {samples}, fewer than {limit.min_samples}: too little work"
        assert words in entry["reason"]
    else:
        assert entry["verdict"] == ("pass" if limit.samples_from == limit.metric else "fail")


def test_each_stage_that_works_for_a_time_has_a_minimum():
    assert {one.stage for one in SHIPPED if one.samples_from and one.required} >= {
        "training", "inference", "fingerprint", "deepspeed", "collective",
    }  # fmt: skip


@pytest.mark.parametrize("file", ["cpu/runs.json", "h200/runs.json", "h200/one_gpu.json"])
def test_what_real_nodes_do_is_enough(file):
    """The slowest are processors that do as little as the profile quick lets them."""
    told = json.loads((DATA / file).read_text())
    runs = {"one": told} if "facts" in told else told
    nodes = {name: real_records(name, stages) for name, stages in runs.items()}
    run = make_run(tuple(nodes), stages=["facts"])
    for name, records in nodes.items():
        run["nodes"][name]["stages"] = list(records)
    report = judge(run, RunEvidence(records=nodes), SHIPPED)
    assert not [one for node in report["nodes"] for one in node["checks"] if "too little work" in one["reason"]]


@pytest.mark.parametrize("stage", ["training", "inference", "fingerprint"])
def test_a_run_of_release_1_0_on_two_cores_did_enough(stage):
    own = [one for one in SHIPPED if one.stage == stage and one.samples_from == one.metric]
    records = [json.loads(file.read_text()) for file in DATA.glob(f"release_1_0/local/**/{stage}.json")]
    assert own and records
    for record in records:
        reported = {one["name"]: one["value"] for one in record["metrics"]}
        assert all(reported[one.metric] >= one.min_samples for one in own)


def slow_training(steps):
    run = make_run([f"node-{number}" for number in range(10)])
    evidence = healthy(run)
    for name in run["nodes"]:
        metrics = evidence.records[name]["training"]["metrics"]
        factor = 0.5 if name == "node-0" else 1
        metrics[:] = [
            {**one, "value": one["value"] * factor} if one["name"] == "training_model_tflops" else one
            for one in metrics
        ]
        metrics[:] = [one for one in metrics if one["name"] != "training_steps_count"]
        metrics.append(metric("training_steps_count", steps if name == "node-0" else 200))
    return run, evidence


@pytest.mark.parametrize(("steps", "expected"), [(3, "missing"), (10, "fail")])
def test_a_node_that_is_slow_beside_its_peers_over_too_few_steps_is_measured_again(steps, expected):
    run, evidence = slow_training(steps)
    (fleet,) = [one for one in SHIPPED if one.name == "training_speed_fleet"]
    fleet = dataclasses.replace(fleet, group_by=(), alike=())
    node = judge(run, evidence, [fleet])["nodes"][0]
    entries = [one for one in node["checks"] if one["name"] == "training_speed_fleet"]
    assert {one["verdict"] for one in entries} == {expected}
    assert all("fewer than 10: too little work" in one["reason"] for one in entries if expected == "missing")
    assert [one.name for one in verdict.failed_criteria(node, [fleet])] == ["training_speed_fleet"]
