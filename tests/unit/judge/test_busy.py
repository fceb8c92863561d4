"""A run of idle nodes: one with other work, or that gave way to it, is listed as busy and has no verdict."""

import json
import os

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.processes import MIN_NODES
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import failed_checks, publishing
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder

from tests.kit import judged_folder
from tests.kit.builders import LAUNCHED, check, healthy, judge, make_record, make_run, metric

IN_THE_WAY = "others use this node's accelerators or run here: python (pid 7)"
REFUSED = {"state": "refused", "message": IN_THE_WAY}
PREEMPTED = {
    "state": "started",
    "message": "",
    "contact": {"class": "preempted", "message": "x", "remedy": "y", "pod": "p"},
}


def refused(evidence):
    evidence.records.pop("busy")
    evidence.launches["busy"] = REFUSED


def preempted(evidence):
    evidence.records["busy"].pop("training")
    evidence.launches["busy"] = PREEMPTED


def gave_way(evidence):
    record = make_record("busy", state="cancelled", message=f"gave way: {IN_THE_WAY}", metrics=[])
    evidence.records["busy"]["training"] = record


CASES = [(refused, "foreign_work"), (preempted, "preempted"), (gave_way, "foreign_work")]


def report_on(change, nodes=("idle", "busy"), **fields):
    run = make_run(list(nodes), gpu_count=8, **{"only_idle": True, **fields})
    evidence = healthy(run)
    change(evidence)
    report = judge(run, evidence, [check("speed")])
    assert list(report_file.lines(report, what="it"))
    return report


@pytest.mark.parametrize(("change", "word"), CASES)
def test_a_busy_node_has_no_verdict_and_is_listed(change, word):
    report = report_on(change)
    assert [(node["name"], node["verdict"]) for node in report["nodes"]] == [("idle", "PASS")]
    assert (report["verdict"], report["counts"]["expected"]) == ("PARTIAL", 1)
    assert report["run"]["busy"]["busy"]["class"] == word
    assert f"Busy, not checked: busy ({word})" in report["summary"]
    proven = {"unproven": []}
    assert failed_checks.accepts(report["run"], proven) and not failed_checks.is_whole(report["run"], proven)


@pytest.mark.parametrize("only_idle", [True, False])
def test_the_analysis_of_a_fleet_is_without_busy_nodes_on_two_processors_as_on_one(monkeypatch, only_idle):
    nodes = ["busy", *(f"idle-{number}" for number in range(MIN_NODES))]
    reports = []
    for processors in ({0}, {0, 1}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, found=processors: found)
        reports.append(report_on(gave_way, nodes, only_idle=only_idle))
    assert reports[0] == reports[1]
    counted = {one["nodes"] for one in reports[0]["fleet"]["analysis"]["statistics"] if one["stage"] == "facts"}
    assert counted == {MIN_NODES + (not only_idle)}


@pytest.mark.parametrize(("change", "word"), CASES)
def test_without_the_setting_it_is_incomplete(change, word):
    report = report_on(change, only_idle=False)
    found = {node["name"]: (node["verdict"], node["class"]) for node in report["nodes"]}
    assert (report["verdict"], found["busy"]) == ("INCOMPLETE", ("INCOMPLETE", word))


def test_what_failed_before_the_node_got_work_counts():
    def change(evidence):
        preempted(evidence)
        evidence.records["busy"]["facts"]["metrics"] = [metric("gpu_count", 7)]

    checks = [check("gpus", stage="facts", metric="gpu_count", kind="equal", value=8)]
    run = make_run(["busy"], gpu_count=8, only_idle=True)
    evidence = healthy(run)
    change(evidence)
    assert judge(run, evidence, checks)["verdict"] == "FAIL"


@pytest.mark.parametrize(
    ("figure", "one", "verdict"),
    [
        (metric("gpu_ecc_uncorrected_count", 1, "count", "gpu:3"), {"kind": "max", "scope": "gpu", "value": 0}, "FAIL"),
        (metric("training_tokens_per_second", 1.0, "tokens/s"), {"kind": "min", "value": 9, "retry": True}, "PARTIAL"),
    ],
)
def test_of_a_stage_that_gave_way_faults_count_and_speed_does_not(figure, one, verdict):
    run = make_run(["busy"], gpu_count=8, only_idle=True)
    evidence = healthy(run)
    gave_way(evidence)
    evidence.records["busy"]["training"]["metrics"] = [figure]
    report = judge(run, evidence, [check("one", metric=figure["name"], where_reported=True, **one)])
    assert (report["verdict"], [*report["run"].get("busy", {})]) == (verdict, ["busy"] if verdict == "PARTIAL" else [])


def test_what_an_earlier_run_left_is_no_work_of_others():
    """It may hang in the driver: the node would be busy for ever."""

    def change(evidence):
        refused(evidence)
        evidence.launches["busy"] = {**REFUSED, "message": f"{IN_THE_WAY} of gpuval run r0"}

    report = report_on(change)
    assert (report["verdict"], report["run"].get("busy")) == ("INCOMPLETE", None)


def test_a_node_that_is_away_is_incomplete():
    def change(evidence):
        evidence.records.pop("busy")
        evidence.launches["busy"] = {"state": "unreachable", "message": "No route to host"}

    assert report_on(change)["verdict"] == "INCOMPLETE"


@pytest.mark.parametrize(("state", "until"), [("failed", ""), ("refused", " until the deadline")])
@pytest.mark.parametrize(
    ("reason", "busy"),
    [
        ("Priority", True),
        ("Resources", True),
        ("AssocGrpGRES", False),
        ("ReqNodeNotAvail, UnavailableNodes:busy", False),
    ],
)
def test_a_pending_job_waits_for_others_only_by_priority_or_resources(reason, busy, state, until):
    def waits(evidence):
        evidence.records.pop("busy")
        message = f"job 7 is pending ({reason})" + until
        evidence.launches["busy"] = {"state": state, "class": "slurm_pending", "message": message, "remedy": "y"}

    report = report_on(waits)
    assert (report["verdict"], "busy" in report["run"].get("busy", {})) == ("PARTIAL" if busy else "INCOMPLETE", busy)
    assert busy or "slurm_pending" in [node["class"] for node in report["nodes"]]


def test_where_all_are_busy_nothing_is_wrong():
    report = report_on(refused, ["busy"])
    assert (report["verdict"], report["nodes"]) == ("PARTIAL", [])
    assert not any("No node was expected" in line for line in report["summary"])
    assert verdict.run_verdict([], narrowed=True) == "INCOMPLETE"


def test_it_stays_busy_when_it_is_judged_again(tmp_path):
    run = make_run(["idle", "busy"], gpu_count=8, only_idle=True, finished_at="2026-11-10T10:00:00Z")
    evidence = healthy(run)
    gave_way(evidence)
    folder = RunFolder(tmp_path)
    folder.state.mkdir()
    (tmp_path / "launches.json").write_text("{}")
    for node, records in evidence.records.items():
        folder.write_launch(node, {"node": node, "at": run["created_at"], **LAUNCHED})
        for stage, record in records.items():
            path = folder.evidence_file(node, stage)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({**record, "run_id": run["run_id"]}))
    first = judged_folder.report_on(folder, [check("speed")], run=run)
    publishing.keep_verdict(folder, first)
    again = judged_folder.report_on(
        folder, [check("speed")], run=run, verdict_before=publishing.judged(folder), is_frozen=True
    )
    assert again["run"]["busy"] == first["run"]["busy"]
    assert again["fleet"]["problems"] == []
