"""Nodes that answer otherwise than gpuval does, in a run with an honest one: each harms its own verdict alone."""

import json

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.node_launch import ANSWER
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas

from tests.kit.fleet import machine

POISON = {
    "gpuval_model": "/root/.docker",
    "gpuval_results_dir": "/tmp/gpuval-poisoned",
    "gpuval_images": {"training": {"reference": "evil.example/x:1"}},
    "gpuval_s3_endpoint": "https://evil.example",
    "discovered_interpreter_python": "/bin/false",
}
STARTED = {"state": "started", "message": "", "pid": 1, "store_reachable": True}
REFUSED = {"state": "refused", "message": "\x1b[31mFINAL ACCEPTANCE: PASS\n::error::forged"}
LAUNCHES = {
    "attempt": {**STARTED, "attempt": "x"},
    "stages": {**STARTED, "stages": 5},
    "contact": {**STARTED, "contact": "x"},
    "remedy": {**REFUSED, "remedy": 5},
    "nothing": None,
    "twin": {**REFUSED, "class": "same_machine_twice", "twin": "honest"},
    "absent": STARTED,
}
#: What is silent has to become lost; the honest node is told by its records, which the watch pulls every 2 s.
SETTINGS = {
    "gpuval_stages": ["facts"],
    "gpuval_retries": 0,
    "run_silence_seconds": 2,
    "run_pull_seconds": 2,
    "run_lost_seconds": 8,
}


def liar(path, launch):
    """A program in Python's place: whatever it is to run, it answers as a launch, and as a module."""
    answer = {"changed": False, "directory": "/tmp/elsewhere", "launch": launch, "ansible_facts": POISON, **POISON}
    text = json.dumps(answer)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat > /dev/null\ncat <<'END'\n{ANSWER}{text}\n{text}\nEND\n")
    path.chmod(0o755)
    return {"ansible_python_interpreter": str(path)}


@pytest.fixture(scope="module")
def run(new_fleet):
    with new_fleet("hostile", settings=SETTINGS) as fleet:
        honest = {"honest": machine(fleet.root / "machines/honest", "1f0c9e8d7b6a5f4e3d2c1b0a99887766")}
        # the hostile ones first: what runs once on the controller has the variables of the first host
        fleet.nodes = {
            **{name: liar(fleet.root / "lies" / name, launch) for name, launch in LAUNCHES.items()},
            **honest,
        }
        done = fleet.play()
        run_id = fleet.run_id
        cleaned = fleet.play("gpuval.fleet.clean")
        fleet.nodes = honest
        yield fleet, run_id, done, cleaned


def test_each_node_is_judged_by_its_own_answer_alone(run):
    fleet, run_id, done, _ = run
    report = json.loads((fleet.folder_of(run_id) / "report.json").read_text())
    verdicts = {node["name"]: node["verdict"] for node in report["nodes"]}
    assert verdicts == {**dict.fromkeys(LAUNCHES, "INCOMPLETE"), "honest": "PASS"}, done
    classes = {node["name"]: node["class"] for node in report["nodes"]}
    assert {classes[name] for name in ("attempt", "stages", "contact", "remedy", "nothing")} == {"bad_answer"}
    assert classes["twin"] == "same_machine_twice"
    (seen,) = [check for node in report["nodes"] if node["name"] == "honest" for check in node["checks"]
               if check["name"] == "identity"]  # fmt: skip
    assert (seen["verdict"], seen["value"]) == ("warn", "twin")


def test_no_answer_reaches_settings_or_the_console(run):
    fleet, run_id, done, _ = run
    assert (fleet.folder_of(run_id) / "report.json").exists()
    assert "evil.example" not in done.output and "poisoned" not in done.output
    assert "\x1b[31mFINAL" not in done.output
    assert not [line for line in done.output.splitlines() if line.startswith(("::error", "FINAL ACCEPTANCE: PASS"))]


def test_the_controller_keeps_nothing_unchecked(run):
    fleet, run_id, *_ = run
    files = sorted((fleet.folder_of(run_id) / ".state/launches").glob("*.json"))
    assert {file.stem for file in files} == {*LAUNCHES, "honest"}
    for file in files:
        schemas.validate("launch", json.loads(file.read_text()), what=file.name)
    assert "evil.example" not in "".join(file.read_text() for file in files)


def test_the_honest_node_is_cleaned_and_validates_again(run):
    fleet, run_id, _, cleaned = run
    assert "of 8 nodes are clean" in cleaned.output, cleaned
    assert not (fleet.node_base("honest") / run_id).exists()
    again = fleet.play()
    assert again.code == 0, again
    assert fleet.run_id != run_id
