"""A part whose speed differs between two measurements by more than repeats explain."""

import copy

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import actions, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import NONCE, SHIPPED, TIME, judge, make_run
from tests.kit.builders import check as make_check
from tests.kit.h200 import STAGES, records, setups_of

NAME = "diagnostics_matmul_bf16_tflops"
LINK = "diagnostics_peer_bytes_per_second"


def measured_twice(*attempts, stage="diagnostics", fields=()):
    """A run of one node, of which each attempt is what it did to the figures: by metric and part a factor."""
    run = make_run(stages=STAGES, sku="h200", gpu_count=8, setups=setups_of())
    of_node = records("node-1")
    tries = []
    for number, factors in enumerate(attempts, start=1):
        record = copy.deepcopy(of_node[stage])
        record |= {"attempt": number, "nonce": f"{NONCE}{number}", **dict(fields)}
        for metric in record["metrics"]:
            metric["value"] *= factors.get((metric["name"], metric["scope"]), 1)
        tries.append(record)
    of_node[stage] = {**tries[-1], "attempts": tries[:-1]}
    return run, of_node


def judged(run, of_node, earlier=()):
    evidence = RunEvidence(records={"node-1": of_node}, launches={"node-1": {"state": "started", "message": ""}})
    return judge(run, evidence, SHIPPED, earlier=dict(earlier))


def unsteady(report):
    (node,) = report["nodes"]
    return [(one["part"], one["verdict"]) for one in node["checks"] if one["name"] == "unsteady"]


GPU_3 = {(NAME, "gpu:3"): 0.94}


def test_slow_in_the_first_attempt_and_well_in_the_second_is_incomplete():
    report = judged(*measured_twice(GPU_3, {}))
    (node,) = report["nodes"]
    assert unsteady(report) == [("gpu:3", "missing")]
    assert (node["verdict"], node["class"], node["action"]["name"]) == ("INCOMPLETE", "unsteady", "retest")
    (entry,) = [one for one in node["checks"] if one["name"] == "unsteady"]
    assert "of gpu:3 made 70" in entry["reason"] and "6.383 % apart" in entry["reason"]


def test_what_repeats_explain_is_steady():
    assert unsteady(judged(*measured_twice({(NAME, "gpu:3"): 0.98}, {}))) == []
    loud = {("diagnostics_matmul_bf16_spread_ratio", "gpu:3"): 10}
    assert unsteady(judged(*measured_twice({**GPU_3, **loud}, loud))) == []


def test_a_further_attempt_that_shows_it_again_is_a_fault_of_the_node():
    report = judged(*measured_twice(GPU_3, {}, GPU_3))
    assert unsteady(report) == [("gpu:3", "fail")]
    assert report["nodes"][0]["verdict"] == "FAIL"
    assert unsteady(judged(*measured_twice(GPU_3, {}, {}))) == [("gpu:3", "missing")]


def test_slow_once_between_two_that_are_well_is_slow_once():
    assert unsteady(judged(*measured_twice({}, GPU_3, {}))) == [("gpu:3", "missing")]


def test_a_speed_whose_error_is_not_known_is_steady_within_a_tenth():
    """Of too few laps: revision 2 without an uncertainty."""

    def of_few_laps(factor):
        run, of_node = measured_twice({(NAME, "gpu:3"): factor}, {})
        for record in (of_node["diagnostics"], *of_node["diagnostics"]["attempts"]):
            speeds = [metric for metric in record["metrics"] if metric["name"] == NAME]
            record["metrics"] += [{**metric, "name": "diagnostics_matmul_bf16_median_tflops"} for metric in speeds]
            for metric in speeds:
                metric["revision"] = 2
        return unsteady(judged(run, of_node))

    assert of_few_laps(0.965) == []
    assert of_few_laps(0.85) == [("gpu:3", "missing")]


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "timeout", "message": "the plan's deadline of 109 s after its first start passed (deadline_seconds)"},
        {"state": "cancelled", "message": "gave way: other work is on the accelerators: python"},
        {"environment": {"accelerator_users": [{"process": "python"}]}},
        {"state": "pending", "started_at": None},
        {"state": "skipped", "started_at": None, "message": "its container was not started"},
    ],
)
def test_a_second_measurement_that_was_ended_from_outside_takes_no_evidence_away(fields):
    run, of_node = measured_twice({}, {})
    of_node["diagnostics"] |= fields
    (node,) = judged(run, of_node)["nodes"]
    assert node["verdict"] == "PASS"


@pytest.mark.parametrize(("of", "verdict_"), [("gpu:3", "FAIL"), ("gpu:4", "INCOMPLETE")])
def test_an_earlier_run_that_found_the_same_part_so_makes_it_a_fault(of, verdict_):
    first = judged(*measured_twice({(NAME, of): 0.94}, {}))
    (fault,) = first["nodes"][0]["action"]["faults"]
    assert fault["class"] == "unsteady" and fault["of"].startswith("gpu ")
    report = judged(*measured_twice(GPU_3, {}), earlier={(fault["class"], fault["of"]): {"run-0"}})
    assert report["nodes"][0]["verdict"] == verdict_
    (entry,) = [one for one in report["nodes"][0]["checks"] if one["name"] == "unsteady"]
    assert ("also in run run-0" in entry["reason"]) == (verdict_ == "FAIL")


def test_most_parts_at_once_are_the_node():
    for stage, name in (("diagnostics", NAME), ("training", "training_model_tflops")):
        slow = {(name, f"gpu:{index}"): 0.9 for index in range(1, 8)}
        report = judged(*measured_twice(slow, {}, stage=stage))
        assert unsteady(report) == [("node", "missing")]
        (entry,) = [one for one in report["nodes"][0]["checks"] if one["name"] == "unsteady"]
        assert entry["reason"].startswith("7 of 8 gpus: ")


@pytest.mark.parametrize(("of_gpus", "of_links", "kind"), [(0.9, 0.85, "links"), (0.85, 0.9, "gpus")])
def test_of_two_kinds_of_parts_that_are_the_node_the_worse_is_named(of_gpus, of_links, kind):
    slow = {(NAME, f"gpu:{index}"): of_gpus for index in range(8)}
    pairs = [(one, other) for one in range(8) for other in range(8)]
    slow |= {(LINK, f"link:gpu{one}>gpu{other}"): of_links for one, other in pairs}
    report = judged(*measured_twice(slow, {}))
    assert unsteady(report) == [("node", "missing")]
    (entry,) = [one for one in report["nodes"][0]["checks"] if one["name"] == "unsteady"]
    assert f" {kind}: " in entry["reason"]


def test_a_link_is_named():
    assert unsteady(judged(*measured_twice({(LINK, "link:gpu1>gpu6"): 0.9}, {}))) == [("link:gpu1>gpu6", "missing")]


@pytest.mark.parametrize(
    "fields",
    [{"unrelated": True}, {"state": "crash"}, {"environment": {"accelerator_users": [{"process": "other"}]}}],
)
def test_what_was_cut_off_or_worked_beside_others_is_no_measurement(fields):
    run, of_node = measured_twice(GPU_3, {})
    of_node["diagnostics"]["attempts"][0] |= fields
    assert unsteady(judged(run, of_node)) == []


def test_two_stages_that_ran_one_command_measure_the_same():
    run, of_node = measured_twice({})
    run["nodes"]["node-1"]["stages"].append("diagnostics_again")
    run["workloads"]["diagnostics_again"] = "diagnostics"
    again = {**copy.deepcopy(of_node["diagnostics"]), "stage": "diagnostics_again"}
    for metric in again["metrics"]:
        metric["value"] *= GPU_3.get((metric["name"], metric["scope"]), 1)
    of_node["diagnostics_again"] = again
    twin = make_check("twin", stage="diagnostics_again", metric=NAME, kind="outlier", peers="fleet", scope="gpu",
                      unit="TFLOP/s", max_below=0.03, deviations=4.5, retry=True)  # fmt: skip
    evidence = RunEvidence(records={"node-1": of_node}, launches={"node-1": {"state": "started", "message": ""}})
    report = verdict.judge(run, evidence, [twin], judged_at=TIME)
    assert unsteady(report) == [("gpu:3", "missing")]


def test_only_unsteady_faults_of_earlier_runs_count():
    earlier = {("unsteady", "gpu serial 1"): {"run-0"}, ("hardware", "gpu serial 2"): {"run-0"}}
    assert actions.found_earlier(earlier)["unsteady"] == {"gpu serial 1": {"run-0"}}
