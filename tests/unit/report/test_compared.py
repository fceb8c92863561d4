"""A run beside an earlier run and a baseline; causes by rack, and next steps."""

import json
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import write_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.html import html_report
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.page import causes, compared, next_steps
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.page.results import DELIVERY
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder

from tests.kit.reports import report_of

SPEED = ("training", "training_tokens_per_second")


def kept(results: Path, report, day, inventory=("hosts",), **fields):
    """The results folder of a report."""
    folder = results / report["run"]["run_id"]
    folder.mkdir(parents=True)
    time = f"2026-11-{day:02}T10:00:00Z"
    run = {
        "schema": "gpuval.run/1", "run_id": folder.name, "profile": "quick", "created_at": time, "finished_at": time,
        "nodes": {node["name"]: {} for node in report["nodes"]},
        "origin": {"inventory": list(inventory)}, **fields,
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))
    write_file(folder / "report.json", report_file.lines(report))
    return folder


def set_speed(report, name, value):
    (node,) = [node for node in report["nodes"] if node["name"] == name]
    for metric in node["metrics"]["training"]:
        if metric["name"] == SPEED[1]:
            metric["value"] = value


def test_compares_with_the_latest_alike_run_before(tmp_path):
    then = report_of({"a": "PASS", "b": "PASS", "c": "PASS"}, day=10)
    now = report_of({"a": "PASS", "b": "FAIL", "d": "PASS"}, day=20)
    for name, before, after in (("a", 50_000, 55_000), ("b", 50_000, 50_100)):
        set_speed(then, name, before)
        set_speed(now, name, after)
    kept(tmp_path, then, 10)
    kept(tmp_path, report_of({"a": "FAIL"}, day=9), 9)
    kept(tmp_path, report_of({"a": "FAIL"}, day=11), 11, profile="burnin")
    kept(tmp_path, report_of({"a": "FAIL"}, day=12), 12, inventory=("/other",))
    kept(tmp_path, report_of({"a": "FAIL"}, day=13), 13, finished_at=None)
    kept(tmp_path, report_of({"z": "FAIL"}, day=14), 14)
    (kept(tmp_path, report_of({"a": "FAIL"}, day=15), 15) / "report.json").write_text("{")
    kept(tmp_path, report_of({"a": "FAIL"}, day=21), 21)
    found = compared.Comparison(now, kept(tmp_path, now, 20))
    assert found.earlier.run_id == "run-10"
    assert found.verdicts == [("b", "PASS", "FAIL")]
    (speed,) = [row for row in found.rows if row.key == SPEED]
    assert (speed.nodes, speed.then, speed.now) == (2, 50_000, 52_550)
    assert [(one.node, round(one.change, 3)) for one in found.changes if one.key == SPEED] == [("a", 0.1)]
    page = html_report(now, tmp_path / "run-20")
    assert "With run run-10" in page
    assert "make rerun INVENTORY=hosts" in page
    customers = html_report(now, tmp_path / "run-20", DELIVERY)
    assert "run-10" not in customers
    assert "INVENTORY=" not in customers


def test_figures_of_another_revision_are_left_out(tmp_path):
    then, now = report_of({"a": "PASS", "b": "PASS"}, day=10), report_of({"a": "PASS", "b": "PASS"}, day=20)
    for metric in now["nodes"][0]["metrics"]["training"]:
        metric.update({"revision": 2} if metric["name"] == SPEED[1] else {})
    kept(tmp_path, then, 10)
    found = compared.Comparison(now, kept(tmp_path, now, 20))
    (speed,) = [row for row in found.rows if row.key == SPEED]
    assert speed.nodes == 1
    assert {name: SPEED in figures for name, figures in found.earlier.comparable.items()} == {"a": False, "b": True}


def test_no_other_run_is_no_comparison(tmp_path):
    now = report_of({"a": "PASS"}, day=20)
    assert not compared.Comparison(now, kept(tmp_path, now, 20))
    assert 'id="compared"' not in html_report(now, tmp_path / "run-20")


@pytest.mark.parametrize("damage", ["[1]", "{}", '{"baseline": 7}', '{"baseline": {"text": "{"}}'])
def test_a_damaged_baseline_is_passed_over(tmp_path, damage):
    now = report_of({"a": "PASS"}, day=20)
    path = RunFolder(kept(tmp_path, now, 20)).criteria_file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(damage)
    assert not compared.Comparison(now, tmp_path / "run-20")


def test_compares_with_the_baseline_of_the_same_kind_of_node(tmp_path):
    now = report_of({"a": "PASS", "b": "PASS"}, day=20)
    workload = next(stage["workload"] for stage in now["nodes"][0]["stages"] if stage["name"] == "training")
    for node, value in zip(now["nodes"], (55_000, 57_000), strict=True):
        set_speed(now, node["name"], value)
    kind = {"sku": now["nodes"][0].get("catalogue_sku"), "gpus": len(now["nodes"][0]["identity"].get("gpus", ()))}
    figure = {
        "stage": SPEED[0], "metric": SPEED[1], "scope": "node", "unit": "tokens/s", "workload": workload,
        "nodes": 8, "median": 50_000, **kind,
    }  # fmt: skip
    others = [{**figure, "sku": "b200", "nodes": 99}, {**figure, "workload": "other/1", "nodes": 99}]
    text = json.dumps({"name": "site", "version": 2, "figures": [*others, figure]})
    path = RunFolder(kept(tmp_path, now, 20)).criteria_file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"criteria": [], "baseline": {"name": "site.json", "sha256": "", "text": text}}))
    found = compared.Comparison(now, tmp_path / "run-20")
    assert found.baseline == "site version 2"
    assert [(row.then, row.now, round(row.change, 3)) for row in found.baseline_rows] == [(50_000, 56_000, 0.12)]
    assert "With the baseline site version 2" in html_report(now, tmp_path / "run-20")


def test_causes_count_nodes_by_rack_and_name_the_action():
    report = report_of({"a": "FAIL", "b": "FAIL", "c": "FAIL", "d": "PASS"})
    for node, labels in zip(
        report["nodes"], ({"rack": "r1"}, {"example.com/rack": "r1"}, {"pdu": "2"}, {"rack": "r9"})
    ):
        node["labels"] = labels
    report["nodes"][1]["action"] = {"name": "retest", "class": "speed", "parts": [], "earlier_runs": [], "faults": []}
    (cause,) = causes.causes(report)
    assert (cause.verdict, cause.names, dict(cause.racks), cause.actions) == (
        "FAIL",
        ["a", "b", "c"],
        {"r1": 2},
        ["retest"],
    )
    assert "under the limit" in cause.example


def test_a_digest_in_a_cause_is_short():
    report = report_of({"a": "FAIL"})
    for check in report["nodes"][0]["checks"]:
        check["reason"] = f"image sha256:{'0123456789abcdef' * 4} differs, part deadbeefcafe"
    (cause,) = causes.causes(report)
    assert cause.example == "image sha256:0123456789ab… differs, part deadbeefcafe"


def test_next_steps_can_be_pasted_into_a_shell():
    failed = dict(next_steps.of_report(report_of({"a b": "FAIL", "c": "PASS"}), "my inventory/hosts"))
    assert "make rerun INVENTORY='my inventory/hosts'" in failed.values()
    assert "make history NODE='a b' INVENTORY='my inventory/hosts'" in failed.values()
    assert "make hostfile FILE=hostfile INVENTORY='my inventory/hosts'" in failed.values()
    passed = dict(next_steps.of_report(report_of({"a": "PASS"}), ""))
    assert list(passed.values()) == ["make baseline NAME=site", "make deliver", "make clean"]
    assert "make hostfile FILE=hostfile" not in dict(next_steps.of_report(report_of({"a": "FAIL"}), "")).values()


def test_what_ended_with_its_container_has_no_step_but_to_validate_again(monkeypatch):
    monkeypatch.setattr(next_steps.commands, "AGAIN", "docker run ... IMAGE")
    monkeypatch.setattr(next_steps.commands, "in_checkout", lambda: False)
    *by_hand, (_purpose, command) = next_steps.of_report(report_of({"a": "FAIL"}), "machine")
    assert (command, {line for _, line in by_hand}) == ("docker run ... IMAGE", {""})
    assert next_steps.of_report(report_of({"a": "PASS"}), "machine") == []
