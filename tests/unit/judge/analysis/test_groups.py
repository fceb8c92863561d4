"""Groups of nodes that differ: the bad ones are named, good ones are not."""

import random

import groups as benchmark
import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.analysis.fleet import analyse

from tests.kit.analysis import TFLOPS, fleet, gpus, node, racks
from tests.kit.builders import facts_record, healthy, judge, make_run


def named(analysis):
    return {(one["by"], one["value"]) for one in analysis["findings"]}


def test_a_bad_rack_of_eight_among_a_hundred_is_named_with_its_figure():
    nodes = fleet(100, factor=lambda number: 0.95 if number // 8 == 7 else 1.0)
    (found,) = analyse(nodes, racks(100))["findings"]
    assert (found["by"], found["value"], found["nodes"], found["others"]) == ("rack", "r7", 8, 92)
    assert found["names"] == [f"node-{number}" for number in range(56, 64)]
    assert found["relative_difference"] == pytest.approx(-0.05, abs=0.004)
    assert found["q"] < 1e-6
    assert found["text"].startswith(f"rack r7: {TFLOPS} ")
    assert " % below the other 92 nodes (8 nodes, h200, q=" in found["text"]


@pytest.mark.parametrize(("cv", "noise"), benchmark.SETTINGS)
def test_a_bad_rack_is_named_whatever_the_noise(cv, noise):
    assert benchmark.one(100, (cv, noise), 3, ("rack", "r005"), 0.05) == {("rack", "r005")}


def test_a_bad_driver_is_named():
    assert benchmark.one(100, (0.005, 0.003), 3, ("driver", "580.82.07"), 0.03) == {("driver", "580.82.07")}


@pytest.mark.parametrize("setting", benchmark.SETTINGS)
def test_a_clean_fleet_has_no_finding(setting):
    assert benchmark.one(100, setting, 500, None, 0) == set()


def test_what_is_clear_and_small_is_no_finding():
    nodes = fleet(100, cv=0.001, factor=lambda number: 0.985 if number // 8 == 7 else 1.0)
    assert analyse(nodes, racks(100))["findings"] == []


def test_one_slow_gpu_or_node_makes_no_bad_rack():
    nodes = fleet(100, factor=lambda number: 0.5 if number == 57 else 1.0)
    for one in nodes[60]["metrics"]["diagnostics"][:3]:
        one["value"] = 1.0
    assert analyse(nodes, racks(100))["findings"] == []


def test_groups_that_are_the_same_nodes_are_named_together():
    nodes = fleet(100, factor=lambda number: 0.95 if number // 8 == 7 else 1.0)
    properties = racks(
        100,
        driver=lambda number: "570.1" if number // 8 == 7 else "580.1",
        bios=lambda number: "1.0" if 56 <= number < 63 else "2.0",
    )
    (found,) = analyse(nodes, properties)["findings"]
    told = {(found["by"], found["value"], True)} | {(one["by"], one["value"], one["same"]) for one in found["alike"]}
    assert told == {("rack", "r7", True), ("driver", "570.1", True), ("bios", "1.0", False)}
    assert "the same nodes as " in found["text"]
    assert "; nearly the same nodes as bios 1.0" in found["text"]


def test_of_two_halves_one_is_named():
    nodes = fleet(40, factor=lambda number: 0.95 if number % 2 else 1.0)
    (found,) = analyse(nodes, [{"driver": f"58{number % 2}"} for number in range(40)])["findings"]
    assert (found["by"], found["nodes"], found["others"]) == ("driver", 20, 20)


def test_a_row_is_not_bad_because_a_rack_in_it_is():
    nodes = fleet(96, factor=lambda number: 0.9 if number // 8 == 7 else 1.0)
    assert named(analyse(nodes, racks(96, row=lambda number: number // 16))) == {("rack", "r7")}


def test_a_row_is_bad_rather_than_each_rack_in_it():
    nodes = fleet(128, factor=lambda number: 0.95 if number // 32 == 1 else 1.0)
    assert named(analyse(nodes, racks(128, row=lambda number: number // 32))) == {("row", 1)}


def test_two_bad_racks_are_both_named():
    nodes = fleet(100, factor=lambda number: 0.94 if number // 8 in (3, 7) else 1.0)
    assert named(analyse(nodes, racks(100))) == {("rack", "r3"), ("rack", "r7")}


def test_a_group_that_alone_has_something_is_named_without_a_percentage():
    draw = random.Random(1)
    nodes = [
        node(f"n{number}", [("throttled_seconds", "seconds", {"node": draw.uniform(5, 9) if number < 8 else 0.0})])
        for number in range(64)
    ]
    (found,) = analyse(nodes, racks(64))["findings"]
    assert found["relative_difference"] is None
    assert "throttled_seconds 7." in found["text"]
    assert ", not 0 s as the other 56 nodes" in found["text"]


@pytest.mark.parametrize("count", [3, 5, 9])
def test_few_nodes_prove_nothing(count):
    nodes = fleet(count, factor=lambda number: 0.5 if number < 3 else 1.0)
    analysis = analyse(nodes, [{"rack": "a" if number < 3 else "b"} for number in range(count)])
    assert analysis["findings"] == []


def test_groups_have_their_medians():
    analysis = analyse(fleet(24), racks(24))
    (its,) = analysis["groups"]
    assert (its["by"], [one["value"] for one in its["groups"]]) == ("rack", ["r0", "r1", "r2"])
    assert all(abs(one["relative_difference"]) < 0.02 and one["nodes"] == 8 for one in its["groups"])


def test_nodes_are_compared_with_those_of_their_kind_alone():
    """A rack of another SKU, half as fast, is no bad rack."""
    nodes = fleet(48, factor=lambda number: 0.5 if number >= 40 else 1.0)
    for one in nodes[40:]:
        one["catalogue_sku"] = "h100"
    analysis = analyse(nodes, racks(48))
    assert analysis["findings"] == []
    assert {(one["kind"], one["nodes"]) for one in analysis["statistics"]} == {("h200", 40), ("h100", 8)}


def test_the_judge_groups_by_facts_and_labels_and_changes_no_verdict():
    names = [f"node-{number}" for number in range(40)]
    run = make_run(names)
    evidence = healthy(run)
    draw = random.Random(3)
    for number, name in enumerate(names):
        run["nodes"][name]["labels"] = {"rack": f"r{number // 8}", "driver": "a b"[:: 1 + number % 2]}
        facts = facts_record(name)
        for gpu in facts["environment"]["gpus"]:
            gpu |= {"driver_version": "580.1" if number % 4 else "570.1", "serial": f"{number}"}
        evidence.records[name]["facts"] = facts
        slow = 0.9 if number // 8 == 2 else 1.0
        for one in evidence.records[name]["training"]["metrics"]:
            if one["name"] == "training_model_tflops":
                one["value"] = 700 * slow * draw.gauss(1, 0.005)
    report = judge(run, evidence)
    schemas.validate("report", report, what="report")
    analysis = report["fleet"]["analysis"]
    assert named(analysis) == {("rack", "r2")}
    assert {one["by"] for one in analysis["groups"]} == {"driver", "rack", "label driver"}
    assert report["nodes"][17]["labels"]["rack"] == "r2"
    assert report["verdict"] == "PASS"


def test_two_nodes_have_no_analysis():
    run = make_run(["a", "b"])
    assert "analysis" not in judge(run, healthy(run))["fleet"]


def test_the_order_of_nodes_changes_nothing():
    nodes = fleet(48, factor=lambda number: 0.95 if number // 8 == 2 else 1.0, figures=3)
    properties = racks(48, driver=lambda number: str(number % 3))
    order = list(range(48))
    random.Random(1).shuffle(order)
    straight = analyse(nodes, properties)
    mixed = analyse([nodes[at] for at in order], [properties[at] for at in order])
    for found in (*straight["findings"], *mixed["findings"]):
        found["names"].sort()
    assert straight["findings"] == mixed["findings"]
    assert len(straight["findings"]) == 1


def test_gpus_that_report_nothing_do_not_break_a_comparison():
    nodes = fleet(40, factor=lambda number: 0.9 if number // 8 == 2 else 1.0)
    for number in range(0, 40, 3):
        nodes[number]["metrics"]["diagnostics"][number % 8]["value"] = None
    nodes[5] = node("node-5", [(TFLOPS, "TFLOP/s", gpus([None] * 8))])
    analysis = analyse(nodes, racks(40))
    assert named(analysis) == {("rack", "r2")}


@pytest.mark.parametrize("others", [lambda number: {}, lambda number: {"rack": f"of two {number // 2}"}])
def test_a_label_that_only_the_bad_nodes_have_is_seen(others):
    nodes = fleet(60, factor=lambda number: 0.95 if number < 8 else 1.0)
    told = [{"rack": "bad"} if number < 8 else others(number) for number in range(60)]
    assert named(analyse(nodes, told)) == {("rack", "bad")}
