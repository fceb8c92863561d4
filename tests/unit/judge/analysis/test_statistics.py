"""How figures are spread, and what moves together."""

import json
import math
import random
import statistics
import time

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.analysis.distribution import (
    Distribution,
    FigureSample,
    kinds_of,
    relative,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.analysis.fleet import analyse
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.page import figures
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.analysis import TFLOPS, fleet, gpus, node, racks


def only(nodes):
    (one,) = analyse(nodes, [{}] * len(nodes))["statistics"]
    return one


def test_every_statistic_of_known_values():
    nodes = [node(f"n{number}", [("speed", "bytes/s", {"node": float(number)})]) for number in range(1, 101)]
    one = only(nodes)
    assert (one["count"], one["nodes"], one["missing"], one["not_finite"]) == (100, 100, 0, 0)
    assert one["mean"] == 50.5
    assert one["standard_deviation"] == pytest.approx(statistics.stdev(range(1, 101)))
    assert one["coefficient_of_variation"] == pytest.approx(statistics.stdev(range(1, 101)) / 50.5)
    assert [one[key] for key in ("min", "p1", "p5", "p50", "p95", "p99", "max")] == [1, 1, 5, 50.5, 95, 99, 100]
    assert one["outlier_count"] == 0


def test_outliers_are_named_with_their_part():
    nodes = fleet(20)
    nodes[6]["metrics"]["diagnostics"][3]["value"] *= 0.9
    one = only(nodes)
    (found,) = one["outliers"]
    assert (found["node"], found["part"], one["outlier_count"]) == ("node-6", "gpu:3", 1)
    assert found["relative_difference"] == pytest.approx(-0.1, abs=0.02)


def test_figures_of_another_revision_are_not_among_those_of_the_most():
    nodes = fleet(10)
    for figure in [figure for one in nodes[:3] for figure in one["metrics"]["diagnostics"]]:
        figure.update(revision=2, value=figure["value"] / 2)
    one = only(nodes)
    assert (one["count"], one["nodes"], one["missing"], one["outlier_count"]) == (56, 7, 24, 0)


def test_what_was_not_reported_is_counted():
    nodes = fleet(10)
    nodes[2]["metrics"]["diagnostics"][3]["value"] = None
    nodes[3]["metrics"]["diagnostics"][4]["value"] = math.inf
    del nodes[4]["metrics"]["diagnostics"][:3]
    nodes[5]["metrics"] = {}
    nodes[6]["stages"][0]["state"] = "crash"
    nodes[7]["stages"] = []  # was not asked
    one = only(nodes)
    assert (one["count"], one["nodes"]) == (64 - 2 - 3 - 8, 7)
    assert (one["not_finite"], one["missing"]) == (2, 3 + 8 + 8)


def test_nodes_of_another_number_of_gpus_or_workload_are_another_kind():
    nodes = fleet(4)
    for number, one in enumerate(nodes):
        one["identity"] = {"gpus": [{}] * (8 if number else 7)}
    assert [kinds["diagnostics"] for kinds in kinds_of(nodes)] == ["h200 x 7", *["h200 x 8"] * 3]
    nodes = fleet(2)
    nodes[1]["stages"][0]["workload"] = "short"
    assert [kinds["diagnostics"] for kinds in kinds_of(nodes)] == ["h200, diagnostics", "h200, short"]


def test_a_node_without_facts_is_missing_among_the_others():
    nodes = fleet(5)
    nodes[2] |= {"accelerator": "unknown", "catalogue_sku": None, "metrics": {}}
    nodes[2]["stages"][0] |= {"state": "missing", "workload": None}
    assert (only(nodes)["missing"], only(nodes)["kind"]) == (8, "h200")
    nodes[1]["catalogue_sku"] = "h100"
    assert kinds_of(nodes)[2] == {"diagnostics": "unknown"}


def test_page_and_analysis_tell_the_same():
    nodes = [{**one, "checks": []} for one in fleet(12, figures=3)]
    told = {one["metric"]: one for one in analyse(nodes, [{}] * 12)["statistics"]}
    shown = figures.PlottedFigures({"nodes": nodes}).figures
    assert len(shown) == 3
    for one in shown:
        assert told[one.metric]["p50"] == one.spread.p50
        assert told[one.metric]["coefficient_of_variation"] == one.spread.variation


@given(st.lists(st.floats(-1e99, 1e99), min_size=1, max_size=40))
def test_any_figures_can_be_described(values):
    one = Distribution(FigureSample(values, [(number, "node") for number in range(len(values))]))
    assert one.min <= one.p1 <= one.p5 <= one.p95 <= one.p99 <= one.max
    assert one.min <= one.p50 <= one.max
    json.dumps([one.mean, one.standard_deviation, one.variation, one.robust_deviation], allow_nan=False)
    assert all(change is None or math.isfinite(change) for change in map(one.change, values))


@given(st.floats(-1e99, 1e99), st.floats(-1e99, 1e99))
def test_a_relative_difference_is_a_number_or_none(value, base):
    change = relative(value, base)
    assert change is None or math.isfinite(change)


def hot(count, *, seed=1):
    """GPUs that are hotter do less; latency is made from the rate; memory has nothing to do with it."""
    draw = random.Random(seed)
    nodes = []
    for number in range(count):
        heat = [draw.gauss(65, 4) for _ in range(8)]
        rate = [700 - 2 * one + draw.gauss(0, 3) for one in heat]
        memory = [draw.gauss(4e12, 1e10) for _ in range(8)]
        told = [
            ("gpu_temperature_celsius", "celsius", gpus(heat)),
            (TFLOPS, "TFLOP/s", gpus(rate)),
            ("diagnostics_matmul_bf16_seconds", "seconds", gpus([1 / one for one in rate])),
            ("diagnostics_memory_bytes_per_second", "bytes/s", gpus(memory)),
            ("cpu_temperature_celsius", "celsius", {"node": statistics.median(heat) + draw.gauss(0, 0.5)}),
        ]
        nodes.append(node(f"node-{number}", told))
    return nodes


def test_figures_that_move_together_are_found_and_the_rest_is_not():
    analysis = analyse(hot(30), [{}] * 30)
    found = {(one["one"]["metric"], one["other"]["metric"], one["over"]): one for one in analysis["correlations"]}
    # bf16_seconds against the temperature is the same finding once more; that of rate and duration is none
    pair = found[TFLOPS, "gpu_temperature_celsius", "gpu"]
    assert -1 < pair["rho"] < -0.85
    assert (pair["count"], pair["nodes"]) == (240, 30)
    assert ("cpu_temperature_celsius", "gpu_temperature_celsius", "node") in found
    assert not any("memory" in metric for pair in found for metric in pair)
    assert not any(one["metric"].startswith(TFLOPS[:23]) and other["metric"].startswith(TFLOPS[:23])
                   for one, other in ((pair["one"], pair["other"]) for pair in found.values()))  # fmt: skip
    assert analysis["counts"]["one_quantity"] == 1


def test_seven_nodes_show_no_correlation():
    assert analyse(hot(7), [{}] * 7)["correlations"] == []


def test_parts_of_a_node_that_are_alike_are_no_evidence():
    """Eight nodes, each with GPUs that agree in both figures: 64 points, of which eight are independent."""
    draw = random.Random(2)
    wrong = 0
    for seed in range(60):
        nodes = []
        for number in range(8):
            told = [(f"figure_{name}", "x", gpus([draw.random()] * 8)) for name in "abcdefgh"]
            nodes.append(node(f"{seed}-{number}", told))
        wrong += bool(analyse(nodes, [{}] * 8)["correlations"])
    assert wrong <= 3


def test_a_thousand_nodes_take_seconds():
    nodes = fleet(1000, figures=20)
    begin = time.process_time()
    analysis = analyse(nodes, racks(1000, row=lambda number: str(number // 40), pdu=lambda number: str(number % 4)))
    assert time.process_time() - begin < 10
    assert len(analysis["statistics"]) == 20
    assert analysis["findings"] == []


def test_more_names_than_anybody_has_are_bounded():
    """A node may tell any names; what comes of them is bounded."""
    nodes = [
        node(f"n{number}", [(f"m{index}", "x", {"node": float(number)}) for index in range(4500)])
        for number in range(3)
    ]
    analysis = analyse(nodes, [{}] * 3)
    assert len(analysis["statistics"]) == 4000
    assert analysis["counts"]["statistics_left_out"] == 500


def test_a_figure_that_only_the_last_node_is_judged_by_is_judged():
    check = {"stage": "diagnostics", "metric": "seldom"}
    report = {"nodes": [{"checks": []} for _ in range(80)] + [{"checks": [check]}]}
    assert figures.judged_figures(report) == {("diagnostics", "seldom")}
