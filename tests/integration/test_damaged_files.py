"""Every file of the folder of a real run, damaged in every way: each command answers, and every node is reported."""

import json
import os
import shutil
import subprocess

import pytest

from tests.kit.damaged_files import COMMANDS, DAMAGES, DamagedRun, copied
from tests.kit.fleet import stored, until

STAGES = ("facts", "diagnostics")
#: Folders of a run, the first of which its gangs have.
FOLDERS = ("gangs", "nodes", "nodes/node-1", ".state", ".state/launches", ".state/plans")


@pytest.fixture(scope="module")
def interrupted(new_fleet):
    """A run of two nodes whose controller was killed and whose nodes are done; its store runs."""
    with new_fleet("damaged", nodes={"node-1": {}, "node-2": {}}, settings={"gpuval_stages": [*STAGES]}) as fleet:
        playing = fleet.start()
        playing.expect(r"diagnostics: running")
        watch = fleet.folder_in_store / "run_watch.json"

        def published():
            return all(node["launch"] for node in stored(watch).get("nodes", {"none": {"launch": None}}).values())

        until(published, "the launches in the store")
        playing.kill()
        paths = [fleet.folder_in_store / f"records/{stage}/{node}.json" for stage in STAGES for node in fleet.nodes]

        def done():
            return all(stored(path).get("finished_at") for path in paths)

        until(done, "the nodes' last records")
        store = {"bucket": "gpuval", "state_dir": str(fleet.root / "state"), "endpoint": ""}
        yield DamagedRun(fleet.root, fleet.root / "state", fleet.run_id, fleet.nodes, store, STAGES)


def cases(run):
    """Each file with each damage, and the command that comes next in turn; all with GPUVAL_ALL_DAMAGES."""
    names = [(name, damage) for name in run.files() if "node-2" not in name for damage in DAMAGES]
    for number, (name, damage) in enumerate(names):
        chosen = [*COMMANDS] if os.environ.get("GPUVAL_ALL_DAMAGES") else [[*COMMANDS][number % len(COMMANDS)]]
        yield from ((name, damage, command) for command in chosen)


def test_every_command_answers_whatever_is_damaged_and_reports_every_node(interrupted, tmp_path):
    data, kept = interrupted.state_dir / "store/data", tmp_path / "data"
    shutil.copytree(data, kept)
    whole = copied(interrupted, tmp_path / "whole").command("report")
    verdicts, wrong = whole.report, []
    assert verdicts.keys() == interrupted.nodes.keys(), whole
    for name, damage, command in cases(interrupted):
        shutil.rmtree(data / "gpuval" / interrupted.run_id)
        shutil.copytree(kept, data, dirs_exist_ok=True)
        place = tmp_path / "case"
        run = copied(interrupted, place)
        DAMAGES[damage](run.folder / name, run.run_id)
        answer = run.command(command)
        expected = verdicts
        if damage == "removed" and name == ".state/launches/node-1.json":  # it cannot be told from none
            expected = {**verdicts, "node-1": "INCOMPLETE"}
        if not answer.answered or (command in ("report", "validate") and answer.report != expected):
            wrong.append((name, damage, command, answer))
        shutil.rmtree(place)
    assert not wrong, json.dumps([str(case)[:600] for case in wrong], indent=1)


def test_a_file_in_place_of_a_folder_keeps_no_node_out_of_the_report(interrupted, tmp_path):
    """Also where it comes after the command has looked at the run's folder: between the watch and the collection."""
    data, kept = interrupted.state_dir / "store/data", tmp_path / "data"
    shutil.copytree(data, kept)
    verdicts, wrong = copied(interrupted, tmp_path / "whole").command("report").report, []
    for number, name in enumerate(FOLDERS):
        for command in [*COMMANDS, "collect"] if number == 0 else ["report", "collect"][: 1 + (name != ".state")]:
            shutil.rmtree(data / "gpuval" / interrupted.run_id)
            shutil.copytree(kept, data, dirs_exist_ok=True)
            run = copied(interrupted, tmp_path / "case")
            shutil.rmtree(run.folder / name, ignore_errors=True)
            (run.folder / name).write_text("not a folder")
            answer = run.command(command)
            expected = verdicts
            if (command, name) == ("collect", ".state/launches"):  # which no command has restored
                expected = dict.fromkeys(verdicts, "INCOMPLETE")
            if not answer.answered or (command not in ("clean", "status", "runs") and answer.report != expected):
                wrong.append((name, command, answer))
            shutil.rmtree(tmp_path / "case")
    assert not wrong, json.dumps([str(case)[:900] for case in wrong], indent=1)


@pytest.mark.parametrize(
    "name", ["run.json", ".state/launches/node-1.json", ".state/watch.json", "nodes/node-1/facts.json"]
)
def test_on_a_full_disk_every_command_answers_and_the_state_is_shown(interrupted, tmp_path, as_root, name):
    data, kept = interrupted.state_dir / "store/data", tmp_path / "data"
    shutil.copytree(data, kept)
    for command in COMMANDS:
        disk = tmp_path / command
        disk.mkdir()
        mounted = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(disk)]
        subprocess.run(mounted, check=True, timeout=30)
        try:
            run = copied(interrupted, disk / "case")
            DAMAGES["emptied"](run.folder / name, run.run_id)
            with (disk / "filler").open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space"):
                while True:
                    stream.write(bytes(4096))
            answer = run.command(command)
        finally:
            subprocess.run(["umount", str(disk)], check=True, timeout=30)
        assert answer.answered, (command, answer)
        if command in ("runs", "status") and name != "run.json":
            assert "No space" not in answer.text, answer
        elif answer.failed:
            assert "free space" in answer.text or "is damaged" in answer.text, answer
    shutil.rmtree(data / "gpuval" / interrupted.run_id)
    shutil.copytree(kept, data, dirs_exist_ok=True)
