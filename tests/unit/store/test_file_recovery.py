"""Damaged files of a run's folder: restored from the store, or named, and never in the way of the rest."""

import json
import shutil
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder

from tests.kit.damaged_files import DAMAGES, DamagedRun

RELEASE = Path(__file__).parents[2] / "data/release_1_0"
#: What a run folder of each kind holds beside reports, which commands write anew.
FILES = ("run.json", ".state/verdict.json", ".state/run_criteria.json", ".state/launches/{node}.json")


@pytest.fixture
def released(tmp_path):
    """A run with gangs that release 1.0.0 left, and its documents in an embedded store that does not run."""
    results = tmp_path / "results"
    shutil.copytree(RELEASE / "ssh/results", results, symlinks=True)
    run_id = run_folder.latest_run(results).path.name
    run = run_folder.find(results, run_id).read_run()
    (tmp_path / "hosts.json").write_text("{}")
    store = {"bucket": "gpuval", "state_dir": str(tmp_path / "state"), "endpoint": ""}
    made = DamagedRun(tmp_path, tmp_path / "state", run_id, {name: {} for name in run["nodes"]}, store, ())
    place = tmp_path / "state/store/data/gpuval" / run["folder"]
    for name, key in ((FILES[0], "run.json"), (FILES[1], "report/verdict.json"), (FILES[2], "run_criteria.json")):
        if (made.folder / name).exists():
            (place / key).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(made.folder / name, place / key)
    return made


@pytest.mark.parametrize(("command", "damage"), zip(("runs", "status", "clean") * 3, DAMAGES, strict=False))
@pytest.mark.parametrize("name", FILES)
def test_no_damaged_file_stops_a_command(released, name, command, damage):
    name = name.format(node=next(iter(released.nodes)))
    file = released.folder / name
    before = file.read_bytes()
    DAMAGES[damage](file, released.run_id)
    answer = released.command(command)
    assert answer.answered, answer
    if command != "runs" and name in (FILES[0], FILES[1]) and damage != "removed":
        restored = json.loads((released.folder / name).read_bytes())
        assert restored["run_id"] == released.run_id, answer
        assert json.loads(before).keys() - {"origin"} <= restored.keys()


@pytest.mark.parametrize("damage", ["emptied", "fifo", "another"])
def test_a_run_that_the_store_lacks_is_named_with_the_command_that_helps(released, damage):
    shutil.rmtree(released.state_dir)
    DAMAGES[damage](released.folder / "run.json", released.run_id)
    listed = released.command("runs")
    assert "damaged" in listed.text and "1 run(s)" in listed.text
    cleaned = released.command("clean")
    assert cleaned.answered and not cleaned.failed, cleaned
    assert f"`make clean RUN={released.run_id}` ends the run" in released.command("status").text


def test_a_damaged_launch_concerns_its_node_alone(released):
    node, *others = released.nodes
    DAMAGES["fifo"](released.folder / FILES[3].format(node=node), released.run_id)
    launches = run_folder.RunFolder(released.folder).read_launches()
    assert launches[node]["class"] == "damaged_state"
    assert all(launches[name].get("class") != "damaged_state" for name in others)
