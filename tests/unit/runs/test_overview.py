"""The list of an inventory's runs, and what a validation of the rest takes."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import overview

from tests.kit import jobs
from tests.kit.actions import run_action
from tests.kit.run_commands import killed, lay_out, opened, started, variables


@pytest.fixture
def results(tmp_path):
    return lay_out(tmp_path)


def list_runs(results, inventory="a", **options):
    options = {"results_dir": str(results), **options}
    return run_action("list_runs", options, task_vars=variables(results, inventory))


def judged(results, run_id, verdict="FAIL", inventory="a", **options):
    folder = opened(results, run_id, inventory, **options)
    for step in ("working", "collecting", "judged"):
        folder.advance(step)
    run_folder.remember(run_folder.find(results, run_id))
    folder.write_run({**folder.read_run(), "finished_at": run_folder.now()})
    document = {
        "schema": "gpuval.verdict/1",
        "run_id": run_id,
        "judged_at": run_folder.now(),
        "verdict": verdict,
        "counts": {verdict: 1},
        "nodes": {"node-1": verdict},
        "evidence": {},
    }
    run_folder.write_json(folder.verdict_file, document)
    return folder


def test_runs_of_the_inventory_are_listed_with_state_verdicts_and_age(results):
    judged(results, "r1")
    started(results, "r2")
    killed(opened(results, "r3"))
    started(results, "other", "b")
    done = list_runs(results)
    states = {row["run_id"]: (row["state"], row["verdict"]) for row in done.result["runs"]}
    assert states == {"r1": ("judged", "FAIL"), "r2": ("working", None), "r3": ("failed", None)}
    assert "judged: FAIL  0     1     0" in done.text and " s ago" in done.text
    assert "r3: its controller ended while it was opened" in done.text
    assert f"runs of other inventories: other (`make runs INVENTORY={results.parent / 'b'}`)" in done.text
    none = list_runs(results.parent / "none").text
    assert "0 run(s)" in none and "; `make validate" in none and "starts one" not in done.text


@pytest.mark.parametrize(
    ("step", "what"),
    [
        ("opened", "no node has begun"),
        ("working", "its nodes go on working"),
        ("collecting", "its nodes are done"),
        ("judged", ""),
    ],
)
def test_an_interrupted_run_is_named_with_what_resumes_and_what_ends_it(results, step, what):
    folder = {"opened": opened, "judged": judged}.get(step, started)(results, "r1")
    folder.advance(step)
    command = f"`make clean INVENTORY={results.parent / 'a'} RUN=r1`"
    line = (
        f"run r1 is interrupted, {what}: the same command, with RUN=r1, resumes it, {command} ends it" if what else ""
    )
    assert overview.interrupted(folder) == line


def test_what_did_not_pass_is_validated_again_with_the_profile_of_the_run(results, tmp_path):
    judged(results, "r1", profile="quick")
    judged(results, "r2", "PASS", inventory="b")
    done = list_runs(results, rerun=str(tmp_path / "way"))
    assert done.result["nodes"] == ["node-1"]
    assert (tmp_path / "way/nodes").read_text() == "node-1\n"
    assert json.loads((tmp_path / "way/settings.json").read_text()) == {"gpuval_profile": "quick"}
    assert list_runs(results, "b", rerun=str(tmp_path / "none")).result["nodes"] == []
    assert (tmp_path / "none/nodes").read_text() == "", "the Makefile then validates nothing"


def test_nothing_to_validate_again_is_no_more_than_the_run_shows(results, tmp_path):
    folder = judged(results, "r1", "PASS")
    fleet = {"checks": [{"name": "training_alike", "verdict": "missing"}, {"name": "same_driver", "verdict": "pass"}]}
    run_folder.write_json(folder.path / "report.json", {"verdict": "PARTIAL", "fleet": fleet})
    text = list_runs(results, rerun=str(tmp_path / "way")).text
    assert "all nodes passed, and it is PARTIAL, of some nodes or stages: `make validate` covers all" in text
    assert f"; checks of the fleet did not: training_alike: see {folder.path / 'report.html'}" in text


@pytest.mark.parametrize("alone", [True, False])
def test_jobs_that_a_command_chose_are_not_left_out_of_what_is_validated_again(results, tmp_path, alone):
    """Without its job a node would pass."""
    chosen = {"profile": "custom", "accepts": False} if alone else {"profile": "quick"}
    workloads = {"facts": {"command": ["true"]}, "mine": {"command": ["sh"]}}
    folder = judged(results, "r1", profile_stages=[*workloads], workloads=workloads, **chosen)
    way = tmp_path / "way"
    done = list_runs(results, rerun=str(way))
    limit = f"--limit @{folder.path / 'failed_nodes.txt'}"
    assert done.failed and "run r1 ran mine, which its command chose" in done.text and limit in done.text
    assert list_runs(results, rerun=str(way), jobs=[str(jobs.write(tmp_path))]).failed == alone


def test_a_run_without_a_verdict_is_resumed_instead(results, tmp_path):
    started(results, "r1")
    done = list_runs(results, rerun=str(tmp_path / "way"))
    assert done.failed and "has no verdict, it is working since" in done.text
