"""A node that is lost in mid-run and comes back is named; one that gave way to other work is not. Neither is flaky."""

import re

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.failure_classes import row_of
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.placement import NodeOutages

from tests.kit.builders import healthy, judge, make_record, make_run

ENDED = {"message": "job 12 ended: NODE_FAIL", "remedy": "check slurmd on {node}"}


def relaunched(path, name, **contact):
    """The launch file of a node after a second attempt."""
    run = folder.RunFolder(path)
    (path / ".state/launches").mkdir(parents=True)
    started = {"node": "node-1", "state": "started", "message": "", "attempt": 1}
    run.write_launch("node-1", {**started, "contact": {"class": name, **ENDED, **contact}})
    run.write_launch("node-1", {**started, "attempt": 2, "stages": ["training"]})
    run.write_launch("node-1", {**started, "attempt": 2, "message": "heartbeat"})
    return run.read_launch("node-1")


def report_of(launch):
    run = make_run()
    evidence = healthy(run)
    evidence.launches["node-1"] = launch
    cut_off = make_record(state="running", finished_at=None, metrics=[])
    evidence.records["node-1"]["training"].update(attempt=2, attempts=[cut_off])
    report = judge(run, evidence)
    schemas.validate("report", report, what="report")
    return report


@pytest.mark.parametrize("name", sorted(launch_errors.NODE_LOST))
def test_a_node_that_was_lost_in_mid_run_is_named_and_not_flaky(tmp_path, name):
    report = report_of(relaunched(tmp_path, name))
    (node,) = report["nodes"]
    (check,) = [check for check in node["checks"] if check["name"] == "interrupted"]
    assert (node["verdict"], node["flaky"], check["verdict"], check["value"]) == ("PASS", False, "warn", name)
    assert "job 12 ended: NODE_FAIL" in check["reason"]
    assert check["remedy"] == "check slurmd on node-1"
    assert not any(line.startswith("Flaky") for line in report["summary"])
    assert [stage["retried_for"] for stage in node["stages"] if stage["name"] == "training"] == ["interrupted"]
    assert any("interrupted" in line for line in report["summary"] if line.startswith("Warnings"))


@pytest.mark.parametrize(
    "name", ["slurm_preempted", "slurm_cancelled", "slurm_requeued", "preempted", "evicted", "drained", "suspended",
             "pod_deleted", "job_deleted", "lost_contact"],
)  # fmt: skip
def test_a_node_that_gave_way_is_not_flaky(tmp_path, name):
    launch = relaunched(tmp_path, name)
    report = report_of(launch)
    (node,) = report["nodes"]
    assert "interruptions" not in launch
    assert (node["verdict"], node["flaky"]) == ("PASS", False)
    assert not [check for check in node["checks"] if check["name"] == "interrupted"]


def launches_with_outages(path, count):
    """The launch file of a node with outages in its only attempt."""
    run = folder.RunFolder(path)
    (path / ".state/launches").mkdir(parents=True)
    outages, launch = NodeOutages(row_of("node_not_ready")), {"node": "node-1", "state": "started", "attempt": 1}
    for number in range(count):
        assert outages.noted("node-1", launch, f"Ready is Unknown, {number}", 100.0 * number) == launch
        launch = outages.noted("node-1", launch, "", 100.0 * number + 20)
        run.write_launch("node-1", launch)
        run.write_launch("node-1", {"node": "node-1", "state": "started", "attempt": 1, "message": "heartbeat"})
        launch = run.read_launch("node-1")
    return launch


def test_a_node_that_did_not_answer_for_a_while_is_warned_of_and_not_flaky(tmp_path):
    report = report_of(launches_with_outages(tmp_path, 1))
    (node,) = report["nodes"]
    (check,) = [check for check in node["checks"] if check["name"] == "interrupted"]
    assert (node["verdict"], check["verdict"], check["value"]) == ("PASS", "warn", "node_not_ready")
    expected = r"interrupted in mid-run: no answer from 20\S+Z for 20 s \(Ready is Unknown, 0\); its work went on"
    assert re.fullmatch(expected, check["reason"])
    assert "kubectl describe node node-1" in check["remedy"]
    assert any("interrupted" in line for line in report["summary"] if line.startswith("Warnings"))


def test_a_node_that_never_stops_to_flap_keeps_its_first_outages(tmp_path):
    assert len(launches_with_outages(tmp_path, 12)["interruptions"]) == launch_errors.MAX_INTERRUPTIONS
