"""Fleets that are not one normal population: a slow batch, long tails, few nodes; and one failure for one cause.

A few fleets of each kind: how often each is right is measured by benchmarks/detection/populations.py.
"""

import json
import math
import random
import statistics

import fleets
import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria, entries, peer_statistics, verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.peer_groups import PeerHistory
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.problems import part_text
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import summary_lines

from tests.kit.builders import SHIPPED, TIME

COMPARING = criteria.Criteria([one for one in SHIPPED if one.kind == "outlier"])


def drawn(nodes, *, planted=None, seed=1, cv=0.005, **fields):
    return fleets.drawn(nodes, cv, 0.003, seed, each=0, planted=planted or {}, skus=("h200",), **fields)


def judged(fleet, checks=COMPARING, history=None):
    report = verdict.judge(fleet.run, fleet.evidence, checks, judged_at=TIME, history=history)
    return {node["name"]: node for node in report["nodes"]}, report["fleet"]["checks"]


def named(node, *verdicts):
    return {one["part"] for one in node["checks"] if one["verdict"] in verdicts}


def levels(count, slow, seed, *, tails=0, scale=0.005):
    draw = random.Random(seed)
    found = []
    for number in range(count):
        one = draw.gauss(0, 1) / ((draw.gammavariate(tails / 2, 2) / tails) ** 0.5 if tails else 1)
        found.append((0.95 if number < slow else 1.0) + scale * one)
    return found


@pytest.mark.parametrize(("count", "slow"), [(16, 4), (16, 8), (40, 8), (100, 50), (100, 60)])
def test_two_modes_are_found_and_apart(count, slow):
    found = peer_statistics.two_modes(levels(count, slow, 3), 0.03)
    assert found == (list(range(slow)), list(range(slow, count)), True)


@pytest.mark.parametrize("tails", [0, 3])
@pytest.mark.parametrize("count", [8, 16, 40, 100])
def test_one_population_is_not_split(count, tails):
    found = [peer_statistics.two_modes(levels(count, 0, seed, tails=tails, scale=0.01), 0.03) for seed in range(100)]
    assert [one for one in found if one and one[2]] == []


@pytest.mark.parametrize("levels_", [[], [1.0], [1.0] * 5, [0.9] + [1.0] * 2])
def test_too_few_nodes_have_no_modes(levels_):
    assert peer_statistics.two_modes(levels_, 0.03) is None


def test_modes_without_any_noise():
    assert peer_statistics.two_modes([0.95] * 3 + [1.0] * 5, 0.03) == ([0, 1, 2], [3, 4, 5, 6, 7], True)


def test_tails_of_normal_noise_reach_nowhere_and_long_ones_do():
    def tails(degrees, seed):
        found = peer_statistics.Tails()
        found.add(enumerate(levels(400, 0, seed, tails=degrees)), 0.03, 4.5, 1)
        return found

    normal, long = ([tails(degrees, seed) for seed in range(40)] for degrees in (0, 3))
    assert sum(one.reach(100) == 0 for one in normal) >= 28
    assert sum(one.are_long(peer_statistics.CERTAIN) for one in normal) <= 1
    assert sum(one.are_long(peer_statistics.CERTAIN) for one in long) >= 38
    assert sum(one.reach(100) > 12 for one in long) >= 36  # deviations; checks ask for 4.5
    assert peer_statistics.Tails().reach(8) == 0


def test_no_single_node_makes_long_tails():
    found = peer_statistics.Tails()
    for seed in range(6):
        found.add(enumerate([*levels(40, 0, seed), 1.029]), 0.03, 4.5, 1)
    assert not found.are_long(peer_statistics.CERTAIN)


@pytest.mark.parametrize(("nodes", "slow"), [(8, 1), (12, 2), (16, 2), (32, 6)])
def test_normal_noise_explains_no_slow_node_and_each_healthy_one(nodes, slow):
    for seed in range(20):
        found = levels(nodes, slow, seed, scale=0.004)
        noise = peer_statistics.NormalNoise.of(found, 0.03)
        assert max(found[:slow]) < noise.middle - noise.limit < min(found[slow:])
    assert peer_statistics.NormalNoise.of([0.9, 1.0, 1.1, 1.2, 1.3], 0.03).limit == math.inf
    assert peer_statistics.NormalNoise.of([], 0.03).limit == math.inf, "no node reports the figure"
    assert peer_statistics.NormalNoise.of([1.1] * 8, 0.03).deviation == 0


def test_one_node_that_is_too_good_to_be_true_widens_no_limit():
    def reach(value, nodes, degrees):
        found = peer_statistics.Tails()
        for seed in range(10, 17):
            found.add(enumerate([*levels(nodes, 0, seed, tails=degrees), value]), 0.03, 4.5, 1)
        return found.reach(41)

    for value in (1.0, 1.02, 1.05, 1e9):
        assert reach(value, 40, 0) == pytest.approx(reach(1.02, 40, 0), abs=1)
        assert reach(value, 40, 0) < 15
        assert reach(value, 200, 3) == pytest.approx(reach(1.0, 200, 3), abs=1)
    assert reach(1.0, 200, 3) > 20


@pytest.mark.parametrize(("nodes", "slow"), [(16, 4), (16, 6), (32, 12)])
def test_a_slow_batch_is_found_and_named(nodes, slow):
    fleet = drawn(nodes, planted=fleets.planted("slow node", 0.05, nodes, slow, 1))
    for number, node in enumerate(fleet.run["nodes"].values()):
        node["labels"] = {"batch": "b1" if number < slow else "b2", "rack": f"r{number % 5}"}
    nodes, entries = judged(fleet)
    assert {name for name, node in nodes.items() if node["verdict"] != "PASS"} == set(fleet.defects)
    for name in fleet.defects:
        assert named(nodes[name], "fail") == {"node"}
    (entry,) = [one for one in entries if one["name"] == "diagnostics_matmul_fleet"]
    assert f"not one population: {entry['metric']} of {slow} nodes" in entry["reason"]
    assert "batch b1" in entry["reason"]
    assert "rack" not in entry["reason"]


def test_of_two_halves_the_slower_is_not_accepted_and_nothing_says_which_is_right():
    fleet = drawn(16, planted=fleets.planted("slow node", 0.05, 16, 8, 1))
    nodes, _ = judged(fleet)
    assert {node["verdict"] for name, node in nodes.items() if name in fleet.defects} == {"INCOMPLETE"}
    assert {node["verdict"] for name, node in nodes.items() if name not in fleet.defects} == {"PASS"}
    reasons = [
        one["reason"]
        for one in nodes["node-0000"]["checks"]
        if (one["verdict"], one["severity"], one["kind"]) == ("missing", "required", "outlier")
    ]
    assert "set a floor or a baseline" in reasons[0]


def test_where_most_nodes_are_slower_none_fails_and_the_report_says_so():
    fleet = drawn(16, planted=fleets.planted("slow node", 0.05, 16, 10, 1))
    nodes, entries = judged(fleet)
    assert {node["verdict"] for node in nodes.values()} == {"PASS"}
    assert "node" in named(nodes["node-0000"], "warn")
    assert any("not one population" in one["reason"] for one in entries)


def test_the_summary_says_that_a_fleet_is_two_populations():
    fleet = drawn(16, planted=fleets.planted("slow node", 0.05, 16, 5, 1))
    report = verdict.judge(fleet.run, fleet.evidence, COMPARING, judged_at=TIME)
    (line,) = [one for one in summary_lines(report) if one.startswith("The fleet is")]
    assert "not one population: diagnostics_matmul_bf16_tflops of 5 nodes is " in line


@pytest.mark.parametrize(("nodes", "fields"), [(100, {"tails": 3, "cv": 0.01}), (32, {"gpu_cv": 0.015})])
def test_the_limit_follows_the_spread_that_the_fleet_shows(nodes, fields):
    assert {node["verdict"] for node in judged(drawn(nodes, **fields))[0].values()} == {"PASS"}


@pytest.mark.parametrize("slow", [2, 3, 4])
def test_of_eight_nodes_each_slow_one_of_a_batch_is_named(slow):
    for seed in range(3):
        fleet = drawn(8, planted=fleets.planted("slow node", 0.05, 8, slow, seed), seed=seed)
        nodes, _ = judged(fleet)
        assert all("node" in named(nodes[name], "fail", "missing", "warn") for name in fleet.defects)


def test_a_node_too_far_off_for_few_nodes_to_tell_is_a_warning_that_names_it():
    found = [
        judged(drawn(8, planted=fleets.planted("slow node", 0.05, 8, 1, seed), seed=seed))[0]["node-0000"]
        for seed in range(4)
    ]
    assert all("node" in named(node, "warn", "fail") for node in found)


@pytest.mark.parametrize("nodes", [10, 16, 32])
def test_a_slow_node_among_few_fails_where_two_stages_agree(nodes):
    for seed in range(2):
        fleet = drawn(nodes, planted=fleets.planted("slow node", 0.05, nodes, 1, seed), seed=seed)
        found, _ = judged(fleet)
        assert {name for name, node in found.items() if node["verdict"] != "PASS"} == {"node-0000"}
        assert named(found["node-0000"], "fail") == {"node"}


@pytest.mark.parametrize(("lost", "verdict_"), [((), "FAIL"), (("training",), "PASS"), (("diagnostics",), "PASS")])
def test_a_tail_of_one_measurement_is_a_warning(lost, verdict_):
    """One stage shows 5 % less, the other does not: a disturbance of one stage does not come again in another."""
    fleet = drawn(8, planted=fleets.planted("slow node", 0.05, 8, 1, 2), seed=2)
    for stage in lost:
        others = {(one["name"], one["scope"]): one for one in fleet.evidence.records["node-0001"][stage]["metrics"]}
        for one in fleet.evidence.records["node-0000"][stage]["metrics"]:
            if one["name"] in (*fleets.DEPENDS, fleets.TRAINING, fleets.COMPUTE):
                one["value"] = others[one["name"], one["scope"]]["value"] * 1.0001
    node = judged(fleet)[0]["node-0000"]
    assert node["verdict"] == verdict_
    agreeing = "; the node is behind in diagnostics and training" in json.dumps(node["checks"])
    assert ("node" in named(node, "fail"), "node" in named(node, "warn"), agreeing) == (not lost, bool(lost), not lost)


def test_measurements_with_long_tails_fail_no_node():
    failed = [
        name
        for seed in range(2)
        for name, node in judged(drawn(16, seed=seed, disturbed=0.005))[0].items()
        if node["verdict"] != "PASS"
    ]
    assert failed == []


@pytest.mark.parametrize(("measured", "verdict_"), [("node-0000", "FAIL"), ("node-0005", "PASS")])
def test_a_node_that_two_stages_show_to_be_slow_is_not_excused_by_being_measured_alone(measured, verdict_):
    fleet, history = drawn(12, planted=fleets.planted("slow node", 0.05, 12, 1, 1)), PeerHistory()
    judged(fleet, history=history)
    fleet.run["nodes"] = {measured: fleet.run["nodes"][measured]}
    fleet.evidence.records = {measured: fleet.evidence.records[measured]}
    again, _ = judged(fleet, history=PeerHistory.of(json.loads(json.dumps(history.documents()))))
    assert again[measured]["verdict"] == verdict_


@pytest.mark.parametrize("nodes", [1, 2, 3, 7])
@pytest.mark.parametrize(("kind", "effect"), [("slow GPU", 0.05), ("slow link", 0.05)])
def test_fewer_than_eight_nodes_name_a_slow_part(nodes, kind, effect):
    fleet = drawn(nodes, planted=fleets.planted(kind, effect, nodes, 1, nodes))
    found, _ = judged(fleet)
    assert fleet.defects["node-0000"].part in named(found["node-0000"], "warn", "fail")
    assert all(named(node, "fail") == set() for name, node in found.items() if name not in fleet.defects)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_where_the_spread_of_a_sku_is_known_a_slow_link_fails_in_a_single_node(nodes):
    fleet = drawn(nodes, planted=fleets.planted("slow link", 0.05, nodes, 1, 4))
    found, _ = judged(fleet)
    assert named(found["node-0000"], "fail") == {fleet.defects["node-0000"].part}
    assert "healthy ones differ by 0.7193 %" in next(
        one["reason"] for one in found["node-0000"]["checks"] if one["verdict"] == "fail"
    )


@pytest.mark.parametrize("nodes", [2, 4, 7])
def test_a_slow_node_of_a_few_is_named(nodes):
    found, _ = judged(drawn(nodes, planted=fleets.planted("slow node", 0.08, nodes, 1, 1)))
    assert "node" in named(found["node-0000"], "warn")
    assert {node["verdict"] for node in found.values()} == {"PASS"}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(("rate", "warned"), [(664.0, False), (664.0 * 0.95, True)])
def test_a_slow_node_without_better_peers_is_named_where_the_sku_was_measured(nodes, rate, warned):
    fleet = drawn(nodes, seed=4, cv=0.0)
    for by_stage in fleet.evidence.records.values():
        for one in by_stage["diagnostics"]["metrics"]:
            if one["name"] == fleets.MATMUL:
                one["value"] *= rate / 745.0
    for node in judged(fleet, SHIPPED)[0].values():
        assert node["verdict"] == "PASS"
        found = [
            one for one in node["checks"] if one["name"] == "diagnostics_matmul_fleet" and one["verdict"] == "warn"
        ]
        assert [one["part"] for one in found] == ["node"] * warned
        assert all("under the 664 TFLOP/s that healthy nodes of its SKU made" in one["reason"] for one in found)


def test_a_part_that_is_an_outlier_of_its_node_alone_is_a_warning():
    """Of GPUs that differ by 3 % one is 9 % slower; the other seven of its node agree by chance."""
    fleet = drawn(16, gpu_cv=0.03, seed=3)
    for one in fleet.evidence.records["node-0000"]["diagnostics"]["metrics"]:
        if one["name"] == fleets.MATMUL:
            one["value"] = 745.0 * (0.91 if one["scope"] == "gpu:2" else 1)
    nodes, _ = judged(fleet)
    (entry,) = [one for one in nodes["node-0000"]["checks"] if one["name"] == "diagnostics_matmul_outlier"]
    assert (entry["part"], entry["verdict"]) == ("gpu:2", "warn")
    assert "parts of other nodes differ as much" in entry["reason"]


def test_a_slow_gpu_is_the_only_one_that_fails_although_all_wait_for_it_in_training():
    fleet = drawn(16, planted=fleets.planted("slow GPU", 0.2, 16, 1, 2))
    part = fleet.defects["node-0000"].part
    nodes, _ = judged(fleet, SHIPPED)
    node = nodes["node-0000"]
    assert named(node, "fail") == {part}
    waiting = [one for one in node["checks"] if one["metric"] == "training_model_tflops" and one["verdict"] == "warn"]
    assert {one["name"] for one in waiting} == {"training_speed_fleet", "training_speed_h200"}
    for one in waiting:
        assert one["part"] == "node"
        assert f"all GPUs wait for {part}" in one["reason"]


def test_a_whole_slow_node_is_named_as_the_node():
    fleet = drawn(32, planted=fleets.planted("slow node", 0.3, 32, 1, 2))
    node = judged(fleet, SHIPPED)[0]["node-0000"]
    assert entries.headline(node)["part"] == "node"
    floor = next(one for one in node["checks"] if one["name"] == "diagnostics_matmul_bf16_speed_h200")
    assert floor["part"] == "node"
    assert floor["reason"].startswith("all 8 GPUs, gpu:")


def test_what_batches_share_is_named_and_what_all_have_is_not():
    few = [{"rack": "r1", "driver": "580", "power": "a"}, {"rack": "r1", "driver": "580", "power": "b"}] * 2
    others = [{"rack": f"r{number}", "driver": "580", "power": "ab"[number % 2]} for number in range(2, 10)]
    assert peer_statistics.shared(few, others) == ["rack r1"]
    assert peer_statistics.shared([], others) == []


def test_small_fleets_have_one_defect_and_tails_are_longer_than_normal_ones():
    fleet = fleets.drawn(8, 0.005, 0.003, 1, each=1)
    assert len(fleet.defects) == 1
    assert set(fleet.skus.values()) == {"h200"}
    normal, long = (
        [fleets.Noise("one", 0.01, 0.003, tails=tails).node()["cores"] for _ in range(1)]
        + [one for noise in [fleets.Noise("many", 0.01, 0.003, tails=tails)] for _ in range(500)
           for one in noise.node().values()]
        for tails in (0, 3)
    )  # fmt: skip
    assert max(abs(one - 1) for one in normal) < 0.05 < max(abs(one - 1) for one in long)
    assert abs(statistics.median(long) - 1) < 0.002


def test_the_report_maps_each_gpu_to_its_uuid_serial_and_slot():
    fleet = drawn(8)
    gpus = fleet.evidence.records["node-0000"]["facts"]["environment"]["gpus"]
    gpus[2]["slot"], gpus[3]["module_id"] = "21", 4
    node = judged(fleet)[0]["node-0000"]
    shown = {gpu["index"]: gpu for gpu in node["identity"]["gpus"]}
    assert {key: shown[2][key] for key in ("uuid", "serial", "slot")} == {
        "uuid": gpus[2]["uuid"], "serial": gpus[2]["serial"], "slot": "21"
    }  # fmt: skip
    assert shown[3]["slot"] == "module 4"
    assert "slot" not in shown[4]
    assert part_text(node, "gpu:2").endswith(", slot 21")
