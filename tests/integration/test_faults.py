"""Every fault, caused for real: its node is named with class and message, and all other nodes finish.

GPUVAL_FAULTS_TABLE=docs/reference/faults.md writes the table of what became of each.
"""

import itertools
import os
import re
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import INVENTORY_FILE, TURN_FILE

from tests.kit import faults_table
from tests.kit.faults import EVERY_FAULT, FAULTS, OTHER_RUNS, FaultyFleet


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The fleet after its runs, what the console said, and the rows of the table."""
    with FaultyFleet(tmp_path_factory.mktemp("faults")) as fleet:
        done = fleet.play_through()
        rows, said = faults_table.rows_of(FAULTS, fleet.report()), done.output
        for other in OTHER_RUNS:
            controller, ended = fleet.others[other.name]
            rows += faults_table.rows_of(other.faults, controller.report())
            said += ended.output
        if os.environ.get("GPUVAL_FAULTS_TABLE"):
            faults_table.write(Path(os.environ["GPUVAL_FAULTS_TABLE"]), rows)
        yield fleet, said, {row.node: row for row in rows}


def test_no_node_drops_out_of_a_report(run):
    fleet, *_ = run
    assert {node["name"] for node in fleet.report()["nodes"]} == {fault.node for fault in FAULTS}
    for other in OTHER_RUNS:
        controller, _ = fleet.others[other.name]
        assert {node["name"] for node in controller.report()["nodes"]} == {fault.node for fault in other.faults}


@pytest.mark.parametrize("fault", EVERY_FAULT, ids=lambda fault: fault.node)
def test_what_becomes_of_the_node(run, fault):
    _, said, rows = run
    row = rows[fault.node]
    assert row.verdict == fault.verdict, row
    if fault.says:
        told = " ".join([row.message, *(line for line in said.splitlines() if line.startswith(f"- {fault.node} "))])
        assert re.search(fault.says, told, re.IGNORECASE), told


def test_the_second_run_on_a_node_refuses_and_disturbs_nothing(run):
    fleet, *_ = run
    assert fleet.second.code != 0
    assert f"run {fleet.run_id} is at work on this node" in fleet.second.told


def test_a_clean_does_not_wait_for_a_node_that_hangs(run):
    fleet, *_ = run
    assert fleet.hung_clean.code != 0
    assert re.search(r"^- hung-launch left \(no_answer\): ", fleet.hung_clean.output, re.MULTILINE), fleet.hung_clean


def test_one_at_a_time_is_never_two(run):
    fleet, *_ = run
    controller, _ = fleet.others["window"]
    measured = ["window-1", "window-2", "window-3", "window-forced"]
    times = sorted(
        (controller.record(node, "facts")["started_at"], controller.record(node, "work")["finished_at"])
        for node in measured
    )
    for (_, ended), (began, _) in itertools.pairwise(times):
        assert ended <= began, times


def test_a_controller_started_again_runs_nothing_twice(run):
    """The work lives on without its controller, and the same command resumes the run."""
    fleet, *_ = run
    controller, done = fleet.others["killed"]
    assert controller.killed["finished_at"] is None
    assert done.code == 0, str(done)
    assert "FINAL ACCEPTANCE: PARTIAL" in done.output
    assert "resumed where it stopped" in done.output
    place = controller.run_folder.parent
    assert {path.name for path in controller.results.iterdir()} - {"latest", TURN_FILE} == {place.name}
    assert {path.name for path in place.iterdir()} - {"latest", INVENTORY_FILE} == {controller.run_id}
    assert controller.read_run()["created_at"] == controller.killed["created_at"]
    for node in controller.nodes:
        assert re.search(rf"{node} work: (running|success)", done.output)
        states = {stage["name"]: stage["state"] for stage in controller.verdict(node)["stages"]}
        assert states["facts"] == states["work"] == "success"
        controller.assert_evidence(node, states)
        record = controller.record(node, "work")
        assert (record["attempt"], record["attempts"], controller.verdict(node)["flaky"]) == (1, [], False)
        notes = controller.runner_log(node)
        assert [notes.count(said) for said in ("runner pid", "facts: starts", "work: starts")] == [1, 1, 1]
