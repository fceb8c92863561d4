"""When a check is judged at all: number of GPUs, algorithm, requirements, and what a node says it cannot have."""

import copy
from dataclasses import replace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.builders import check as make_check
from tests.kit.builders import healthy, judge, judge_metric, make_record, make_run, metric

BANDWIDTH = {"metric": "all_reduce", "value": 432, "unit": "GB/s"}


def rate(value):
    return [metric("all_reduce", value, "GB/s")]


@pytest.mark.parametrize(
    ("gpus", "gpu_count", "expected"),
    [(8, None, "fail"), (7, None, "skipped"), (7, 8, "fail"), (8, 4, "skipped")],
)
def test_a_floor_holds_for_the_number_of_gpus_it_was_measured_with(gpus, gpu_count, expected):
    check = make_check(**BANDWIDTH, applies={"gpu_count": [8]})
    (entry,) = judge_metric(check, rate(366), gpus=gpus, gpu_count=gpu_count)
    assert entry["verdict"] == expected


@pytest.mark.parametrize(
    ("gpus", "gpu_count", "expected"),
    [(1, None, "skipped"), (2, None, "missing"), (1, 8, "missing"), (8, 1, "skipped")],
)
def test_what_takes_two_gpus_is_not_asked_of_one(gpus, gpu_count, expected):
    check = make_check(**BANDWIDTH, applies={"gpus_at_least": 2})
    (entry,) = judge_metric(check, [], gpus=gpus, gpu_count=gpu_count)
    assert entry["verdict"] == expected


@pytest.mark.parametrize(
    ("fingerprints", "value", "expected"),
    [
        ({"nvls": "on"}, 366, "fail"),
        ({"nvls": "on"}, 480, "pass"),
        ({"nvls": "off"}, 366, "warn"),  # no setting says which floor holds: a warning, never dropped silently
        ({}, 480, "missing"),
    ],
)
def test_a_floor_holds_for_the_algorithm_it_was_measured_with(fingerprints, value, expected):
    check = make_check(**BANDWIDTH, applies={"fingerprints": {"nvls": ["on"]}})
    (entry,) = judge_metric(check, rate(value), fingerprints=fingerprints)
    assert entry["verdict"] == expected
    (entry,) = judge_metric(replace(check, severity="advisory"), rate(value), fingerprints=fingerprints)
    assert entry["verdict"] == {"fail": "warn", "warn": "skipped"}.get(expected, expected)


@pytest.mark.parametrize(
    ("asked", "fingerprints", "value", "expected"),
    [
        (["on"], {"nvls": "on"}, 366, "fail"),
        (["on"], {"nvls": "on"}, 480, "pass"),
        (["on"], {"nvls": "off"}, 480, "missing"),
        (["on"], {"nvls": "off"}, 366, "missing"),
        (["on"], {}, 480, "missing"),
        (["off"], {"nvls": "off"}, 366, "skipped"),
        (["off"], {"nvls": "on"}, 366, "skipped"),  # a node cannot choose a check either
        (["off"], {}, 366, "skipped"),
    ],
)
def test_which_floor_holds_is_for_the_settings_to_say_and_not_for_the_node(asked, fingerprints, value, expected):
    check = make_check(**BANDWIDTH, applies={"fingerprints": {"nvls": ["on"]}})
    setups = {"training": {"nvls": {"any": asked}}}
    (entry,) = judge_metric(check, rate(value), fingerprints=fingerprints, setups=setups)
    assert entry["verdict"] == expected


def test_the_workload_is_that_of_the_plan():
    check = make_check(**BANDWIDTH, applies={"workload": ["training"]})
    (entry,) = judge_metric(check, rate(366), workload="custom")
    assert entry["verdict"] == "fail"


def test_a_precision_of_the_data_sheet_is_no_excuse():
    """An H200 has fp8, whatever its node says; what the catalogue does not know is still excused."""
    said = {"left_out": {"fp8": "this chip has no fp8", "fp4": "this chip has no such product"}}
    for precision, severity in (("fp8", "required"), ("fp4", "advisory")):
        check = make_check(metric="error", kind="max", value=0, excused_by=[f"left_out.{precision}"])
        (entry,) = judge_metric(check, [], environment=said)
        assert (entry["verdict"], entry["severity"]) == ("missing", severity)


@pytest.mark.parametrize("sku", ["gaudi2", "gaudi3"])
def test_what_the_program_measures_on_no_chip_of_a_vendor_is_excused(sku):
    """Gaudi's data sheets have fp8, but diagnostics.matmul multiplies in bf16 alone there."""
    model = {"gaudi2": "HL-225", "gaudi3": "HL-325L"}[sku]
    check = make_check(stage="diagnostics", metric="error", kind="max", value=0, excused_by=["left_out.fp8"])
    run = make_run(stages=["facts", "diagnostics"])
    evidence = healthy(run, vendor="gaudi")
    for gpu in evidence.records["node-1"]["facts"]["environment"]["gpus"]:
        gpu["name"] = model
    said = {"left_out": {"fp8": "not measured on this accelerator"}}
    evidence.records["node-1"]["diagnostics"] = make_record(stage="diagnostics", environment=said)
    found = {entry["name"]: entry for entry in judge(run, evidence, [check])["nodes"][0]["checks"]}
    assert found["sku"]["verdict"] == "pass"
    assert (found["speed"]["verdict"], found["speed"]["severity"]) == ("missing", "advisory")


@pytest.mark.parametrize(
    ("ranks", "value", "expected", "node"),
    [(8, 480, "pass", "PASS"), (7, 460, "missing", "FAIL"), (7, 100, "missing", "FAIL"), (8, 100, "fail", "FAIL")],
)
def test_the_rank_count_is_checked_before_the_bandwidth(ranks, value, expected, node):
    """Seven of eight H200 are faster than the floor of eight."""
    count = make_check("ranks", metric="ranks", kind="equal", value_from="gpus")
    speed = make_check(**BANDWIDTH, requires=["ranks"])
    run = make_run(stages=["facts", "training"])
    evidence = healthy(run)
    evidence.records["node-1"]["training"] = make_record(metrics=[metric("ranks", ranks), *rate(value)])
    judged = judge(run, evidence, [speed, count])["nodes"][0]
    (entry,) = [entry for entry in judged["checks"] if entry["name"] == "speed"]
    assert (entry["verdict"], judged["verdict"]) == (expected, node)
    if expected == "missing":
        assert entry["reason"].startswith("judged only when ranks passes; ")


def test_a_requirement_without_evidence_withholds_too_and_a_skipped_one_does_not():
    speed = make_check(**BANDWIDTH, requires=["ranks"])
    run = make_run(stages=["facts", "training"])
    evidence = healthy(run)
    evidence.records["node-1"]["training"] = make_record(metrics=rate(480))
    for extra, expected in (({"value_from": "gpus"}, "missing"), ({"value_from": "gpu_count"}, "pass")):
        count = make_check("ranks", metric="ranks", kind="equal", **extra)
        node = judge(run, evidence, [count, speed])["nodes"][0]
        assert [entry["verdict"] for entry in node["checks"] if entry["name"] == "speed"] == [expected]


def test_the_number_of_gpus_is_what_was_declared_else_what_the_facts_found():
    check = make_check(metric="ranks", kind="equal", value_from="gpus")
    assert judge_metric(check, [metric("ranks", 8)])[0]["verdict"] == "pass"
    assert judge_metric(check, [metric("ranks", 8)], gpu_count=4)[0]["verdict"] == "fail"
    run = make_run(stages=["training"])
    evidence = healthy(run)
    node = judge(run, evidence, [check])["nodes"][0]
    assert [entry["verdict"] for entry in node["checks"] if entry["name"] == "speed"] == ["missing"]


def test_what_a_node_says_it_cannot_have_is_advice_and_shown():
    check = make_check(metric="xid", kind="max", value=0, excused_by=["telemetry.absent.kernel_log"])
    said = {"telemetry": {"absent": {"kernel_log": "not permitted"}}}
    (entry,) = judge_metric(check, [], environment=said)
    assert (entry["verdict"], entry["severity"]) == ("missing", "advisory")
    assert "not permitted" in entry["reason"]
    (entry,) = judge_metric(check, [])
    assert (entry["verdict"], entry["severity"]) == ("missing", "required")
    # An excuse excuses nothing that was seen.
    (entry,) = judge_metric(check, [metric("xid", 1)], environment=said)
    assert (entry["verdict"], entry["severity"]) == ("fail", "required")


@pytest.mark.parametrize(
    "environment", [{}, {"telemetry": []}, {"telemetry": {"absent": {"kernel_log": None}}}, {"telemetry": "x"}]
)
def test_no_excuse_is_read_into_an_environment_of_another_form(environment):
    check = make_check(metric="xid", kind="max", value=0, excused_by=["telemetry.absent.kernel_log"])
    (entry,) = judge_metric(check, [], environment=environment)
    assert entry["severity"] == "required"


def test_a_check_cannot_require_itself():
    with pytest.raises(criteria.CriteriaError, match="require itself"):
        make_check(**BANDWIDTH, requires=["speed"])


CHECKS = [
    make_check("ranks", metric="ranks", kind="equal", value_from="gpus"),
    make_check(**BANDWIDTH, requires=["ranks"], applies={"gpu_count": [8], "fingerprints": {"nvls": ["on"]}}),
    make_check("low", metric="all_reduce", value=300, unit="GB/s", requires=["ranks"], applies={"gpu_count": [8]}),
    make_check("xid", metric="xid", kind="max", value=0, excused_by=["absent.kernel_log"]),
    make_check("slow", metric="tflops", kind="outlier", peers="node", scope="gpu", max_below=0.05),
]


@settings(max_examples=75)
@given(st.data())
def test_less_evidence_never_accepts(data):
    draw = data.draw
    run = make_run(stages=["facts", "training"], gpu_count=draw(st.sampled_from([None, 8])))
    evidence = healthy(run, gpus=draw(st.sampled_from([2, 7, 8])))
    tflops = [metric("tflops", draw(st.sampled_from([750.0, 750.0, 600.0])), "TFLOP/s", f"gpu:{i}") for i in range(8)]
    evidence.records["node-1"]["training"] = make_record(
        metrics=[
            metric("ranks", draw(st.sampled_from([7, 8]))),
            metric("xid", draw(st.sampled_from([0, 0, 1]))),
            *rate(draw(st.sampled_from([100, 366, 480]))),
            *tflops,
        ],
        fingerprints={"nvls": draw(st.sampled_from(["on", "off"]))},
        environment={"absent": draw(st.sampled_from([{}, {}, {"kernel_log": "not permitted"}]))},
    )
    less = copy.deepcopy(evidence)
    record = less.records["node-1"][draw(st.sampled_from(["facts", "training"]))]
    part = draw(st.sampled_from(["metrics", "fingerprints", "environment", "one"]))
    if part == "one" and record["metrics"]:
        record["metrics"].pop(draw(st.integers(0, len(record["metrics"]) - 1)))
    elif part != "one":
        record[part] = type(record[part])()
    # What the node says of its kernel log is the one thing by which more evidence excuses: not a figure that was taken.
    excused = evidence.records["node-1"]["training"]["environment"]["absent"]
    if excused and part in ("metrics", "one"):
        return
    before, after = judge(run, evidence, CHECKS), judge(run, less, CHECKS)
    if before["verdict"] != "PASS":
        assert after["verdict"] != "PASS"
