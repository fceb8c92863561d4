"""Figures of one name and two definitions: limits, peers and baselines hold for their own revision alone."""

import copy

import pytest
from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.laps import median_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import baseline, make_baseline, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.peer_groups import PeerHistory

from tests.kit.builders import TIME, facts_record, healthy, make_record, make_run, metric
from tests.kit.builders import check as make_check

NAME = "diagnostics_matmul_bf16_tflops"
MEDIAN = median_of(NAME)
GPU = {"stage": "diagnostics", "metric": NAME, "scope": "gpu", "unit": "TFLOP/s", "retry": True}
FLOOR = make_check("floor", kind="min", value=600, **GPU)
FLOOR_OF_SPEED = make_check("speed_floor", kind="min", value=600, revision=2, **GPU)
PEERS = make_check(
    "peers", kind="outlier", peers="fleet", max_below=0.03, deviations=4.5, repeats=8,
    spread_from="diagnostics_matmul_bf16_spread_ratio", **GPU,
)  # fmt: skip
NEIGHBOURS = make_check("neighbours", kind="outlier", peers="fleet", relative_to="node", max_below=0.03, **GPU)
BASELINE = make_check("baseline", kind="baseline", max_below=0.05, deviations=4, **GPU)


def speeds(speed, median, gpus=8, slow=None, uncertainty=0.001):
    """Figures of revision 2 with the medians beside them; with ``slow`` that of one GPU."""
    figures = []
    for gpu in range(gpus):
        own = (slow if slow is not None and gpu == 3 else speed) * (1 + 0.0001 * gpu)
        figures += [
            {**metric(NAME, own, "TFLOP/s", f"gpu:{gpu}"), "revision": 2},
            metric(MEDIAN, median, "TFLOP/s", f"gpu:{gpu}"),
            metric("diagnostics_matmul_bf16_spread_ratio", 0.004, "ratio", f"gpu:{gpu}"),
        ]
        if uncertainty is not None:
            figures += [metric("diagnostics_matmul_bf16_uncertainty_ratio", uncertainty, "ratio", f"gpu:{gpu}")]
    return figures


def medians(value, gpus=8):
    """Figures of revision 1."""
    return [
        figure
        for gpu in range(gpus)
        for figure in (
            metric(NAME, value * (1 + 0.0001 * gpu), "TFLOP/s", f"gpu:{gpu}"),
            metric("diagnostics_matmul_bf16_spread_ratio", 0.004, "ratio", f"gpu:{gpu}"),
        )
    ]


def fleet(*figures_of_nodes):
    names = [f"node-{number + 1}" for number in range(len(figures_of_nodes))]
    run = make_run(names, stages=["facts", "diagnostics"])
    evidence = healthy(run)
    for number, (name, figures) in enumerate(zip(names, figures_of_nodes, strict=True)):
        unlike = [{**one, "value": one["value"] and one["value"] * (1 + 0.0003 * number)} for one in figures]
        evidence.records[name] = {
            "facts": facts_record(name),
            "diagnostics": make_record(name, "diagnostics", metrics=unlike, environment={"torch": "2.11"}),
        }
        for gpu in evidence.records[name]["facts"]["environment"]["gpus"]:
            gpu.update(name="NVIDIA H200", serial=f"{number}-{gpu['index']}")
    return run, evidence


def judged(fleet, *checks, **more):
    return verdict.judge(*fleet, list(checks), judged_at=TIME, **more)


def entries(report, name):
    return [
        (node["name"], entry["part"], entry["verdict"])
        for node in report["nodes"]
        for entry in node["checks"]
        if entry["name"] == name
    ]


def of_one(check, figures):
    return [one for one in judged(fleet(figures), check)["nodes"][0]["checks"] if one["name"] == check.name][:1]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("diagnostics_matmul_bf16_tflops", "diagnostics_matmul_bf16_median_tflops"),
        ("diagnostics_memory_bytes_per_second", "diagnostics_memory_median_bytes_per_second"),
        ("gang_all_reduce_bus_bytes_per_second", "gang_all_reduce_bus_median_bytes_per_second"),
        ("diagnostics_overlap_ratio", "diagnostics_overlap_median_ratio"),
        ("odd", "odd_median"),
    ],
)
def test_the_unit_stays_last_in_the_name_of_a_median(name, expected):
    assert median_of(name) == expected


@pytest.mark.parametrize(
    ("check", "figures", "verdict_", "value"),
    [
        (FLOOR, medians(590), "fail", 590),
        (FLOOR, speeds(500, 650), "pass", 650),
        (FLOOR, speeds(650, 590), "fail", 590),
        (FLOOR_OF_SPEED, speeds(500, 650), "fail", 500),
        (FLOOR_OF_SPEED, speeds(650, 590), "pass", 650),
        (FLOOR_OF_SPEED, medians(650), "missing", None),
    ],
)
def test_a_limit_is_held_against_the_figure_of_its_revision(check, figures, verdict_, value):
    (entry,) = of_one(check, figures)
    assert (entry["verdict"], entry["value"]) == (verdict_, value)
    if verdict_ == "missing":
        assert "of revision 2" in entry["reason"]
    elif "revision" in figures[0] and check is FLOOR:
        assert MEDIAN in entry["reason"]


def test_a_speed_without_its_median_is_no_evidence_for_a_limit_of_medians():
    figures = [one for one in speeds(650, 650) if one["name"] != MEDIAN]
    (entry,) = of_one(FLOOR, figures)
    assert entry["verdict"] == "missing" and f"{NAME} of revision 1" in entry["reason"]


def test_what_is_lost_now_and_then_fails_beside_the_peers_although_the_median_is_healthy():
    good = [speeds(660, 664) for _ in range(11)]
    report = judged(fleet(*good, speeds(660, 664, slow=600)), PEERS, NEIGHBOURS, FLOOR)
    for name in ("peers", "neighbours"):
        assert [one for one in entries(report, name) if one[2] == "fail"] == [("node-12", "gpu:3", "fail")]
    assert {one[2] for one in entries(report, "floor")} == {"pass"}


def test_few_speeds_among_medians_are_compared_by_the_medians_beside_them():
    others = [medians(680) for _ in range(9)]
    report = judged(fleet(*others, speeds(640, 681), speeds(680, 640)), PEERS)
    assert {(node, verdict_) for node, _, verdict_ in entries(report, "peers")} == {
        *((f"node-{number}", "pass") for number in range(1, 11)),
        ("node-11", "fail"),
    }


def test_few_medians_among_speeds_are_compared_with_medians_and_speeds_with_speeds():
    """By its median the node that loses time in bursts is a good peer."""
    others = [speeds(660, 680) for _ in range(9)]
    report = judged(fleet(*others, speeds(600, 680), medians(680), medians(640)), PEERS)
    assert {(node, verdict_) for node, _, verdict_ in entries(report, "peers")} == {
        *((f"node-{number}", "pass") for number in (*range(1, 10), 11)),
        ("node-10", "fail"),
        ("node-12", "fail"),
    }


def test_revisions_of_a_fleet_that_are_each_too_few_are_compared_by_medians():
    figures = [speeds(660, 680) for _ in range(5)] + [medians(680) for _ in range(5)]
    report = judged(fleet(*figures, medians(640)), PEERS)
    assert [node for node, _, verdict_ in entries(report, "peers") if verdict_ != "pass"] == ["node-11"]


def test_few_nodes_without_medians_beside_their_speeds_are_not_compared_and_the_report_says_so():
    bare = [one for one in speeds(660, 664) if one["name"] != MEDIAN]
    slower = [medians(680) for _ in range(9)]
    report = judged(fleet(*slower, bare, bare), PEERS)
    by_verdict = {(node, verdict_) for node, _, verdict_ in entries(report, "peers")}
    assert by_verdict == {(f"node-{number}", "pass") for number in range(1, 10)} | {
        ("node-10", "missing"),
        ("node-11", "missing"),
    }
    reasons = {one["reason"] for node in report["nodes"] for one in node["checks"] if one["verdict"] == "missing"}
    assert "its definition is revision 2, on fewer than 8 nodes, while 9 nodes have revision 1" in str(reasons)


def test_an_earlier_group_of_medians_is_no_peer_of_speeds():
    history = PeerHistory()
    judged(fleet(*(medians(700) for _ in range(12))), PEERS, history=history)
    again = PeerHistory.of(history.documents())
    report = judged(fleet(*(speeds(660, 664) for _ in range(9))), PEERS, history=again)
    assert {one[2] for one in entries(report, "peers")} == {"pass"}, "12 nodes were faster by the median"


@pytest.mark.parametrize(("uncertainty", "verdict_"), [(0.02, "pass"), (None, "fail"), (0.001, "fail")])
def test_the_error_of_a_speed_is_the_least_deviation(uncertainty, verdict_):
    good = [speeds(660, 664, uncertainty=uncertainty) for _ in range(11)]
    report = judged(fleet(*good, speeds(660, 664, slow=620, uncertainty=uncertainty)), PEERS)
    found = {one[2] for one in entries(report, "peers") if one[0] == "node-12"}
    assert found == {verdict_}


def made(run, evidence):
    report = judged((run, evidence))
    return baseline.Baseline(make_baseline.make(report, name="b", version=1, created_at=TIME))


def test_a_baseline_of_medians_is_held_against_medians():
    known = made(*fleet(*(medians(664) for _ in range(9))))
    report = judged(fleet(speeds(500, 664), speeds(664, 600)), BASELINE, baseline=known)
    assert {(node, verdict_) for node, _, verdict_ in entries(report, "baseline")} == {
        ("node-1", "pass"),
        ("node-2", "fail"),
    }


def test_a_baseline_of_speeds_is_held_against_speeds_and_not_against_medians():
    known = made(*fleet(*(speeds(664, 670) for _ in range(9))))
    report = judged(fleet(speeds(600, 670), medians(664)), BASELINE, baseline=known)
    assert {(node, verdict_) for node, _, verdict_ in entries(report, "baseline")} == {
        ("node-1", "fail"),
        ("node-2", "skipped"),
    }


def test_known_figures_of_the_sku_are_of_their_own_revision():
    """659 TFLOP/s is the speed of healthy H200: a node that is alone is held against it by its own."""
    slow = judged(fleet(speeds(500, 664)), PEERS)
    (warning,) = [one for one in slow["nodes"][0]["checks"] if one["name"] == "peers"]
    assert warning["verdict"] == "warn" and "659 TFLOP/s that healthy nodes" in warning["reason"]
    assert {one[2] for one in entries(judged(fleet(speeds(659, 500)), PEERS), "peers")} == {"skipped"}


def test_a_part_far_off_by_the_median_fails_in_a_single_node_where_the_spread_is_known():
    name, unit = "diagnostics_memory_bytes_per_second", "bytes/s"
    check = make_check(
        "memory", stage="diagnostics", metric=name, kind="outlier", peers="fleet", relative_to="node", scope="gpu",
        unit=unit, max_below=0.03, retry=True,
    )  # fmt: skip
    figures = []
    for gpu in range(8):
        median = 4.0e12 if gpu == 3 else 4.285e12 * (1 + 1e-4 * gpu)
        figures += [{**metric(name, median, unit, f"gpu:{gpu}"), "revision": 2}]
        figures += [metric(median_of(name), median, unit, f"gpu:{gpu}")]
    assert ("node-1", "gpu:3", "fail") in entries(judged(fleet(figures), check), "memory")


def test_a_report_keeps_the_revision_of_its_figures():
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file

    report = judged(fleet(*(speeds(660, 664) for _ in range(2))))
    figures = copy.deepcopy(report["nodes"][0]["metrics"]["diagnostics"])
    assert {one.get("revision", 1) for one in figures if one["name"] == NAME} == {2}
    (node,) = list(report_file.parts(report)[1])[:1]
    assert report_file.unpack_node(node, {})["metrics"]["diagnostics"] == figures
