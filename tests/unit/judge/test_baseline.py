"""Baselines: made from good nodes, held against later runs, compared with each other."""

import copy
import json
import random

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import (
    baseline,
    compare,
    criteria,
    make_baseline,
    verdict,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.peer_statistics import KNOWN, borrowed_deviation
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.subjects import subjects_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import summary_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit import builders
from tests.kit.builders import RUN_ID, TIME, facts_record, healthy, make_record, make_run, metric
from tests.kit.builders import check as make_check

NAME = "diagnostics_matmul_bf16_tflops"
SPREAD = "diagnostics_matmul_bf16_spread_ratio"
FIELDS = {
    "stage": "diagnostics", "metric": NAME, "kind": "baseline", "scope": "gpu", "unit": "TFLOP/s", "max_below": 0.05,
    "deviations": 4, "retry": True,
}  # fmt: skip
SLOWER = make_check("slower", **FIELDS)
FLOOR = make_check("floor", stage="diagnostics", metric=NAME, scope="gpu", unit="TFLOP/s", value=500)


def fleet(number=12, *, centre=670.0, slow=(), gpus=4, seed=1, torch="2.11"):
    """A run of nodes that differ by 0.5 %, of which ``slow`` are at half their speed; and its evidence."""
    draw = random.Random(seed)
    names = [f"node-{index + 1}" for index in range(number)]
    run = make_run(names, stages=["facts", "diagnostics"])
    evidence = healthy(run)
    for index, name in enumerate(names):
        rate = centre * draw.gauss(1, 0.005) * (0.5 if name in slow else 1)
        figures = [metric(NAME, rate * draw.gauss(1, 0.002), "TFLOP/s", f"gpu:{gpu}") for gpu in range(gpus)]
        figures += [metric(SPREAD, 0.004, "ratio", f"gpu:{gpu}") for gpu in range(gpus)]
        figures += [metric("diagnostics_all_reduce_bus_bytes_per_second", 366e9 * draw.gauss(1, 0.001), "bytes/s")]
        figures += [metric("diagnostics_links_count", 12), metric("gpu_temperature_max_celsius", 65, "celsius")]
        evidence.records[name] = {
            "facts": facts_record(name, gpus=gpus),
            "diagnostics": make_record(name, "diagnostics", metrics=figures, environment={"torch": torch}),
        }
        for gpu in evidence.records[name]["facts"]["environment"]["gpus"]:
            gpu.update(name="NVIDIA H200", serial=f"{index}-{gpu['index']}")
    return run, evidence


def judge(run, evidence, *checks, against=None):
    report = verdict.judge(run, evidence, list(checks), judged_at=TIME, baseline=against)
    schemas.validate("report", report, what="report")
    return report


def made(run, evidence, **fields):
    report = judge(run, evidence, FLOOR)
    options = {"name": "site", "version": 1, "created_at": TIME, **fields}
    return baseline.Baseline(make_baseline.make(report, **options))


def entries(report, name="slower"):
    return {
        (node["name"], entry["part"], entry["verdict"])
        for node in report["nodes"]
        for entry in node["checks"]
        if entry["name"] == name and entry["verdict"] != "pass"
    }


def figure(it, name=NAME):
    (found,) = [one for one in it.document["figures"] if one["metric"] == name]
    return found


def test_a_baseline_is_where_the_good_nodes_lie():
    it = made(*fleet())
    one = figure(it)
    assert one["median"] == pytest.approx(670, rel=0.005)
    assert one["deviation"] / one["median"] == pytest.approx(0.005, rel=0.6)
    assert (one["nodes"], one["parts"], one["sku"], one["gpus"]) == (12, 48, "h200", 4)
    assert one["between_nodes_ratio"] == pytest.approx(0.005, rel=0.6)
    assert one["within_nodes_ratio"] == pytest.approx(0.002, rel=0.6)
    assert one["repeats_ratio"] == 0.004
    assert figure(it, "diagnostics_all_reduce_bus_bytes_per_second")["within_nodes_ratio"] is None
    assert {one["metric"] for one in it.document["figures"]} == {NAME, "diagnostics_all_reduce_bus_bytes_per_second"}
    (line, *_) = [line for line in compare.repeatability(it.document) if NAME in line]
    assert "48 parts of 12 nodes; spread of nodes 0." in line
    assert "repeats 0.4 %" in line


def test_rejected_nodes_do_not_go_in():
    clean = made(*fleet())
    it = made(*fleet(slow=("node-2", "node-3", "node-4", "node-5", "node-6")))
    assert it.document["made_from"]["left_out"] == {"FAIL": 5}
    assert it.document["made_from"]["nodes"] == 7
    assert figure(it)["median"] == pytest.approx(figure(clean)["median"], rel=0.005)


def test_a_bad_part_of_an_accepted_node_does_not_shift_it():
    run, evidence = fleet()
    for node in ("node-1", "node-2", "node-3"):
        evidence.records[node]["diagnostics"]["metrics"][0]["value"] = 520.0  # over the floor, far from the others
    it = made(run, evidence)
    assert figure(it)["far_off"] == 3
    assert figure(it)["low"] > 640
    assert figure(it)["median"] == pytest.approx(670, rel=0.005)


@pytest.mark.parametrize(("nodes", "slow", "said"), [(3, ("node-1", "node-2", "node-3"), "no node"), (1, (), None)])
def test_a_run_without_good_nodes_makes_no_baseline(nodes, slow, said):
    run, evidence = fleet(nodes, slow=slow)
    if said is None:
        assert figure(made(run, evidence))["between_nodes_ratio"] is None
        return
    with pytest.raises(SettingError, match=said):
        made(run, evidence)


def test_one_gpu_alone_makes_no_baseline():
    with pytest.raises(SettingError, match="three parts"):
        made(*fleet(1, gpus=1))


def test_two_parts_that_are_left_of_three_make_no_figure():
    run, evidence = fleet(3, gpus=1)
    evidence.records["node-1"]["diagnostics"]["metrics"][0]["value"] = 520.0
    assert NAME not in {one["metric"] for one in made(run, evidence).document["figures"]}


def test_a_fleet_that_became_slower_as_a_whole_is_found():
    """Beside each other they are all alike; only the baseline tells."""
    it = made(*fleet())
    run, evidence = fleet(centre=620.0, seed=2, torch="2.12")
    report = judge(run, evidence, FLOOR, SLOWER, against=it)
    assert {one[0] for one in entries(report)} == set(run["nodes"])
    reason = report["nodes"][0]["checks"][-1]["reason"]
    assert "TFLOP/s of the baseline site version 1" in reason
    assert entries(judge(*fleet(seed=3), SLOWER, against=it)) == set()


def test_one_slow_gpu_is_named():
    run, evidence = fleet(seed=2)
    evidence.records["node-3"]["diagnostics"]["metrics"][1]["value"] *= 0.9
    assert entries(judge(run, evidence, SLOWER, against=made(*fleet()))) == {("node-3", "gpu:1", "fail")}


def test_without_a_baseline_or_of_another_kind_nothing_is_held():
    run, evidence = fleet(3, centre=300.0)
    assert {one[2] for one in entries(judge(run, evidence, SLOWER))} == {"skipped"}
    it = made(*fleet())
    for node in run["nodes"]:
        for gpu in evidence.records[node]["facts"]["environment"]["gpus"]:
            gpu["name"] = "NVIDIA B200"
    assert {one[2] for one in entries(judge(run, evidence, SLOWER, against=it))} == {"skipped"}


@pytest.mark.parametrize("lost", ["figure", "record", "number", "model", "setup"])
def test_missing_evidence_is_not_excused_by_a_baseline(lost):
    run, evidence = fleet(5)
    records = evidence.records["node-2"]
    check = SLOWER
    if lost == "figure":
        records["diagnostics"]["metrics"] = records["diagnostics"]["metrics"][1:]
    elif lost == "record":
        del records["diagnostics"]
    elif lost == "number":
        records["diagnostics"]["metrics"][0]["value"] = None
    elif lost == "model":
        records["facts"]["environment"].pop("gpus")
    else:
        check = make_check("slower", **FIELDS, group_by=["torch"])
        records["diagnostics"]["environment"].clear()
    report = judge(run, evidence, check, against=made(*fleet()))
    assert {one[2] for one in entries(report) if one[0] == "node-2"} == {"fail" if lost == "number" else "missing"}
    assert report["nodes"][1]["verdict"] != "PASS"


def test_units_of_baseline_and_figure_are_converted():
    run, evidence = fleet(5)
    for one in evidence.records["node-2"]["diagnostics"]["metrics"][:4]:
        one.update(value=one["value"] * 1000, unit="GFLOP/s")
    assert entries(judge(run, evidence, SLOWER, against=made(*fleet()))) == set()


def test_a_diff_tells_what_moved_and_whether_that_is_clear():
    before = made(*fleet())
    assert compare.diff(before, before) == []
    after = made(*fleet(centre=630.0, seed=2, torch="2.12"), version=2)
    (change,) = compare.diff(before, after)
    assert change.is_clear
    (line,) = compare.lines([change])
    assert "fell by 6" in line
    assert "noise" not in line
    slightly = made(*fleet(centre=674.5, seed=5))
    assert {one.is_clear for one in compare.diff(before, slightly)} <= {False}


def test_a_diff_tells_what_is_gone_and_new():
    before, after = made(*fleet()), made(*fleet())
    document = copy.deepcopy(dict(after.document))
    document["figures"] = document["figures"][1:]
    (gone,) = compare.diff(before, baseline.Baseline(document))
    (new,) = compare.diff(baseline.Baseline(document), before)
    assert compare.line_of(gone).startswith("gone: ")
    assert compare.line_of(new).startswith("new: ")


def test_versions_follow_each_other(tmp_path):
    assert baseline.next_version(tmp_path, "site") == 1
    for name in ("site-v1.json", "site-v9.json", "site-v10.json", "site-vx.json", "other-v30.json"):
        (tmp_path / name).write_text("{}")
    assert baseline.next_version(tmp_path, "site") == 11


def test_what_is_written_is_read_again(tmp_path):
    it = made(*fleet())
    path = tmp_path / baseline.file_name(it.document)
    path.write_text(json.dumps(it.document))
    assert baseline.read(path).document == it.document
    assert it.title == "site version 1"


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "{", '{"schema": "gpuval.baseline/1"}', "NaN", "[" * 100_000, '{"a": 1}']
)
def test_a_file_that_is_no_baseline_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(SettingError, match="not a baseline"):
        baseline.read(path)


def test_a_file_that_is_not_there_says_how_to_make_one(tmp_path):
    with pytest.raises(SettingError, match="make baseline"):
        baseline.read(tmp_path / "none.json")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_figures_of_a_baseline_are_numbers(tmp_path, number):
    text = json.dumps(made(*fleet()).document)
    median = json.dumps(figure(made(*fleet()))["median"])
    path = tmp_path / "x.json"
    path.write_text(text.replace(f'"median": {median}', f'"median": {number}', 1))
    with pytest.raises(SettingError):
        baseline.read(path)


@pytest.mark.parametrize("fields", [{"unit": None}, {"max_below": None}])
def test_a_check_says_its_unit_and_margin(fields):
    entry = {"name": "x", "severity": "required", "source": "s", "remedy": "r", **FIELDS, **fields}
    entry = {key: value for key, value in entry.items() if value is not None}
    with pytest.raises(criteria.CriteriaError):
        criteria.parse({"schema": "gpuval.criteria/1", "checks": [entry]})


@settings(max_examples=60)
@given(st.permutations(range(6)))
def test_the_order_of_nodes_is_irrelevant(order):
    run, evidence = fleet(6)
    names = list(run["nodes"])
    shuffled = {**run, "nodes": {names[index]: run["nodes"][names[index]] for index in order}}
    assert made(shuffled, evidence).document == made(run, evidence).document


def test_a_node_that_tells_a_part_often_has_one_voice():
    run, evidence = fleet()
    honest = figure(made(run, evidence))
    told = evidence.records["node-3"]["diagnostics"]["metrics"]
    told += [metric(NAME, 900.0, "TFLOP/s", "gpu:0") for _ in range(60)]
    told += [metric(NAME, 900.0, "TFLOP/s", f"gpu:{number}") for number in range(4, 400)]
    one = figure(made(run, evidence))
    assert one["median"] == pytest.approx(honest["median"], rel=0.002)
    assert one["high"] < 700


COPY = "diagnostics_host_to_device_bytes_per_second"
SHIPPED = {one.name: one for one in builders.SHIPPED}
COPIES = [SHIPPED[f"diagnostics_host_to_device_{name}"] for name in ("fleet", "fleet_neighbours", "baseline")]


def copies(places, *, scale=1.0, seed=1, number=12):
    """Nodes whose GPUs copy as fast as their places let them."""
    draw = random.Random(seed)
    run, evidence = fleet(number, gpus=8)
    for name in run["nodes"]:
        node = draw.gauss(1, 0.003)
        for gpu, place in enumerate(places):
            rate = 55e9 * place * scale * node * draw.gauss(1, 0.001)
            evidence.records[name]["diagnostics"]["metrics"] += [
                metric(COPY, rate, "bytes/s", f"gpu:{gpu}"),
                metric("diagnostics_host_to_device_spread_ratio", 0.003, "ratio", f"gpu:{gpu}"),
            ]
    return run, evidence


@settings(max_examples=15)
@given(places=st.lists(st.sampled_from([1.0, 0.918, 0.75, 0.5]), min_size=8, max_size=8), seed=st.integers(0, 99))
def test_a_run_held_against_its_own_baseline_fails_no_node(places, seed):
    run, evidence = copies(places, seed=seed)
    it = made(run, evidence)
    report = judge(run, evidence, FLOOR, *COPIES, against=it)
    assert report["counts"]["PASS"] == 12


@pytest.mark.parametrize("slow", [3, 4])
def test_copies_of_two_kinds_that_are_all_slower_are_found(slow):
    places = [1.0] * (8 - slow) + [0.918] * slow
    it = made(*copies(places))
    report = judge(*copies(places, scale=0.75), FLOOR, *COPIES, against=it)
    assert report["counts"]["FAIL"] == 12
    assert {one[2] for one in entries(report, "diagnostics_host_to_device_baseline")} == {"fail"}


def test_links_of_two_kinds_are_held_against_no_baseline():
    assert SHIPPED["diagnostics_peer_baseline"].applies.sku == SHIPPED["diagnostics_peer_fleet"].applies.sku


@pytest.mark.parametrize(("nodes", "verdicts"), [(3, {"PASS"}), (7, {"PASS"}), (8, {"FAIL"})])
def test_a_baseline_of_few_nodes_is_advice(nodes, verdicts):
    it = made(*fleet(nodes))
    report = judge(*fleet(10, centre=500.0 * 1.1), SLOWER, FLOOR, against=it)
    assert {node["verdict"] for node in report["nodes"]} == verdicts
    reasons = [one["reason"] for one in report["nodes"][0]["checks"] if one["name"] == "slower"]
    assert any(f"advice, since it is of {nodes} nodes" in reason for reason in reasons) == (nodes < 8)


def test_a_node_does_not_escape_its_baseline_by_naming_another_setup():
    check = make_check("slower", **FIELDS, group_by=["fingerprints.training_setup"])
    run, evidence = fleet()
    for records in evidence.records.values():
        records["diagnostics"]["fingerprints"] = {"training_setup": "large"}
    accepted = made(run, evidence)
    run, evidence = fleet(1, slow=["node-1"])
    for setup, asked, expected in (
        ("large", ["large"], "fail"),
        ("small", ["large"], "missing"),
        ("small", ["small"], "skipped"),
        ("small", None, "skipped"),
    ):
        run["setups"] = {"diagnostics": {"training_setup": {"any": asked}}} if asked else {}
        evidence.records["node-1"]["diagnostics"]["fingerprints"] = {"training_setup": setup}
        (node,) = judge(run, evidence, check, against=accepted)["nodes"]
        assert {one["verdict"] for one in node["checks"] if one["name"] == "slower"} == {expected}, (setup, asked)


def spreads_of(run, evidence, **fields):
    return made(run, evidence, spreads_only=True, **fields)


def test_spreads_hold_no_centre_and_no_floor():
    it = spreads_of(*fleet())
    (sku,) = it.document["spreads"]
    assert (sku["sku"], sku["nodes"], [*sku["part_spreads"]]) == ("h200", 12, [NAME])
    assert sku["part_spreads"][NAME] == {"value": pytest.approx(0.002, rel=0.6), "revision": 1}
    assert it.document["figures"] == [] and it.document["made_from"]["run_id"] == RUN_ID
    assert "670" not in json.dumps(it.document["spreads"])


def test_spreads_of_nodes_without_three_parts_of_a_kind_are_refused():
    with pytest.raises(SettingError, match="three parts of a kind"):
        spreads_of(*fleet(gpus=2))


def test_with_spreads_of_another_run_one_slow_part_of_a_lone_node_fails_and_the_run_is_partial():
    lent = spreads_of(*fleet())
    run, evidence = fleet(1, gpus=8, seed=3)
    fields = {"stage": "diagnostics", "metric": NAME, "kind": "outlier", "scope": "gpu", "unit": "TFLOP/s"}
    beside = make_check("beside", **fields, peers="fleet", relative_to="node", max_below=0.03, retry=True)
    good = judge(run, evidence, FLOOR, beside, against=lent)
    assert (good["verdict"], good["run"]["narrowed_by"]) == ("PARTIAL", ["spreads"])
    assert "Narrowed by spreads of another run: PARTIAL at best" in summary_lines(good)
    evidence.records["node-1"]["diagnostics"]["metrics"][2]["value"] *= 0.9
    assert entries(judge(run, evidence, FLOOR, beside), "beside") == {("node-1", "gpu:2", "warn")}
    assert ("node-1", "gpu:2", "fail") in entries(judge(run, evidence, FLOOR, beside, against=lent), "beside")


def test_spreads_of_few_nodes_are_taken_wider_and_never_narrower_than_those_of_the_catalogue():
    lent = spreads_of(*fleet(4))
    value = lent.document["spreads"][0]["part_spreads"][NAME]["value"]
    run, evidence = fleet(1)
    (subject,) = subjects_of(run, evidence).values()
    subject.known_spreads = {(NAME, 1): 0.0001, ("other", 1): 0.5}
    baseline.lend_spreads(lent, [subject])
    assert subject.known_spreads == {(NAME, 1): borrowed_deviation(value, 4), ("other", 1): 0.5}
    subject.known_spreads = {(NAME, 1): 0.3}
    baseline.lend_spreads(lent, [subject])
    assert subject.known_spreads == {(NAME, 1): 0.3}


@pytest.mark.parametrize(("nodes", "lent"), [(12, True), (7, False)])
def test_a_baseline_of_enough_nodes_lends_its_spreads_too(nodes, lent):
    run, evidence = fleet(1)
    (subject,) = subjects_of(run, evidence).values()
    subject.known_spreads = {}
    baseline.lend_spreads(made(*fleet(nodes)), [subject])
    of_calibration = spreads_of(*fleet(nodes)).document["spreads"][0]["part_spreads"][NAME]["value"]
    assert subject.known_spreads == ({(NAME, 1): borrowed_deviation(of_calibration, nodes)} if lent else {})


def test_a_borrowed_spread_reaches_as_far_as_student_by_its_count_and_further_where_sites_differ():
    """Quantiles of Student's t of 1 in 100,000, over that of normal noise, 4.265."""
    for count, quantile in ((4, 23.33), (8, 8.91), (10, 7.53), (32, 5.0)):
        assert KNOWN * borrowed_deviation(1, count, 0) == pytest.approx(quantile, rel=0.11)
    assert borrowed_deviation(0.01, 10_000, 0) == pytest.approx(0.01, rel=0.01)
    assert borrowed_deviation(0.01, 10_000) == pytest.approx(0.01 * 2**0.5, rel=0.01)
    assert borrowed_deviation(0.01) == borrowed_deviation(0.01, 4, 0.01)


def test_spreads_never_judge_the_run_that_they_are_of(tmp_path):
    path = tmp_path / "site-v1.json"
    path.write_text(json.dumps(spreads_of(*fleet()).document))
    assert baseline.read(path, "another-run").document["spreads"]
    with pytest.raises(
        SettingError, match=f"spreads of run {RUN_ID}, which they cannot judge: leave out gpuval_baseline"
    ):
        baseline.read(path, RUN_ID)
