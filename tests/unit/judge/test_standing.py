"""A part beside those of all nodes of its kind."""

import copy
import json
import random
import statistics

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.peer_groups import PeerHistory
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.builders import TIME, facts_record, healthy, judge, make_record, make_run, metric
from tests.kit.builders import check as make_check

NAME = "diagnostics_matmul_bf16_tflops"
SPREAD = "diagnostics_matmul_bf16_spread_ratio"
FIELDS = {
    "stage": "diagnostics", "metric": NAME, "kind": "outlier", "peers": "fleet", "scope": "gpu", "unit": "TFLOP/s",
    "max_below": 0.035, "deviations": 4, "min_peers": 4, "retry": True,
}  # fmt: skip
SLOW = make_check("slow", **FIELDS)
BESIDE = make_check("beside", **{**FIELDS, "relative_to": "node", "max_below": 0.03})
KNOWN = make_check("known", **{**FIELDS, "spread_from": SPREAD, "repeats": 8})
SOFTWARE = make_check("software", **{**FIELDS, "alike": ["torch"], "group_by": ["fingerprints.setup"]})
NODE = make_check("node", **{**FIELDS, "metric": "diagnostics_all_reduce", "scope": "node", "unit": "GB/s"})


def rates(number, gpus=8, centre=670.0, cv=0.005, seed=1):
    """Of so many nodes, the figures of their GPUs: nodes differ, and so do repeats."""
    draw = random.Random(seed)
    nodes = [centre * draw.gauss(1, cv) for _ in range(number)]
    return [[rate * draw.gauss(1, 0.001) for _ in range(gpus)] for rate in nodes]


def diagnostics(name, figures, *, spread=0.003, torch="2.11", setup="a", **fields):
    told = [metric(NAME, value, "TFLOP/s", f"gpu:{index}") for index, value in enumerate(figures)]
    told += [metric(SPREAD, spread, "ratio", f"gpu:{index}") for index in range(len(figures))]
    told.append(metric("diagnostics_all_reduce", 366.0, "GB/s"))
    return make_record(
        name, "diagnostics", metrics=told, environment={"torch": torch}, fingerprints={"setup": setup}, **fields
    )


def fleet(values, *, gpus=8, models=None, **fields):
    """A run of as many nodes as there are lists of figures, and its evidence."""
    names = [f"node-{number + 1}" for number in range(len(values))]
    run = make_run(names, stages=["facts", "diagnostics"])
    evidence = healthy(run)
    for number, (name, figures) in enumerate(zip(names, values, strict=True)):
        evidence.records[name] = {
            "facts": facts_record(name, gpus=gpus),
            "diagnostics": diagnostics(name, figures, **fields),
        }
        for gpu in evidence.records[name]["facts"]["environment"]["gpus"]:
            gpu["name"] = (models or {}).get(name, "NVIDIA H200")
            gpu["serial"] = f"{number}-{gpu['index']}"
    return run, evidence


def entries(report, name="slow"):
    return {
        node["name"]: [(entry["part"], entry["verdict"]) for entry in node["checks"] if entry["name"] == name]
        for node in report["nodes"]
    }


def not_passed(report, name="slow"):
    """What is not accepted; a warning decides nothing."""
    found = entries(report, name).items()
    return {(node, *one) for node, its in found for one in its if one[1] not in ("pass", "warn")}


def told(run, evidence, *checks):
    report = judge(run, evidence, list(checks))
    schemas.validate("report", report, what="report")
    return report


def test_the_slow_gpu_of_a_fleet_is_named_with_what_it_is_compared_with():
    values = rates(20)
    values[6][3] *= 0.93
    report = told(*fleet(values), SLOW)
    assert not_passed(report) == {("node-7", "gpu:3", "fail")}
    (entry,) = [entry for entry in report["nodes"][6]["checks"] if entry["name"] == "slow"]
    assert "% under the median 67" in entry["reason"]
    assert "of 20 nodes (h200 8 GPUs diagnostics; spread 0." in entry["reason"]
    (of_fleet,) = (check for check in report["fleet"]["checks"] if check["name"] == "slow")
    assert (of_fleet["verdict"], of_fleet["part"]) == ("fail", "fleet")
    assert "far off: node-7 gpu:3" in of_fleet["reason"]


def test_a_slow_node_whose_gpus_agree_is_found_only_beside_the_fleet():
    values = rates(20)
    values[4] = [value * 0.94 for value in values[4]]
    report = told(*fleet(values), SLOW, BESIDE)
    assert not_passed(report) == {("node-5", "node", "fail")}
    assert "8 of 8 gpus alike" in report["nodes"][4]["checks"][-2]["reason"]
    assert not_passed(report, "beside") == set()


def test_a_slow_gpu_on_nodes_that_differ_is_found_beside_its_neighbours():
    """5 % are less than three of what these nodes differ by; within a node they are far more than the noise."""
    values = rates(60, cv=0.02)
    values[9][2] *= 0.95
    report = told(*fleet(values), SLOW, BESIDE)
    assert not_passed(report, "beside") == {("node-10", "gpu:2", "fail")}
    assert not_passed(report) == set()


@pytest.mark.parametrize("nodes", [24, 100])
@pytest.mark.parametrize("effect", [0.06, 0.1, 0.5])
def test_a_bad_rack_of_eight_is_accused_and_does_not_shift_the_centre(nodes, effect):
    values = rates(nodes, seed=nodes)
    centre = statistics.median(value for node in values for value in node)
    for node in values[:8]:
        node[:] = [value * (1 - effect) for value in node]
    report = told(*fleet(values), SLOW)
    assert not_passed(report) == {(f"node-{number + 1}", "node", "fail") for number in range(8)}
    reason = report["nodes"][0]["checks"][-1]["reason"]
    told_centre = float(reason.split("the median ")[1].split(" ")[0])
    assert abs(told_centre / centre - 1) < 0.005  # one deviation between healthy nodes


def test_what_scatters_anyway_accuses_no_node():
    assert not_passed(told(*fleet(rates(40, cv=0.05)), SLOW)) == set()


def test_repeats_that_scatter_are_the_least_spread():
    """All but one agree by chance; their own repeats say that such a difference means nothing."""
    values = [[670.0] * 8 for _ in range(10)]
    values[3][1] *= 0.95
    assert not_passed(told(*fleet(values, spread=0.003), KNOWN), "known") == {("node-4", "gpu:1", "fail")}
    assert not_passed(told(*fleet(values, spread=0.03), KNOWN), "known") == set()  # 4 x 1.25 x 3 % / root of 8 = 5.3 %


def test_one_part_with_loud_repeats_excuses_no_node():
    values = rates(10)
    values[3][1] *= 0.9
    run, evidence = fleet(values)
    for one in evidence.records["node-4"]["diagnostics"]["metrics"]:
        if one["name"] == SPREAD:
            one["value"] = 5.0
    assert not_passed(told(run, evidence, KNOWN), "known") == {("node-4", "gpu:1", "fail")}


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_too_few_nodes_are_not_compared(nodes):
    values = rates(nodes)
    values[0][0] = 1.0
    report = told(*fleet(values), SLOW)
    assert {one[2] for one in not_passed(report)} == {"skipped"}
    (entry,) = (entry for entry in report["nodes"][0]["checks"] if entry["name"] == "slow")
    assert "a comparison needs 5 nodes" in entry["reason"]


def test_too_few_nodes_need_their_figures_all_the_same():
    run, evidence = fleet(rates(2))
    figures = evidence.records["node-1"]["diagnostics"]["metrics"]
    figures[0]["value"] = None
    evidence.records["node-2"]["diagnostics"]["metrics"] = [one for one in figures[1:] if one["scope"] != "gpu:5"]
    report = told(run, evidence, SLOW)
    assert not_passed(report) == {("node-1", "gpu:0", "fail"), ("node-2", "gpu:0", "missing")}


def test_another_sku_is_another_fleet():
    values = rates(10) + rates(10, centre=1500.0)
    values[15][0] *= 0.9
    models = {f"node-{number}": "NVIDIA B200" for number in range(11, 21)}
    report = told(*fleet(values, models=models), SLOW)
    assert not_passed(report) == {("node-16", "gpu:0", "fail")}
    assert len([check for check in report["fleet"]["checks"] if check["name"] == "slow"]) == 2


def test_another_workload_is_another_fleet():
    values = rates(8) + rates(8, centre=300.0)
    run, evidence = fleet(values)
    for number in range(9, 17):
        evidence.records[f"node-{number}"]["diagnostics"]["workload"] = "training_validation"
    assert not_passed(told(run, evidence, SLOW)) == set()


@pytest.mark.parametrize(("most", "verdict"), [(8, "missing"), (4, "skipped")])
def test_those_with_the_same_setup_are_compared_and_who_works_another_way_is_not_excused(most, verdict):
    values = rates(most) + rates(3, centre=900.0)
    run, evidence = fleet(values)
    for number in range(most + 1, most + 4):
        evidence.records[f"node-{number}"]["diagnostics"]["fingerprints"]["setup"] = "b"
    report = told(run, evidence, SOFTWARE)
    apart = {one for one in not_passed(report, "software") if int(one[0].removeprefix("node-")) > most}
    assert apart == {(f"node-{number}", "node", verdict) for number in range(most + 1, most + 4)}
    if verdict == "missing":
        assert "fingerprints.setup is b, on fewer than 5 nodes, while 8 nodes have a" in json.dumps(report)


@pytest.mark.parametrize("others", [1, 4, 5, 9, 10])
def test_slower_nodes_of_other_software_are_neither_accused_nor_accepted(others):
    """However many they are, up to half: nobody can say whether it is the software or the nodes."""
    values = rates(20)
    for node in values[20 - others :]:
        node[:] = [value * 0.9 for value in node]
    run, evidence = fleet(values)
    for number in range(21 - others, 21):
        evidence.records[f"node-{number}"]["diagnostics"]["environment"]["torch"] = "2.9"
    report = told(run, evidence, SOFTWARE)
    slower = {f"node-{number}" for number in range(21 - others, 21)}
    assert {(one[0], one[2]) for one in not_passed(report, "software")} == {(name, "missing") for name in slower}
    (entry, *_) = [one for one in report["nodes"][19]["checks"] if one["name"] == "software"]
    assert "torch 2.9" in entry["reason"]
    assert "torch 2.11" in entry["reason"]


@pytest.mark.parametrize("others", [1, 9])
def test_other_software_that_is_as_fast_is_accepted(others):
    run, evidence = fleet(rates(20))
    for number in range(21 - others, 21):
        evidence.records[f"node-{number}"]["diagnostics"]["environment"]["torch"] = "2.9"
    assert not_passed(told(run, evidence, SOFTWARE), "software") == set()


def judged_after(run, evidence, before, *checks):
    """The verdicts, and where nodes lay, as the run keeps it."""
    placed = PeerHistory.of(json.loads(json.dumps(before)))
    report = verdict.judge(run, evidence, list(checks), judged_at=TIME, history=placed)
    return {node["name"]: node["verdict"] for node in report["nodes"]}, placed.documents(), report


FLOOR = make_check("floor", stage="diagnostics", metric=NAME, scope="gpu", unit="TFLOP/s", value=500)


@pytest.mark.parametrize("check", [SLOW, SOFTWARE, make_check("places", **{**FIELDS, "same_part": True})])
def test_a_slow_node_is_not_excused_by_being_measured_alone(check):
    values = rates(35)
    values[3] = [value * 0.9 for value in values[3]]
    run, evidence = fleet(values)
    verdicts, before, _ = judged_after(run, evidence, [], FLOOR, check)
    assert {name for name, one in verdicts.items() if one != "PASS"} == {"node-4"}
    document = {"schema": "gpuval.judging/1", "criteria": [], "baseline": None, "standings": before}
    schemas.validate("judging", document, what="judging")
    for held in (values[3], [value / 0.9 for value in values[3]]):
        _, told_alone = fleet([held])
        run["nodes"] = {"node-4": run["nodes"]["node-4"]}
        evidence.records = {"node-4": told_alone.records["node-1"]}
        verdicts, after, report = judged_after(run, evidence, before, FLOOR, check)
        assert verdicts == {"node-4": "FAIL" if held is values[3] else "PASS"}
        assert after == before
        assert "of 35 nodes" in json.dumps(report)
        assert "judged before" in json.dumps(report)


def test_a_record_that_is_gone_excuses_no_other():
    values = rates(8)
    values[3] = [value * 0.8 for value in values[3]]
    run, evidence = fleet(values)
    check = make_check("slow", **{**FIELDS, "min_peers": 7})
    _, before, _ = judged_after(run, evidence, [], FLOOR, check)
    del evidence.records["node-8"]["diagnostics"]
    verdicts, _, _ = judged_after(run, evidence, before, FLOOR, check)
    assert (verdicts["node-4"], verdicts["node-8"]) == ("FAIL", "INCOMPLETE")


def test_bad_nodes_measured_again_together_are_not_each_others_measure():
    values = rates(60)
    for node in values[:12]:
        node[:] = [value * 0.9 for value in node]
    run, evidence = fleet(values)
    _, before, _ = judged_after(run, evidence, [], FLOOR, SLOW)
    run["nodes"] = {name: run["nodes"][name] for name in list(run["nodes"])[:12]}
    verdicts, _, _ = judged_after(run, evidence, before, FLOOR, SLOW)
    assert set(verdicts.values()) == {"FAIL"}


@pytest.mark.parametrize("lost", ["torch", "setup", "model", "gpu_count"])
def test_a_node_that_does_not_say_what_it_is_compared_by_is_missing(lost):
    run, evidence = fleet(rates(8))
    records = evidence.records["node-3"]
    if lost == "torch":
        records["diagnostics"]["environment"].clear()
    elif lost == "setup":
        records["diagnostics"]["fingerprints"].clear()
    elif lost == "model":
        for gpu in records["facts"]["environment"]["gpus"]:
            gpu.pop("name")
    else:
        records["facts"]["metrics"] = []
    report = told(run, evidence, SOFTWARE)
    assert {one for one in not_passed(report, "software") if one[0] == "node-3"} >= {("node-3", "node", "missing")}
    assert report["nodes"][2]["verdict"] == "INCOMPLETE"


def test_a_figure_in_another_unit_of_the_same_thing_is_converted():
    run, evidence = fleet(rates(8))
    for node in ("node-2", "node-3"):
        figure = evidence.records[node]["diagnostics"]["metrics"][0]
        figure.update(value=figure["value"] * 1000, unit="GFLOP/s" if node == "node-2" else "seconds")
    assert not_passed(told(run, evidence, SLOW)) == {("node-3", "gpu:0", "missing")}


def test_a_place_that_is_slower_on_every_node_is_compared_with_itself():
    """Two GPUs of every node hang on the farther processor; of these, one is slower still."""
    values = [[*node[:6], node[6] * 0.9, node[7] * 0.9] for node in rates(20)]
    values[3][6] *= 0.94
    assert len(not_passed(told(*fleet(values), SLOW))) == 40
    place = make_check("place", **{**FIELDS, "same_part": True})
    assert not_passed(told(*fleet(values), place), "place") == {("node-4", "gpu:6", "fail")}


def test_the_only_gpu_of_each_node_has_the_deviation_of_all_together_too():
    """A third of these nodes is bad, and repeats differ by much: of the GPUs' own deviation two more would fail."""
    values = [
        77.6, 98.9, 0.1, 0.3, 89.8, 90.0, 117.9, 40.0, 100.0, 100.0, 90.0, 100.0, 40.8,
        100.0, 100.0, 100.0, 41.8, 99.9, 100.0, 100.8, 100.8, 100.0, 89.8, 100.2, 61.2, 90.0,
    ]  # fmt: skip
    place = make_check("place", **{**FIELDS, "same_part": True, "spread_from": SPREAD, "repeats": 8})
    report = told(*fleet([[value] for value in values], gpus=1, spread=0.113), place)
    assert {node for node, *_ in not_passed(report, "place")} == {f"node-{number}" for number in (3, 4, 8, 13, 17)}


def test_figures_of_the_node_are_compared():
    run, evidence = fleet(rates(12))
    figure = evidence.records["node-3"]["diagnostics"]["metrics"][-1]
    assert figure["name"] == NODE.metric
    figure["value"] *= 0.9
    assert not_passed(told(run, evidence, NODE), "node") == {("node-3", "node", "fail")}


def test_two_gpus_have_no_neighbours_to_stand_beside():
    values = rates(12, gpus=2)
    assert not_passed(told(*fleet(values, gpus=2), BESIDE), "beside") == {
        (f"node-{number}", "node", "skipped") for number in range(1, 13)
    }


def test_a_result_that_may_not_be_measured_again_stays_a_failure():
    run, evidence = fleet(rates(12))
    record = evidence.records["node-3"]["diagnostics"]
    earlier = copy.deepcopy(record)
    earlier["metrics"][2]["value"] = 500.0
    record.update(attempt=2, attempts=[earlier])
    assert not_passed(told(run, evidence, SLOW)) == set()
    final = make_check("slow", **{**FIELDS, "retry": False})
    assert not_passed(told(run, evidence, final)) == {("node-3", "gpu:2", "fail")}


@pytest.mark.parametrize("value", [1e300, 5e-324, -1e308, 0, 2**63 - 1, -670])
def test_absurd_figures_fail_and_break_nothing(value):
    run, evidence = fleet(rates(8))
    evidence.records["node-3"]["diagnostics"]["metrics"][0]["value"] = value
    both = make_check("beside", **{**FIELDS, "relative_to": "node", "max_above": 0.03})
    report = told(run, evidence, make_check("slow", **{**FIELDS, "max_above": 0.03}), both)
    assert {one[:2] for one in not_passed(report)} == {("node-3", "gpu:0")}


@st.composite
def small_fleets(draw):
    """Fleets of five to eight nodes with two to four GPUs, some of them wrong in one way or another."""
    gpus = draw(st.integers(2, 4))
    number = draw(st.integers(5, 8))
    factor = st.sampled_from([1.0, 1.0, 1.0, 0.99, 1.01, 0.95, 0.9, 0.5])
    values = [[670.0 * draw(factor) for _ in range(gpus)] for _ in range(number)]
    run, evidence = fleet(values, gpus=gpus)
    for name in draw(st.lists(st.sampled_from(sorted(run["nodes"])), max_size=2)):
        fault = draw(st.sampled_from(["torch", "nan", "state", "part", "workload"]))
        record = evidence.records[name]["diagnostics"]
        if fault == "torch":
            record["environment"]["torch"] = "2.9"
        elif fault == "nan":
            record["metrics"][draw(st.integers(0, gpus - 1))]["value"] = None
        elif fault == "state":
            record["state"] = draw(st.sampled_from(["failure", "running", "cancelled"]))
        elif fault == "workload":
            record["workload"] = "other"
        else:
            record["metrics"] = record["metrics"][1:]
    return run, evidence


ALL = (SLOW, BESIDE, KNOWN, SOFTWARE, NODE)


@settings(max_examples=60)
@given(small_fleets(), st.data())
def test_less_evidence_never_accepts(case, data):
    """Without a piece of its evidence a node that was not accepted is not accepted, and neither is the run."""
    run, evidence = case
    less = copy.deepcopy(evidence)
    name = data.draw(st.sampled_from(sorted(run["nodes"])))
    records = less.records[name]
    what = data.draw(st.sampled_from(["record", "facts", "torch", "setup", "metric", "part", "name", "gpus", "count"]))
    if what in ("record", "facts"):
        del records["facts" if what == "facts" else "diagnostics"]
    elif what == "torch":
        records["diagnostics"]["environment"].pop("torch")
    elif what == "setup":
        records["diagnostics"]["fingerprints"].pop("setup")
    elif what == "gpus":
        records["facts"]["environment"].pop("gpus")
    elif what == "count":
        records["facts"]["metrics"] = []
    else:
        metrics = records["diagnostics"]["metrics"]
        chosen = data.draw(st.sampled_from(metrics))
        key = {"metric": lambda one: one is chosen, "part": lambda one: one["scope"] == chosen["scope"],
               "name": lambda one: one["name"] == chosen["name"]}[what]  # fmt: skip
        records["diagnostics"]["metrics"] = [one for one in metrics if not key(one)]
    before, after = judge(run, evidence, list(ALL)), judge(run, less, list(ALL))
    if {node["name"]: node["verdict"] for node in before["nodes"]}[name] != "PASS":
        assert {node["name"]: node["verdict"] for node in after["nodes"]}[name] != "PASS"
    if before["verdict"] != "PASS":
        assert after["verdict"] != "PASS"


@settings(max_examples=30)
@given(small_fleets(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_and_figures_is_irrelevant(case, shuffle):
    run, evidence = case
    report = judge(run, evidence, list(ALL))
    names = list(run["nodes"])
    shuffle.shuffle(names)
    shuffled = {**run, "nodes": {name: run["nodes"][name] for name in names}}
    evidence.records = {name: evidence.records[name] for name in names}
    assert judge(shuffled, evidence, list(ALL)) == report
    for records in evidence.records.values():
        shuffle.shuffle(records["diagnostics"]["metrics"])
    again = judge(shuffled, evidence, list(ALL))
    assert [node["verdict"] for node in again["nodes"]] == [node["verdict"] for node in report["nodes"]]
    assert again["fleet"]["checks"] == report["fleet"]["checks"]


@settings(max_examples=40)
@given(st.lists(st.floats(0.2, 2.0), min_size=9, max_size=20), st.floats(0.01, 0.2))
def test_at_most_half_of_the_figures_are_accused(factors, margin):
    """Of one figure a node: beyond four deviations of the median lie fewer than half of them."""
    run, evidence = fleet([[670.0 * factor] * 3 for factor in factors], gpus=3)
    report = judge(run, evidence, [make_check("slow", **{**FIELDS, "max_below": margin, "max_above": margin})])
    accused = {one[0] for one in not_passed(report)}
    assert len(accused) <= len(factors) // 2


def said_again(record, parts, value, times=1):
    record["metrics"] += [metric(NAME, value, "TFLOP/s", part) for part in parts for _ in range(times)]


def test_a_part_reported_twice_has_no_voice_and_is_missing():
    run, evidence = fleet(rates(40))
    said_again(evidence.records["node-3"]["diagnostics"], [f"gpu:{index}" for index in range(8)], 705.0, 60)
    report = told(run, evidence, SLOW)
    assert not_passed(report) == {("node-3", "gpu:0", "missing")}
    (entry,) = [one for one in report["nodes"][2]["checks"] if one["name"] == "slow"]
    assert "gpu:0 is reported twice" in entry["reason"]


def test_only_gpus_that_the_node_has_are_compared():
    run, evidence = fleet(rates(12))
    said_again(evidence.records["node-3"]["diagnostics"], [f"gpu:{index}" for index in range(8, 400)], 800.0)
    assert not_passed(told(run, evidence, SLOW)) == {("node-3", "gpu:8", "missing")}


LINK = make_check(
    "link", **{**FIELDS, "metric": "diagnostics_peer", "scope": "link", "parts_from": "links", "unit": "GB/s"}
)


def links(number, count, told=None, value=366.0):
    record = [metric("links", count)]
    return record + [metric("diagnostics_peer", value, "GB/s", f"link:{index}") for index in range(told or count)]


@pytest.mark.parametrize(("count", "of_them"), [(56, 400), (400, 400)])
def test_a_node_with_more_links_than_the_others_has_no_more_voices(count, of_them):
    run, evidence = fleet(rates(12))
    for number, name in enumerate(run["nodes"]):
        evidence.records[name]["diagnostics"]["metrics"] += (
            links(number, count, of_them, 500.0) if name == "node-3" else links(number, 56)
        )
    report = told(run, evidence, LINK)
    assert {(one[0], one[2]) for one in not_passed(report, "link")} == {("node-3", "missing")}
    assert entries(report, "link")["node-1"] == [("link:0", "pass")]


SHIPPED_LIKE = make_check("slow", **{**FIELDS, "max_below": 0.03, "deviations": 4.5})


@pytest.mark.parametrize("nodes", [8, 16])
def test_few_healthy_nodes_that_differ_are_accepted(nodes):
    """The rate: benchmarks/detection/populations.py."""
    failed = 0
    for seed in range(400 // nodes):
        report = told(*fleet(rates(nodes, gpus=3, cv=0.015, seed=seed), gpus=3), SHIPPED_LIKE)
        failed += len({one[0] for one in not_passed(report)})
    assert failed == 0


def test_of_few_nodes_a_slow_one_is_found():
    values = rates(8)
    values[5] = [value * 0.8 for value in values[5]]
    assert not_passed(told(*fleet(values), SHIPPED_LIKE)) == {("node-6", "node", "fail")}
    values[5] = [value / 0.8 * 0.95 for value in values[5]]
    assert entries(told(*fleet(values), SHIPPED_LIKE))["node-6"][-1] == ("node", "warn")
