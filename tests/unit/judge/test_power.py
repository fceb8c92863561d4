"""What a run would have missed: the smallest losses that are named, put into its own records."""

import goals
import power as benchmark
import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.stage_traits import figures_of, traits_of_stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.criteria import Criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import not_tested
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.html import html_report
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.markdown import markdown_report
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import summary_lines

from tests.kit.builders import SHIPPED, TIME, judge
from tests.kit.peer_fleet import healthy_fleet

TRAINING = ("training", "node")
GPU = ("GPU products", "part")


def fleet(size=8, setting="normal", **fields):
    return goals.Fleet(
        size, goals.SETTINGS[setting], goals.FIGURE_STAGES, "power", goals.Fault("", "", (), 1.0, **fields)
    )


def shares(of, targets, *factors):
    """By factor, of some nodes and another GPU of each, the share that is named with so much of the smallest loss."""
    losses, entries = benchmark.losses_of(of)
    checks = benchmark.criteria({entry["metric"] for entry in entries.values()})
    names = list(of.nodes)[:: max(1, len(of.nodes) // 8)]
    for factor in factors:
        count = dict.fromkeys(targets, 0)
        for number, name in enumerate(names):
            parts = {"part": f"gpu:{3 * number % 8}", "node": ""}
            faults = {target: (name, parts[target[1]], factor(losses[target])) for target in targets}
            count |= {target: count[target] + 1 for target in benchmark.named(of, faults, entries, checks)}
        yield {target: found / len(names) for target, found in count.items()}


@pytest.mark.parametrize(("size", "setting"), [(4, "normal"), (8, "nodes t3"), (26, "normal")])
def test_the_smallest_loss_is_named_on_every_node_and_half_of_it_on_few(size, setting):
    targets = [GPU, ("all-reduce", "node"), TRAINING]
    whole, half = shares(fleet(size, setting), targets, lambda loss: loss, lambda loss: loss / 2)
    assert set(whole.values()) == {1.0}
    assert max(half.values()) <= 0.5


def test_a_loss_just_below_the_smallest_is_missed_on_a_node():
    exact, below = shares(fleet(8), [TRAINING], lambda loss: loss, lambda loss: loss - 0.0015)
    assert exact[TRAINING] == 1.0 and below[TRAINING] < 1.0


def test_wider_spreads_and_fewer_nodes_miss_more():
    wide = goals.Fleet(8, {**goals.NORMAL, "disturbed": 0.02}, goals.FIGURE_STAGES, "power", None)
    assert benchmark.losses_of(wide)[0][TRAINING] > 1.5 * benchmark.losses_of(fleet(8))[0][TRAINING]


def test_each_software_has_losses_of_its_own():
    of = fleet(9, own_driver=True)
    for record in of.evidence.records["node-000"].values():
        record["environment"] = {**record["environment"], "torch": "2.12"}
    entries = [entry for entry in judge(of.run, of.evidence, SHIPPED)["fleet"]["power"] if entry["title"] == "training"]
    assert [entry["nodes"] for entry in entries] == [8, 1]
    assert entries[1]["kind"].endswith("2.12")


def test_what_no_verdict_depends_on_is_left_out_where_no_report_is_written():
    of = fleet(3)
    report = verdict.judge(of.run, of.evidence, SHIPPED, judged_at=TIME, for_report=False)
    assert not {"power", "analysis"} & report["fleet"].keys()
    assert report["nodes"] == judge(of.run, of.evidence, SHIPPED)["nodes"]


def test_what_nothing_compares_is_not_known():
    run, evidence = healthy_fleet("mi300x", 1)
    checks = Criteria(
        [check for check in SHIPPED if check.name in ("training_speed_fleet", "diagnostics_matmul_fleet")]
    )
    report = judge(run, evidence, checks)
    schemas.validate("report", report, what="report")
    assert {entry["title"]: entry["node"] for entry in report["fleet"]["power"]} == {
        "GPU products": None,
        "training": None,
    }
    assert not_tested.losses(report)[1].startswith("training not known (")
    assert "power" not in judge(run, evidence, Criteria([]))["fleet"]


def test_bursts_are_those_of_a_tenth_of_the_measured_seconds():
    of = fleet(3)
    for by_stage in of.evidence.records.values():
        by_stage["diagnostics"]["environment"]["seconds_by_part"] = {
            "matrix products": 18.0, "collectives": "long", "links between devices": 1e300,
        }  # fmt: skip
        for metric in by_stage["training"]["metrics"]:
            metric["value"] = 300.0 if metric["name"] == "training_duration_seconds" else metric["value"]
    report = judge(of.run, of.evidence, SHIPPED)
    bursts = {entry["title"]: entry["burst_seconds"] for entry in report["fleet"]["power"]}
    assert (bursts["GPU products"], bursts["training"]) == (1.2, 30.0)
    assert bursts["all-reduce"] is bursts["link"] is None
    report["summary"] = summary_lines(report)
    (line,) = [text for text in not_tested.losses(report) if text.startswith("GPU products")]
    assert "%" in line and line.endswith("bursts over 1.2 s not tested, 3 nodes)")
    assert any(text.startswith("Smallest losses that are named (99 %): GPU products ") for text in report["summary"])
    assert line in html_report(report) and "## Smallest losses that are named" in markdown_report(report)


def test_the_table_names_figures_that_shipped_criteria_compare():
    compared = {check.metric for check in SHIPPED if check.kind == "outlier" and check.peers == "fleet"}
    assert {figure.metric for figure in figures_of(traits_of_stages()) if figure.loss} <= compared
