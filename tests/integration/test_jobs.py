"""Jobs by `make job`'s play: steps, a figure, a job that fails beside another, and a clean that leaves nothing."""

import json

import pytest

from tests.kit import jobs

RATE = [{"pattern": r"rate=(?P<value>\S+)", "name": "steady_rate", "unit": "samples/s"}]
STEPS = [
    {"name": "clone", "run": "echo never; false"},
    {"name": "convert", "run": "echo 12.5 > rate"},
    {"name": "train", "run": 'echo "rate=$(cat rate)"; sleep 600 >/dev/null 2>&1 &'},
]
BROKEN = [{"name": "load", "run": "true"}, {"name": "train", "run": "echo disk is gone; exit 3"}]


@pytest.fixture(scope="module")
def fleet(new_fleet, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    files = [
        jobs.write(folder, name="steady", steps=STEPS, results={"patterns": RATE}),
        jobs.write(folder, name="broken", steps=BROKEN),
    ]
    settings = {"gpuval_jobs": [str(file) for file in files], "gpuval_job_skip": "clone", "gpuval_retries": 0}
    with new_fleet("jobs", settings=settings) as made:
        yield made


def test_a_missing_script_or_a_mistyped_key_stops_the_play_before_anything_starts(fleet, tmp_path):
    wrong = jobs.write(tmp_path, files=["trian.py"], stpes=[])
    done = fleet.play("gpuval.fleet.job", "-e", json.dumps({"gpuval_jobs": [str(wrong)]}))
    assert done.code != 0
    assert f"gpuval_jobs: {wrong}" in done.told
    assert "unknown key 'stpes'; is it steps?" in done.told
    assert not (fleet.results / "latest").exists()


def test_a_job_that_fails_is_named_and_the_other_is_judged_by_its_own_result(fleet):
    done = fleet.play("gpuval.fleet.job")
    assert done.code != 0
    fleet.assert_evidence("node-1", {"facts": "success", "steady": "success", "broken": "crash"})
    steady = fleet.record("node-1", "steady")
    assert steady["message"] == "2 of 3 steps; skipped: clone"
    assert {"name": "steady_rate_samples_per_second", "value": 12.5}.items() <= steady["metrics"][0].items()
    assert "step clone skipped" in fleet.log("node-1", "steady")
    verdict = fleet.verdict("node-1")
    assert (verdict["verdict"], verdict["class"]) == ("INCOMPLETE", "own_program")
    assert "node-1 INCOMPLETE broken: crash: exit code 3 without a result; step train (2 of 2)" in done.told
    assert "last output: disk is gone" in done.told
    (check,) = fleet.decisive("node-1")
    assert check["stage"] == "broken"
    assert "PARTIAL at best" in done.told, "jobs alone accept no node"


def test_a_clean_removes_the_jobs_folders_and_what_they_left_running(fleet):
    assert fleet.play("gpuval.fleet.clean").code == 0
    assert not list(fleet.node_base("node-1").rglob("*"))
