"""`make deliver` through its action."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import write_forms
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.summary import summary_lines
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.actions import run_action
from tests.kit.builders import healthy, judge, make_run, write_report
from tests.kit.run_commands import lay_out, opened, started, variables


def deliver(results, run_id="r1", *, check_mode=False):
    options = {
        "run_id": run_id,
        "results_dir": str(results),
        "store": {"bucket": "b", "state_dir": str(results.parent / "state")},
        "unmapped": "keep",
    }
    task_vars = variables(results, "a")
    task_vars["hostvars"]["node-1"]["gpuval_node_ids"] = {"gone": "id-of-gone"}
    return run_action("deliver_run", options, task_vars=task_vars, check_mode=check_mode)


@pytest.mark.parametrize("check_mode", [False, True])
@pytest.mark.parametrize(
    ("verdict", "ended", "line"),
    [
        ("PASS", True, "- verdict of run r1: PASS (1 PASS, 0 FAIL, 0 INCOMPLETE)"),
        ("INCOMPLETE", False, "- verdict of run r1, which has not ended: INCOMPLETE (0 PASS, 0 FAIL, 1 INCOMPLETE)"),
    ],
)
def test_a_delivery_states_the_verdict_of_its_run(tmp_path, verdict, ended, line, check_mode):
    results = lay_out(tmp_path)
    folder = started(results, "r1")
    run = make_run(run_id="r1", finished_at=run_folder.now() if ended else None)
    evidence = healthy(run)
    if verdict != "PASS":
        evidence.records.clear()
    report = judge(run, evidence)
    report["summary"] = summary_lines(report)
    write_report(report, folder.path)
    write_forms(run_folder.read_report(folder), folder.path)
    folder.write_run({**folder.read_run(), "finished_at": run["finished_at"]})
    done = deliver(results, check_mode=check_mode)
    assert not done.failed, done.text
    assert line in done.lines
    assert "gpuval_node_ids names workers that are not in the run: gone" in done.lines
    assert "delivered under their own names, without unique ids: node-1" in done.lines
    assert (done.result["unmapped"], done.result["unknown"]) == (["node-1"], ["gone"])


def test_a_run_that_never_started_has_no_delivery_and_says_why(tmp_path):
    results = lay_out(tmp_path)
    opened(results, "r1")
    done = deliver(results)
    assert done.failed and "run r1 has no verdict, it is opened since " in done.text
    assert "no run started yet: run r1 is opened since" in deliver(results, "").text
