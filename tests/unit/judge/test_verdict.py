import copy
import json

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils import node_launch
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import stage_end, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence

from tests.kit.builders import (
    SHIPPED,
    STAGES,
    accepted,
    check,
    facts_record,
    healthy,
    healthy_records,
    judge,
    judge_metric,
    make_record,
    make_run,
    metric,
    standard_checks,
    times,
    training_metrics,
)


def entries(report, name, node=0):
    return [entry for entry in report["nodes"][node]["checks"] if entry["name"] == name]


def only(report, name, node=0):
    (entry,) = entries(report, name, node)
    return entry


def test_healthy_fleet_passes_and_follows_the_schema():
    run = make_run(["node-2", "node-10", "node-1"], gpu_count=8)
    report = judge(run, healthy(run))
    schemas.validate("report", report, what="report")
    assert report["verdict"] == "PASS"
    assert report["counts"] == {"expected": 3, "PASS": 3, "FAIL": 0, "INCOMPLETE": 0, "flaky": 0}
    assert [node["name"] for node in report["nodes"]] == ["node-1", "node-2", "node-10"]
    assert report["summary"][0] == "Nodes: 3 expected, 3 PASS, 0 FAIL, 0 INCOMPLETE"
    assert any(line.startswith("training (median of 3 nodes): 20.93 s, 56,000 tokens/s") for line in report["summary"])


@pytest.mark.parametrize("state", ["unreachable", "refused", "failed", "unknown", None])
def test_node_that_never_started_is_incomplete_and_stays_in_the_report(state):
    run = make_run(["node-1", "node-2"])
    evidence = healthy(run)
    del evidence.records["node-2"]
    del evidence.launches["node-2"]
    if state:
        evidence.launches["node-2"] = {"state": state, "message": "No route to host"}
    report = judge(run, evidence)
    assert report["verdict"] == "INCOMPLETE"
    assert report["nodes"][1]["verdict"] == "INCOMPLETE"
    assert only(report, "launch", 1)["verdict"] == "missing"
    line = report["summary"][1]
    assert line.startswith("node-2 INCOMPLETE launch: ")
    assert ("No route to host" in line) == bool(state)
    assert [check["name"] for check in report["nodes"][1]["checks"]] == ["launch"], "one reason, one remedy"
    assert [stage["state"] for stage in report["nodes"][1]["stages"]] == ["missing"] * 4


def test_what_is_missing_has_no_remedy_of_a_figure_that_fails():
    run = make_run()
    evidence = healthy(run)
    del evidence.records["node-1"]["training"]
    report = judge(run, evidence)
    missing = [
        one for one in report["nodes"][0]["checks"] if one["stage"] == "training" and one["verdict"] == "missing"
    ]
    assert len(missing) > 2
    assert [one["name"] for one in missing if one["remedy"]] == ["training_state"]
    evidence = healthy(run)
    evidence.records["node-1"]["training"]["metrics"] = []
    report = judge(run, evidence)
    told = {one["remedy"] for one in report["nodes"][0]["checks"] if "reported no" in one["reason"]}
    assert told == {"read the log of training: it says why the figure is missing; then validate again"}


def test_records_prove_a_launch_whose_connection_was_lost():
    run = make_run()
    evidence = healthy(run)
    evidence.launches["node-1"] = {"state": "unreachable", "message": "timed out"}
    assert judge(run, evidence)["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("state", "check_verdict", "node_verdict"),
    [
        ("failure", "fail", "FAIL"),
        ("crash", "fail", "FAIL"),
        ("timeout", "fail", "FAIL"),
        ("cancelled", "missing", "INCOMPLETE"),
        ("skipped", "missing", "INCOMPLETE"),
        ("pending", "missing", "INCOMPLETE"),
        ("running", "missing", "INCOMPLETE"),
    ],
)
def test_state_of_a_stage(state, check_verdict, node_verdict):
    run = make_run()
    evidence = healthy(run)
    evidence.records["node-1"]["training"] = make_record(state=state, message="killed by SIGKILL")
    report = judge(run, evidence)
    entry = only(report, "training_state")
    assert entry["verdict"] == check_verdict
    assert entry["reason"] == f"{state}: killed by SIGKILL"
    assert "--limit node-1" in entry["remedy"] or state == "timeout"
    assert report["verdict"] == node_verdict
    assert report["summary"][1].startswith(f"node-1 {node_verdict} training: {state}: killed by SIGKILL")


def test_failed_stage_keeps_its_figures_judged_and_the_state_as_headline():
    run = make_run()
    evidence = healthy(run)
    evidence.records["node-1"]["inference"] = make_record(
        stage="inference",
        state="failure",
        message="3 requests failed",
        metrics=[metric("inference_requests_failed_count", 3)],
    )
    report = judge(run, evidence)
    assert only(report, "failed_requests")["verdict"] == "fail"
    assert "inference: failure: 3 requests failed" in report["summary"][1]


def test_figures_of_a_running_stage_prove_nothing():
    (entry,) = judge_metric(check(), training_metrics(), state="running")
    assert (entry["verdict"], entry["reason"]) == ("missing", "training has not ended")


@pytest.mark.parametrize(
    ("fields", "value", "unit", "expected"),
    [
        ({"kind": "min", "value": 10}, 10, "count", "pass"),
        ({"kind": "min", "value": 10}, 9.999999999, "count", "fail"),
        ({"kind": "max", "value": 100, "unit": "ms"}, 0.1, "seconds", "pass"),
        ({"kind": "max", "value": 100, "unit": "ms"}, 0.1000001, "seconds", "fail"),
        ({"kind": "min", "value": 5.79, "unit": "Gbps"}, 723750000, "bytes_per_second", "pass"),
        ({"kind": "min", "value": 5.79, "unit": "Gbps"}, 723749999, "bytes_per_second", "fail"),
        ({"kind": "within", "low": 1, "high": 2}, 2, "count", "pass"),
        ({"kind": "within", "low": 1, "high": 2}, 2.5, "count", "fail"),
        ({"kind": "equal", "value": 8}, 8, "count", "pass"),
        ({"kind": "equal", "value": 8}, 7, "count", "fail"),
        ({"kind": "max", "value": 1, "unit": "GB"}, 1, "seconds", "missing"),
        ({"kind": "max", "value": 1, "unit": "GB"}, 1, "parsecs", "missing"),
        ({"kind": "max", "value": 1}, None, "seconds", "fail"),
    ],
)
def test_kinds_and_units(fields, value, unit, expected):
    (entry,) = judge_metric(check(metric="m", **fields), [metric("m", value, unit)])
    assert entry["verdict"] == expected, entry
    if expected == "fail":
        assert "m" in entry["reason"]
        assert entry["remedy"] == "look at the clocks"
    if value is None:
        assert "not a number" in entry["reason"]


def test_reason_shows_the_difference_when_rounded_figures_look_alike():
    (entry,) = judge_metric(check(metric="m", value=900), [metric("m", 899.9996, "count")])
    assert "899.9996" in entry["reason"]
    assert "900" in entry["reason"]


@pytest.mark.parametrize(
    ("first", "last", "direction", "expected"),
    [
        (8.0, 4.0, "falling", "pass"),
        (8.0, 7.9, "falling", "fail"),
        (8.0, 9.0, "falling", "fail"),
        (8.0, 9.0, "rising", "pass"),
        (-2.0, -4.0, "falling", "pass"),
        (8.0, 8.0, "falling", "fail"),
        (0.0, 1.0, "rising", "missing"),
        (None, 1.0, "rising", "fail"),
        (8.0, None, "falling", "fail"),
    ],
)
def test_trend(first, last, direction, expected):
    rule = check(kind="trend", metric="b", baseline_metric="a", direction=direction, min_change=0.05)
    (entry,) = judge_metric(rule, [metric("a", first, "loss"), metric("b", last, "loss")])
    assert entry["verdict"] == expected


def test_trend_without_its_baseline_is_missing():
    rule = check(kind="trend", metric="b", baseline_metric="a", direction="falling", min_change=0)
    (entry,) = judge_metric(rule, [metric("b", 1.0)])
    assert (entry["verdict"], entry["reason"]) == ("missing", "training reported no a")


def test_trend_of_a_crashed_stage_waits_for_its_last_figure():
    rule = check(kind="trend", metric="b", baseline_metric="a", direction="falling", min_change=0.05)
    (entry,) = judge_metric(rule, [metric("a", 8.0), metric("b", 8.0)], state="crash")
    assert entry["verdict"] == "missing"


TFLOPS = check("tflops", metric="training_model_tflops", scope="gpu", value=600)


@pytest.mark.parametrize(("gpu_count", "detected"), [(8, 8), (8, 7), (None, 8)])
def test_missing_parts_are_named(gpu_count, detected):
    metrics = [one for one in training_metrics() if one["scope"] not in ("gpu:5", "gpu:7")]
    (entry,) = judge_metric(TFLOPS, metrics, gpu_count=gpu_count, gpus=detected)
    assert entry["verdict"] == "missing"
    assert entry["part"] == "gpu:5"
    assert "gpu:5" in entry["reason"]
    assert "8 expected" in entry["reason"] or detected == 7


def test_each_failing_part_has_an_entry_and_passing_parts_collapse_to_the_worst():
    assert [(entry["verdict"], entry["part"]) for entry in judge_metric(TFLOPS, training_metrics())] == [
        ("pass", "gpu:0")
    ]
    metrics = [{**one, "value": 1.0} if one["scope"] in ("gpu:3", "gpu:4") else one for one in training_metrics()]
    found = judge_metric(TFLOPS, metrics)
    assert [(entry["verdict"], entry["part"]) for entry in found] == [("fail", "gpu:3"), ("fail", "gpu:4")]


def test_part_in_the_summary_carries_serial_and_address():
    run = make_run()
    evidence = healthy(run)
    evidence.records["node-1"]["training"]["metrics"] = [
        {**one, "value": 1.0} if one["scope"] == "gpu:3" else one for one in training_metrics()
    ]
    line = judge(run, evidence)["summary"][1]
    assert line == (
        "node-1 FAIL training: training_model_tflops 1 TFLOP/s, under the limit of 600 TFLOP/s "
        "(gpu:3, serial 165493, 0000:93:00.0): look at the clocks"
    )


def test_parts_from_says_how_many_ranks_report():
    rule = check(
        "p99", metric="training_step_p99_seconds", scope="rank", kind="max", parts_from="training_processes_count"
    )
    metrics = [one for one in training_metrics() if one["scope"] != "rank:6"]
    assert "rank:6" in judge_metric(rule, metrics)[0]["reason"]
    without = [one for one in training_metrics() if one["name"] != "training_processes_count"]
    assert judge_metric(rule, without)[0]["verdict"] == "missing"
    absurd = [{**one, "value": 1e300} if one["name"] == "training_processes_count" else one for one in metrics]
    assert judge_metric(rule, absurd)[0]["verdict"] == "missing"


@pytest.mark.parametrize(
    ("sku", "vendor", "hardware", "gpu_count", "expected"),
    [
        ("cpu", "cpu", 0, None, "pass"),
        ("cpu", "nvidia", 8, None, "pass"),
        ("auto", "cpu", 0, None, "pass"),
        ("auto", "cpu", 1, None, "fail"),
        ("auto", "cpu", None, None, "missing"),
        ("auto", "cpu", 0, 8, "fail"),
        ("h200", "cpu", 0, None, "fail"),
        ("h200", "nvidia", 8, None, "pass"),
        ("h200", "something", 8, None, "missing"),
        ("auto", "nvidia", 8, None, "pass"),
    ],
)
def test_cpu_never_stands_in_for_a_gpu(sku, vendor, hardware, gpu_count, expected):
    run = make_run(sku=sku, gpu_count=gpu_count)
    evidence = healthy(run, gpus=8 if vendor != "cpu" else 0)
    facts = facts_record(vendor=vendor, gpus=8 if vendor != "cpu" else 0, hardware=hardware or 0)
    if hardware is None:
        facts["metrics"] = [one for one in facts["metrics"] if one["name"] != "gpu_hardware_count"]
    evidence.records["node-1"]["facts"] = facts
    report = judge(run, evidence, [])
    assert only(report, "accelerator")["verdict"] == expected
    assert report["verdict"] == {"pass": "PASS", "fail": "FAIL", "missing": "INCOMPLETE"}[expected]


def test_cpu_node_skips_gpu_criteria_and_says_why():
    run = make_run(sku="cpu")
    evidence = healthy(run, gpus=0, vendor="cpu")
    report = judge(run, evidence)
    assert only(report, "tflops")["verdict"] == "skipped"
    assert "this is cpu" in only(report, "tflops")["reason"]
    assert report["verdict"] == "PASS"


@pytest.mark.parametrize(("sku", "declared"), [("auto", "8 GPUs"), ("h200", "sku h200 with 8 GPUs")])
def test_a_cpu_in_place_of_gpus_is_reported_with_what_was_declared(sku, declared):
    run = make_run(sku=sku, gpu_count=8)
    entry = only(judge(run, healthy(run, gpus=0, vendor="cpu")), "accelerator")
    assert entry["verdict"] == "fail"
    assert entry["reason"].startswith(f"the inventory declares {declared}, but no usable GPU was found")


def test_criteria_for_an_accelerator_are_missing_without_facts():
    run = make_run(stages=["training"])
    report = judge(run, healthy(run))
    assert only(report, "tflops")["verdict"] == "missing"
    assert report["verdict"] == "INCOMPLETE"


@pytest.mark.parametrize(("declared", "verdict_of_check"), [(8, "pass"), (4, "fail"), (None, "skipped")])
def test_gpu_count_as_declared(declared, verdict_of_check):
    run = make_run(gpu_count=declared)
    report = judge(run, healthy(run))
    entry = only(report, "gpus")
    assert entry["verdict"] == verdict_of_check
    said = any(line.startswith("GPU count not declared: node-1") for line in report["summary"])
    assert said == (declared is None)
    assert (entry["reason"] == "count not declared") == (declared is None)


@pytest.mark.parametrize(
    ("sku", "gpus", "said"),
    [
        ("auto", 7, "GPUs differ: node-2 with 7 x H200; 2 with 8 x H200: set gpuval_sku and gpuval_gpu_count"),
        ("auto", 0, "GPUs differ: node-2 with no GPU; 2 with 8 x H200: set gpuval_sku and gpuval_gpu_count"),
        ("auto", 8, ""),
        ("h200", 7, ""),  # a check of its own has that
    ],
)
def test_a_node_with_other_gpus_than_most_is_named_where_none_are_declared(sku, gpus, said):
    run = make_run(["node-1", "node-2", "node-3"], sku=sku)
    evidence = healthy(run)
    evidence.records["node-2"] = healthy_records("node-2", gpus=gpus, vendor="nvidia" if gpus else "cpu")
    lines = [line for line in judge(run, evidence)["summary"] if line.startswith("GPUs differ")]
    assert lines == ([f"{said} to have them checked"] if said else [])


@pytest.mark.parametrize(("without", "verdict"), [(1, "INCOMPLETE"), (2, "PASS")])
def test_a_node_without_gpus_is_a_cpu_node_unless_most_others_have_some(without, verdict):
    run = make_run(["node-1", "node-2", "node-3"], stages=["facts", "training"])
    evidence = healthy(run)
    for name in ["node-2", "node-3"][:without]:
        evidence.records[name] = healthy_records(name, gpus=0, vendor="cpu")
    report = judge(run, evidence)
    assert report["nodes"][1]["verdict"] == verdict
    reason = only(report, "accelerator", 1)["reason"]
    assert ("most nodes of the run have GPUs" in reason) == (without == 1)


def test_a_node_whose_gpus_an_earlier_run_missed_is_no_cpu_node_when_it_runs_alone():
    run = make_run(["node-1", "node-2", "node-3"], stages=["facts", "training"])
    evidence = healthy(run)
    evidence.records["node-2"] = healthy_records("node-2", gpus=0, vendor="cpu")
    faults = judge(run, evidence)["nodes"][1]["action"]["faults"]
    earlier = {(fault["class"], fault["of"]): {"run-0"} for fault in faults}
    alone = make_run(["node-2"], stages=["facts", "training"], narrowed_by=["limit"])
    assert judge(alone, evidence)["nodes"][0]["verdict"] == "PASS"
    report = judge(alone, evidence, earlier=earlier)
    assert report["nodes"][0]["verdict"] == "INCOMPLETE"
    assert only(report, "accelerator")["reason"] == "no GPU hardware, but run run-0 missed its GPUs"
    assert only(report, "accelerator")["remedy"].startswith("look for its GPUs with lspci")
    assert "for a CPU node, set gpuval_sku: cpu" in only(report, "accelerator")["remedy"]
    alone["nodes"]["node-2"]["sku"] = "cpu"
    assert judge(alone, evidence, earlier=earlier)["nodes"][0]["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("order", "vendor", "part"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], "nvidia", "gpu:1"),
        ([1, 0, 2, 3, 4, 5, 6, 7], "nvidia", "node"),  # CUDA_VISIBLE_DEVICES=1,0,...
        ([0, 9, 2, 3, 4, 5, 6, 7], "nvidia", "node"),  # replaced since the facts
        ([90, 91, 92, 93, 94, 95, 96, 97], "nvidia", "node"),
        ([90, 91, 92, 93, 94, 95, 96, 97], "amd", "gpu:1"),  # ids of another tool
    ],
)
def test_a_gpu_is_named_only_where_the_stage_numbers_them_as_the_facts_do(order, vendor, part):
    run = make_run(stages=["facts", "training"])
    evidence = healthy(run)
    evidence.records["node-1"]["facts"]["environment"]["accelerator"]["vendor"] = vendor
    of_node = evidence.records["node-1"]
    for index, gpu in enumerate(of_node["facts"]["environment"]["gpus"]):
        gpu |= {"uuid": f"GPU-AB-{index}", "name": "H200" if vendor == "nvidia" else "AMD Instinct MI300X"}
    of_node["facts"]["environment"]["identity"]["gpu_uuids"] = [f"GPU-AB-{index}" for index in range(8)]
    of_node["training"]["environment"]["devices"] = [
        {"index": index, "uuid": f"ab-{which}"} for index, which in enumerate(order)
    ]
    report = judge(run, evidence)
    assert [check["name"] for check in report["nodes"][0]["checks"]].count("gpu_order") == (part == "node")
    assert (report["verdict"] == "INCOMPLETE") == (part == "node")
    slow = next(one for one in of_node["training"]["metrics"] if one["scope"] == "gpu:1")
    slow["value"] = 1.0
    report = judge(run, evidence)
    entry = only(report, "tflops")
    assert (report["verdict"], entry["part"]) == ("FAIL", part)
    assert ("serial 165491" in " ".join(report["summary"])) == (part == "gpu:1")


@pytest.mark.parametrize(
    ("kind", "count", "verdict"),
    [("max", 1, "fail"), ("max", None, "pass"), ("max", 0, "pass"), ("min", 0, "pass")],
)
def test_a_fault_that_a_cut_off_attempt_counted_is_not_retried_away(kind, count, verdict):
    limit = check("xid", metric="gpu_xid_critical_count", kind=kind, value=0 if kind == "max" else 1)
    good = [metric("gpu_xid_critical_count", 0 if kind == "max" else 1)]
    lost = make_record(state="running", finished_at=None, metrics=[metric("gpu_xid_critical_count", count)])
    (entry,) = judge_metric(limit, good, attempt=2, attempts=[lost])
    assert entry["verdict"] == verdict


def test_a_figure_that_falls_while_a_stage_runs_is_not_judged_by_an_attempt_that_was_cut_off():
    limit = check("loss", metric="training_loss", kind="max", value=2)
    lost = make_record(state="running", finished_at=None, metrics=[metric("training_loss", 3.0, "ratio")])
    (entry,) = judge_metric(limit, [metric("training_loss", 1.0, "ratio")], attempt=2, attempts=[lost])
    assert entry["verdict"] == "pass"


def test_gpus_that_are_declared_away_are_reported():
    run = make_run(sku="cpu", stages=["facts"])
    evidence = healthy(run, vendor="cpu", gpus=0)
    said = "GPUs not tested, because gpuval_sku is cpu: node-1"
    assert said not in judge(run, evidence, [])["summary"]
    evidence.records["node-1"]["facts"]["metrics"].append(metric("gpu_hardware_count", 8))
    evidence.records["node-1"]["facts"]["metrics"] = [
        item for item in evidence.records["node-1"]["facts"]["metrics"]
        if (item["name"], item["value"]) != ("gpu_hardware_count", 0)
    ]  # fmt: skip
    assert said in judge(run, evidence, [])["summary"]


def test_a_stage_cut_off_in_the_same_attempt_and_passed_then_is_flaky():
    run = make_run()
    evidence = healthy(run)
    record = evidence.records["node-1"]["training"]
    record["attempts"] = [{**record, "state": "crash", "attempts": []}]
    accepted(record)
    assert judge(run, evidence)["nodes"][0]["flaky"]


@pytest.mark.parametrize(
    ("applies", "expected"),
    [
        ({"profile": ["burnin"]}, "skipped"),
        ({"profile": ["quick"]}, "pass"),
        ({"sku": ["h100"]}, "skipped"),
        ({"accelerator": ["amd"]}, "skipped"),
        ({"accelerator": ["nvidia"]}, "pass"),
        ({"workload": ["training_validation"]}, "skipped"),
        ({"workload": ["training"]}, "pass"),
    ],
)
def test_applies(applies, expected):
    assert judge_metric(check(applies=applies), training_metrics())[0]["verdict"] == expected


def test_criteria_of_a_stage_that_was_not_asked_for_are_left_out():
    run = make_run(stages=["facts", "loading"])
    evidence = healthy(run)
    report = judge(run, evidence)
    assert not entries(report, "speed")
    reasons = {(one["node"], one["stage"]): one["reason"] for one in report["fleet"]["problems"]}
    assert "not asked to run" in reasons["node-1", "training"]


def test_advice_that_fails_or_is_missing_does_not_decide():
    run = make_run()
    evidence = healthy(run)
    metrics = evidence.records["node-1"]["training"]["metrics"]
    slow = [{**one, "value": 9.0} if one["name"] == "training_step_p99_seconds" else one for one in metrics]
    evidence.records["node-1"]["training"]["metrics"] = slow
    report = judge(run, evidence)
    assert {entry["verdict"] for entry in entries(report, "steps")} == {"warn"}
    assert report["verdict"] == "PASS"
    assert "Warnings: steps; see report.html" in report["summary"]
    evidence.records["node-1"]["training"]["metrics"] = [one for one in metrics if not one["scope"].startswith("rank")]
    report = judge(run, evidence)
    assert only(report, "steps")["verdict"] == "missing"
    assert report["verdict"] == "PASS"


def identities(report):
    return {node["name"]: check["verdict"] for node in report["nodes"] for check in node["checks"]
            if check["name"] == "identity"}  # fmt: skip


@pytest.mark.parametrize("same", [("machine_id", "serial", "gpu_uuids"), ("gpu_uuids",), ("machine_id", "gpu_uuids")])
def test_one_machine_listed_twice(same):
    run = make_run(["a", "b", "c"])
    evidence = healthy(run)
    first, second = (evidence.records[name]["facts"]["environment"]["identity"] for name in "ab")
    for what in same:
        second[what] = first[what] if what == "gpu_uuids" else first[what].upper()
    report = judge(run, evidence)
    assert [node["verdict"] for node in report["nodes"]] == ["INCOMPLETE", "INCOMPLETE", "PASS"]
    assert "one machine listed twice: b has the same" in only(report, "identity", 0)["reason"]
    assert "one machine listed twice: a has the same" in only(report, "identity", 1)["reason"]


@pytest.mark.parametrize("same", [["machine_id"], ["serial"], ["machine_id", "serial"]])
def test_an_id_in_common_is_a_warning_where_the_hardware_differs(same):
    run = make_run(["a", "b"])
    evidence = healthy(run)
    first, second = (evidence.records[name]["facts"]["environment"]["identity"] for name in "ab")
    second.update({what: first[what] for what in same})
    report = judge(run, evidence)
    assert report["verdict"] == "PASS"
    assert identities(report) == {"a": "warn", "b": "warn"}
    assert "b has the same" in only(report, "identity", 0)["reason"]


@pytest.mark.parametrize("hardware", [True, False])
def test_a_disk_that_was_cloned_to_many_nodes(hardware):
    names = [f"n{number}" for number in range(100)]
    run = make_run(names, stages=["facts"])
    evidence = healthy(run)
    for name in names:
        identity = evidence.records[name]["facts"]["environment"]["identity"]
        identity.update(
            {"machine_id": "cloned"} if hardware else {"machine_id": "cloned", "serial": None, "gpu_uuids": []}
        )
    assert set(identities(judge(run, evidence)).values()) == {"warn" if hardware else "fail"}


@pytest.mark.parametrize("own", [True, False])
def test_a_node_that_lists_gpus_of_others_is_alone_incomplete(own):
    names = ["evil", "n1", "n2", "n3", "n4", "n5"]
    run = make_run(names)
    evidence = healthy(run)
    identity = {name: evidence.records[name]["facts"]["environment"]["identity"] for name in names}
    stolen = [identity[name]["gpu_uuids"][0] for name in names[1:]]
    identity["evil"]["gpu_uuids"] = [*identity["evil"]["gpu_uuids"][: 8 if own else 3], *stolen]
    report = judge(run, evidence)
    assert [node["verdict"] for node in report["nodes"]] == ["INCOMPLETE", *["PASS"] * 5]
    assert identities(report) == {"evil": "fail", **dict.fromkeys(names[1:], "warn")}
    assert "n1 (and n2, n3, n4, n5) has the same GPU UUID" in only(report, "identity", 0)["reason"]


@pytest.mark.parametrize("how", ["more", "all", "not its own", "nothing else"])
def test_a_claim_on_one_other_node_is_held_against_its_maker_alone(how):
    run = make_run(["evil", "good"])
    evidence = healthy(run)
    evil, good = (evidence.records[name]["facts"]["environment"] for name in ("evil", "good"))
    its = good["identity"]["gpu_uuids"]
    if how == "more":
        evil["identity"]["gpu_uuids"] += its[:1]
    elif how == "all":
        evil["identity"]["gpu_uuids"] += its
    elif how == "not its own":  # the list of GPUs does not have it
        for environment in (evil, good):
            for gpu, uuid in zip(environment["gpus"], environment["identity"]["gpu_uuids"]):
                gpu["uuid"] = uuid
        evil["identity"]["gpu_uuids"] = [its[0], *evil["identity"]["gpu_uuids"][1:]]
    else:
        evil["identity"] = {"machine_id": good["identity"]["machine_id"], "serial": good["identity"]["serial"]}
    report = judge(run, evidence)
    assert [node["verdict"] for node in report["nodes"]] == ["INCOMPLETE", "PASS"]
    assert identities(report) == {"evil": "fail", "good": "warn"}


def test_two_nodes_that_list_one_gpu_are_not_accepted():
    run = make_run(["a", "b"])
    evidence = healthy(run)
    first, second = (evidence.records[name]["facts"]["environment"]["identity"] for name in "ab")
    second["gpu_uuids"][0] = first["gpu_uuids"][3]
    report = judge(run, evidence)
    assert [node["verdict"] for node in report["nodes"]] == ["INCOMPLETE", "INCOMPLETE"]
    assert "two nodes list one GPU: b has the same GPU UUID" in only(report, "identity", 0)["reason"]


@pytest.mark.parametrize("where", ["identity", "gpus"])
def test_a_gpu_that_is_listed_twice_within_a_node_fails_it(where):
    run = make_run(["a", "b"])
    evidence = healthy(run)
    environment = evidence.records["a"]["facts"]["environment"]
    if where == "identity":
        environment["identity"]["gpu_uuids"][1] = environment["identity"]["gpu_uuids"][0]
    else:
        for index, gpu in enumerate(environment["gpus"]):
            gpu["uuid"] = f"GPU-{max(index, 1)}"
    report = judge(run, evidence)
    assert [node["verdict"] for node in report["nodes"]] == ["FAIL", "PASS"]
    assert report["nodes"][0]["class"] == "gpu_uuids"
    assert "more than once" in only(report, "gpu_uuids", 0)["reason"]


def test_measurements_of_another_node_to_the_last_digit_are_not_accepted():
    run = make_run(["a", "b", "c"])
    evidence = healthy(run)
    for name in "abc":
        own = 0.1234567 if name != "c" else 0.1234568
        figures = [metric(f"training_{what}_seconds", own * factor, "seconds") for what, factor in
                   (("step", 1.0), ("data", 1.7), ("sync", 2.3))]  # fmt: skip
        evidence.records[name]["training"]["metrics"] += figures
    report = judge(run, evidence)
    assert [node["verdict"] for node in report["nodes"]] == ["INCOMPLETE", "INCOMPLETE", "PASS"]
    assert report["nodes"][0]["class"] == "training_figures"
    assert "the same measurements to the last digit as b" in only(report, "training_figures", 0)["reason"]


def refused_as_twin(run, evidence, name, twin):
    """The launch of a name whose machine is in the run as another, as launch_plan leaves it."""
    evidence.records.pop(name)
    message = node_launch.TWICE.format(name=twin)
    evidence.launches[name] = {"state": "refused", "class": "same_machine_twice", "twin": twin, "message": message}


@pytest.mark.parametrize("stages", [["facts", "training"], ["training"]])
def test_a_name_that_its_machine_refused_is_incomplete_and_the_other_stands_by_its_own_evidence(stages):
    run = make_run(["a", "b", "c"], stages=stages)
    evidence = healthy(run)
    refused_as_twin(run, evidence, "b", "a")
    report = judge(run, evidence)
    assert report["nodes"][0]["verdict"] == judge(run, healthy(run))["nodes"][0]["verdict"]
    assert (report["nodes"][1]["verdict"], report["nodes"][1]["class"]) == ("INCOMPLETE", "same_machine_twice")
    for index, other, found in ((0, "b", "warn"), (1, "a", "fail")):
        check = only(report, "identity", index)
        assert f"{other} is the same machine" in check["reason"]
        assert (check["value"], check["verdict"]) == (other, found)
        assert "inventory" in check["remedy"]
    assert report["verdict"] == "INCOMPLETE"


def test_both_names_of_one_machine_are_incomplete_where_both_show_one_host_key():
    run = make_run(["a", "b", "c"])
    evidence = healthy(run)
    refused_as_twin(run, evidence, "b", "a")
    for name, key in (("a", "SHA256:one"), ("b", "SHA256:one"), ("c", "SHA256:other")):
        evidence.launches[name]["host_key"] = key
    report = judge(run, evidence)
    assert [node["verdict"] for node in report["nodes"]] == ["INCOMPLETE", "INCOMPLETE", "PASS"]
    assert [node["class"] for node in report["nodes"][:2]] == ["same_machine_twice"] * 2
    evidence.launches["b"]["twin"] = "c"
    assert [node["verdict"] for node in judge(run, evidence)["nodes"]] == ["PASS", "INCOMPLETE", "PASS"]


def test_names_that_both_say_they_are_the_other_are_both_incomplete():
    run = make_run(["a", "b", "c"])
    evidence = healthy(run)
    refused_as_twin(run, evidence, "b", "a")
    refused_as_twin(run, evidence, "a", "b")
    assert [node["verdict"] for node in judge(run, evidence)["nodes"]] == ["INCOMPLETE", "INCOMPLETE", "PASS"]


@pytest.mark.parametrize("twin", ["b", "gone", None, ["a"]])
def test_only_another_node_of_the_run_is_a_twin(twin):
    run = make_run(["a", "b"])
    evidence = healthy(run)
    refused_as_twin(run, evidence, "b", twin)
    assert [node["verdict"] for node in judge(run, evidence)["nodes"]] == ["PASS", "INCOMPLETE"]


def test_names_launched_one_after_the_other_are_identified_by_their_facts():
    run = make_run(["a", "b"])
    evidence = healthy(run)
    for name, began in (("a", "2026-11-02T10:00:00Z"), ("b", "2026-11-02T11:00:00Z")):
        for stage, record in evidence.records[name].items():
            evidence.records[name][stage] = {**record, **times(began)}
        evidence.records[name]["facts"]["environment"]["identity"] = {"machine_id": "4f", "serial": None}
    evidence.records["b"]["facts"]["environment"]["identity"]["serial"] = "S-other-board"
    report = judge(run, evidence)
    assert [node["class"] for node in report["nodes"]] == ["same_machine_twice"] * 2


@pytest.mark.parametrize(
    "useless", ["", "None", "0", "Not Specified", "To be filled by O.E.M.", "00000000-0000", "  ", None, 7]
)
def test_useless_serials_are_no_identity(useless):
    run = make_run(["a", "b"])
    evidence = healthy(run)
    for name in "ab":
        evidence.records[name]["facts"]["environment"]["identity"]["serial"] = useless
    assert judge(run, evidence)["verdict"] == "PASS"


@pytest.mark.parametrize(
    "environment", [{}, {"accelerator": "x", "identity": [], "gpus": {}}, {"gpus": [None, 3, {"index": "x"}]}]
)
def test_environment_of_any_form_is_survived(environment):
    run = make_run()
    evidence = healthy(run)
    evidence.records["node-1"]["facts"]["environment"] = environment
    report = judge(run, evidence)
    schemas.validate("report", report, what="report")
    assert report["verdict"] == "INCOMPLETE"


def test_node_without_stages_and_run_without_nodes_are_incomplete():
    run = make_run(stages=[])
    report = judge(run, healthy(run))
    assert report["verdict"] == "INCOMPLETE"
    assert "no stage" in report["summary"][1]
    empty = judge(make_run([]), RunEvidence())
    assert empty["verdict"] == "INCOMPLETE"
    assert empty["summary"][0] == "Nodes: 0 expected, 0 PASS, 0 FAIL, 0 INCOMPLETE"


def test_narrowed_run_is_partial_at_best():
    run = make_run(narrowed_by=["limit"])
    report = judge(run, healthy(run))
    assert report["verdict"] == "PARTIAL"
    assert "Narrowed by --limit: PARTIAL at best" in report["summary"]
    assert verdict.run_verdict(["PASS", "FAIL", "INCOMPLETE"], narrowed=True) == "FAIL"
    assert verdict.run_verdict(["PASS", "INCOMPLETE"], narrowed=True) == "INCOMPLETE"


def test_pass_on_the_second_attempt_is_flaky():
    run = make_run()
    evidence = healthy(run)
    record = evidence.records["node-1"]["training"]
    record["attempts"] = [make_record(state="crash", metrics=[])]
    record["attempt"] = 2
    report = judge(run, evidence)
    assert report["verdict"] == "PASS"
    assert report["counts"]["flaky"] == 1
    assert "Flaky, passed only on a retry: node-1" in report["summary"]


def test_wrong_result_is_not_retried_into_pass():
    run = make_run()
    evidence = healthy(run)
    record = evidence.records["node-1"]["inference"]
    record["attempts"] = [
        make_record(stage="inference", state="failure", metrics=[metric("inference_requests_failed_count", 2)])
    ]
    record["attempt"] = 2
    report = judge(run, evidence)
    assert report["verdict"] == "FAIL"
    assert "attempt 1" in only(report, "failed_requests")["reason"]


@pytest.mark.parametrize(
    ("earlier", "later", "verdict"),
    [(1, 0, "INCOMPLETE"), (1, 1, "FAIL"), (0, 1, "FAIL"), (0, 0, "PASS")],
)
def test_a_nan_by_chance_is_neither_pass_nor_fail_and_one_that_comes_again_is_fail(earlier, later, verdict):
    (check,) = [each for each in SHIPPED if each.name == "training_nonfinite"]
    run = make_run()
    evidence = healthy(run)
    record = evidence.records["node-1"]["training"]
    record["metrics"] = [*training_metrics(), metric("training_nonfinite_count", later)]
    record["attempts"] = [
        make_record(state="failure" if earlier else "crash", metrics=[metric("training_nonfinite_count", earlier)])
    ]
    record["attempt"] = 2
    record["state"] = "failure" if later else "success"
    report = judge(run, evidence, [check])
    assert report["nodes"][0]["verdict"] == verdict
    if verdict == "INCOMPLETE":
        reason = only(report, "training_nonfinite")["reason"]
        assert reason.endswith("attempt 1: training_nonfinite_count 1, over the limit of 0; unsteady")


def test_slow_first_attempt_may_pass_when_measured_again():
    run = make_run()
    evidence = healthy(run)
    record = evidence.records["node-1"]["training"]
    record["attempts"] = [make_record(metrics=training_metrics(tflops=100.0))]
    record["attempt"] = 2
    report = judge(run, evidence)
    assert (report["verdict"], report["counts"]["flaky"]) == ("PASS", 1)


OOM_OF_RUNNER = "killed by SIGKILL; out of memory: the kernel killed 2 of its control group's processes (oom_kill)"
OOM_OF_POD = (
    "OOMKilled: the kernel killed the container of training: out of memory (its limit is in gpuval_pods.resources)"
)
CUT_OFF = (
    "its container ended without a final record (killed, evicted or out of memory; last seen 2026): see the events"
)


@pytest.mark.parametrize(
    ("attempts", "cause", "line"),
    [
        ([("crash", "exit code 1")], "flaky", "Flaky, passed only on a retry: node-1"),
        ([("timeout", "")], "flaky", "Flaky"),
        ([("crash", OOM_OF_RUNNER)], "out_of_memory", "Ran out of memory once"),
        ([("crash", OOM_OF_POD)], "out_of_memory", "Ran out of memory once"),
        ([("failure", OOM_OF_POD)], "flaky", "Flaky"),
        ([("crash", "exit code 1: OSError: [Errno 28] No space left on device")], "disk_full", "Found a full disk"),
        ([("running", "")], "interrupted", "Interrupted (pod evicted or deleted"),
        ([("cancelled", "the pod's container received SIGTERM")], "interrupted", "Interrupted"),
        ([("crash", CUT_OFF)], "interrupted", "Interrupted"),
        ([("crash", "cut off (last seen 2026-11-20T10:00:00Z); running")], "interrupted", "Interrupted"),
        ([("cancelled", ""), ("crash", "exit code 1")], "flaky", "Flaky"),
        ([("pending", "")], None, ""),
    ],
)
def test_what_was_flaky_and_what_lacked_memory_or_disk_or_was_interrupted(attempts, cause, line):
    run = make_run()
    evidence = healthy(run)
    record = evidence.records["node-1"]["training"]
    record["attempts"] = [{**make_record(state=state, metrics=[]), "message": message} for state, message in attempts]
    record["attempt"] = 2
    report = judge(run, evidence)
    (node,) = report["nodes"]
    stage = next(stage for stage in node["stages"] if stage["name"] == "training")
    assert (stage["retried_for"], node["flaky"], node["verdict"]) == (cause, cause == "flaky", "PASS")
    told = [said for said in report["summary"] if said.startswith(("Flaky", "Ran out", "Found", "Interrupted"))]
    assert len(told) == (cause is not None) and all(said.startswith(line) for said in told)


@pytest.mark.parametrize(
    ("environment", "stage", "cause"),
    [
        ({"fault": "store_away"}, "loading", "not_the_node"),
        ({"fault": "no_rclone"}, "loading", "not_the_node"),
        (
            {"cause": {"class": "environment", "text": "No module named 'httpx2'", "rank": 0}},
            "inference",
            "not_the_node",
        ),
        ({"cause": {"class": "own_program", "text": "TypeError", "rank": 1}}, "training", "not_the_node"),
        ({"cause": {"class": "hardware", "text": "Xid 79", "rank": None}}, "training", "flaky"),
        ({"cause": {"class": "made_up"}, "fault": ["store_away"]}, "training", "flaky"),
        ({"cause": "store_away"}, "training", "flaky"),
        ({}, "mine", "not_the_node"),
        ({"cause": {"class": "hardware", "text": "Xid 79", "rank": None}}, "mine", "flaky"),
    ],
)
@pytest.mark.parametrize("state", ["crash", "failure", "timeout"])
def test_only_a_fault_of_the_node_makes_it_flaky(environment, stage, cause, state):
    attempt = {**make_record(stage=stage, state=state, metrics=[]), "environment": environment}
    record = {**make_record(stage=stage), "attempt": 2, "attempts": [attempt]}
    assert stage_end.retried_for(record) == cause


@pytest.mark.parametrize(("state", "cause"), [("running", None), ("cancelled", None), ("crash", "flaky")])
@pytest.mark.parametrize("of_round", [None, "round-1"])
def test_a_stage_that_passed_before_a_preemption_is_not_flaky(state, cause, of_round):
    """A success that a figure made slow runs again, too: only an end from outside explains it."""
    marks = {"of_round": of_round} if of_round else {}

    def twice(stage, state):
        return {
            **make_record(stage=stage),
            "attempt": 2,
            "attempts": [{**make_record(stage=stage, state=state), **marks}],
        }

    passed, cut_off = twice("loading", "success"), twice("training", state)
    assert stage_end.retried_for(passed, [passed, cut_off]) == cause
    assert stage_end.retried_for(cut_off, [passed, cut_off]) == ("interrupted" if cause is None else cause)
    assert stage_end.retried_for(passed, [passed]) == "flaky"


def test_a_node_that_fails_is_not_called_flaky_for_a_stage_that_passed():
    run = make_run()
    evidence = healthy(run)
    records = evidence.records["node-1"]
    records["training"].update(attempt=2, attempts=[make_record(state="crash", metrics=[])])
    crashed = {**make_record(stage="inference", state="crash", metrics=[])}
    records["inference"] = {**crashed, "attempt": 2, "attempts": [crashed]}
    report = judge(run, evidence)
    assert (report["verdict"], report["counts"]["flaky"]) == ("FAIL", 0)
    assert not any("Flaky" in line for line in report["summary"])


def test_slow_in_both_attempts_is_fail_and_not_flaky():
    run = make_run()
    evidence = healthy(run)
    record = evidence.records["node-1"]["training"]
    record["metrics"] = training_metrics(tflops=100.0)
    record["attempts"] = [make_record(metrics=training_metrics(tflops=100.0))]
    record["attempt"] = 2
    report = judge(run, evidence)
    assert (report["verdict"], report["counts"]["flaky"]) == ("FAIL", 0)


def test_fingerprint_is_held_against_a_text_value():
    rule = check(kind="equal", metric="firmware", value="1.2.3")
    assert judge_metric(rule, [], fingerprints={"firmware": "1.2.3"})[0]["verdict"] == "pass"
    assert "firmware is 1.2.2, not 1.2.3" in judge_metric(rule, [], fingerprints={"firmware": "1.2.2"})[0]["reason"]
    assert judge_metric(rule, [])[0]["verdict"] == "missing"


def test_summary_is_bounded_and_puts_failures_first():
    run = make_run([f"node-{index}" for index in range(60)])
    evidence = healthy(run)
    for index in range(30):
        del evidence.records[f"node-{index}"]
        evidence.launches[f"node-{index}"] = {"state": "unreachable", "message": f"reason {index}"}
    evidence.records["node-40"]["training"]["state"] = "timeout"
    lines = judge(run, evidence)["summary"]
    assert lines[0] == "Nodes: 60 expected, 29 PASS, 1 FAIL, 30 INCOMPLETE"
    assert lines[1].startswith("node-40 FAIL training: timeout")
    assert lines[21] == "... and 11 more: see report.html"


def test_failed_criteria_are_what_a_retry_decides_on():
    run = make_run()
    evidence = healthy(run)
    evidence.records["node-1"]["training"]["metrics"] = training_metrics(tflops=1.0)
    node = judge(run, evidence)["nodes"][0]
    assert [rule.name for rule in verdict.failed_criteria(node, standard_checks())] == ["tflops"]


def test_judging_leaves_its_input_alone_and_survives_json():
    run = make_run(["a", "b"])
    evidence = healthy(run)
    before = copy.deepcopy(evidence)
    report = judge(run, evidence)
    assert evidence == before
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert [stage["name"] for stage in report["nodes"][0]["stages"]] == STAGES


@pytest.mark.parametrize(
    ("stage", "state", "fault", "node"),
    [
        ("image", "crash", "delivery", "INCOMPLETE"),
        ("image", "crash", "no_image", "INCOMPLETE"),
        ("image", "failure", "no_image", "FAIL"),
        ("image", "crash", "disk", "FAIL"),
        ("image", "crash", None, "FAIL"),
        ("image", "timeout", "delivery", "INCOMPLETE"),
        ("image", "failure", "delivery", "INCOMPLETE"),
        ("training", "crash", "delivery", "INCOMPLETE"),
        ("loading", "crash", "store_away", "INCOMPLETE"),
        ("loading", "failure", "no_rclone", "INCOMPLETE"),
        ("inference", "failure", "no_server", "INCOMPLETE"),
        ("training", "failure", "no_server", "INCOMPLETE"),
        ("loading", "failure", "store_incomplete", "INCOMPLETE"),
        ("loading", "crash", "delivery", "INCOMPLETE"),
        ("loading", "failure", "store_away", "INCOMPLETE"),
        ("training", "crash", "store_away", "INCOMPLETE"),
        ("training", "crash", "disk", "FAIL"),
        ("training", "crash", "no_image", "FAIL"),  # its container had started
        ("training", "crash", "preempted", "FAIL"),  # not for a record to say
        ("training", "crash", "hardware", "FAIL"),
    ],
)
def test_what_a_record_names_outside_the_node_is_no_fault_of_the_node(stage, state, fault, node):
    run = make_run(stages=["facts", "image", *([stage] if stage in ("loading", "inference") else []), "training"])
    evidence = healthy(run)
    records = evidence.records["node-1"]
    records["image"] = make_record(stage="image")
    records[stage] = make_record(stage=stage, state=state, environment={"fault": fault}, message="the store is away")
    if stage == "image":
        records["training"] = make_record(state="skipped", started_at=None)
    found = judge(run, evidence)["nodes"][0]
    assert found["verdict"] == node
    (check,) = [one for one in found["checks"] if one["name"] == f"{stage}_state"]
    assert check["value"] == state
    assert "the store is away" in check["reason"]
    assert check["remedy"].endswith("--limit node-1") or node == "FAIL"
    assert (found["class"] == "no_image") == ((stage, state, fault) == ("image", "crash", "no_image"))


@pytest.mark.parametrize(
    ("state", "fault", "message", "verdict", "word", "remedy"),
    [
        ("failure", None, "dataset cifar10: wrong checksum: a/b.bin arrived right and was read back wrong", "FAIL",
         "wrong_digest", "check the node's memory (ECC counters) and its disk"),
        ("failure", None, "disk is odd", "FAIL", "dataset_cifar10_failure", "read nodes/node-1/dataset_cifar10.log"),
        ("crash", "store_away", "the store refuses the read-only key", "INCOMPLETE",
         "store_away", "check that the store answers"),
    ],
)  # fmt: skip
def test_a_dataset_that_cannot_be_loaded_has_a_class_and_a_remedy(state, fault, message, verdict, word, remedy):
    run = make_run(stages=["facts", "dataset_cifar10"])
    evidence = healthy(run)
    evidence.records["node-1"]["dataset_cifar10"] = make_record(
        stage="dataset_cifar10", state=state, message=message, environment={"fault": fault} if fault else {}
    )
    found = judge(run, evidence)["nodes"][0]
    assert (found["verdict"], found["class"]) == (verdict, word)
    (check,) = [one for one in found["checks"] if one["name"] == "dataset_cifar10_state"]
    assert message in check["reason"]
    assert check["remedy"].startswith(remedy)
    assert "node-1" in check["remedy"]


def test_a_refused_key_of_the_store_is_named_as_the_stores():
    run = make_run(stages=["facts", "loading"])
    evidence = healthy(run)
    message = "exit code 3 without a result: the store refuses the read-only key; loading stopped: AccessDenied"
    evidence.records["node-1"]["loading"] = make_record(
        stage="loading", state="crash", environment={"fault": "store_away"}, message=message
    )
    found = judge(run, evidence)["nodes"][0]
    assert (found["verdict"], found["class"]) == ("INCOMPLETE", "store_away")


def test_a_fault_of_the_delivery_never_hides_another():
    run = make_run(stages=["facts", "image", "training"])
    evidence = healthy(run)
    evidence.records["node-1"]["image"] = make_record(stage="image", state="crash", environment={"fault": "delivery"})
    evidence.records["node-1"]["training"] = make_record(state="failure")
    assert judge(run, evidence)["nodes"][0]["verdict"] == "FAIL"
    evidence.records["node-1"]["training"] = make_record(state="success")
    assert judge(run, evidence)["nodes"][0]["verdict"] == "INCOMPLETE"


@pytest.mark.parametrize(
    ("changes", "node", "word"),
    [
        ({"exit_code": None, "signal": None}, "INCOMPLETE", "no_image"),
        ({"exit_code": 1, "signal": None}, "FAIL", "training_crash"),  # it started, and says so itself
        ({"exit_code": None, "signal": "SIGKILL"}, "FAIL", "training_crash"),
        ({"exit_code": None, "signal": None, "environment": {}}, "FAIL", "training_crash"),
    ],
)
def test_a_stage_whose_image_is_not_on_the_node_is_no_fault_of_the_node(changes, node, word):
    run = make_run()
    evidence = healthy(run)
    message = "cannot start: as its record says"
    record = make_record(state="crash", environment={"fault": "no_image"}, message=message)
    evidence.records["node-1"]["training"] = {**record, **changes}
    found = judge(run, evidence)["nodes"][0]
    assert (found["verdict"], found["class"]) == (node, word)
    (check,) = [one for one in found["checks"] if one["name"] == "training_state"]
    assert ("kernel log" in check["remedy"]) == (node == "FAIL")
    if node == "INCOMPLETE":
        assert found["action"]["faults"] == [{"class": word, "of": "serial S-node-1"}], "its figures follow from it"
        earlier = {(word, "serial S-node-1"): {"run-0", "run-00"}}
        assert judge(run, evidence, earlier=earlier)["nodes"][0]["action"]["name"] == "retest", "it never escalates"
