"""Over SSH, or on this machine: the window is moved while a run is on, and a person gets to a node at work."""

import os
import signal
import subprocess

import pytest

from tests.kit.fleet import until
from tests.kit.log_bundles import GONE

NODES = ["node-1", "node-2", "node-3", "node-4"]


@pytest.fixture(scope="module")
def at_work(new_fleet, tmp_path_factory):
    """A run whose nodes are at work until a file is there, one at a time."""
    sign = tmp_path_factory.mktemp("sign") / "go-on"
    work = {
        "command": ["sh", "-c", f"echo worked: 3 items; while [ ! -e {sign} ]; do sleep 0.2; done"],
        "patterns": [{"name": "worked_items", "pattern": r"^worked: (?P<value>\d+) (?P<unit>items)"}],
        "timeout_seconds": 1800,
    }
    settings = {"gpuval_stages": ["work"], "work_workload": work, "gpuval_max_nodes_at_once": 1}
    with new_fleet("window", nodes={name: {} for name in NODES}, settings=settings) as fleet:
        playing = fleet.start()
        fleet.at_work("node-1", "work", saying="worked")
        yield fleet
        sign.touch()
        done = playing.wait()
        assert [fleet.record(name, "work")["state"] for name in NODES] == ["success"] * 4, str(done)


def reach(fleet, what, *more, node="node-1", **options):
    way = fleet.root / "way"
    way.unlink(missing_ok=True)
    words = ["-e", f"run_reach={what}", "-e", f"run_reach_node={node}", "-e", f"run_reach_file={way}"]
    return fleet.play("gpuval.fleet.reach", *words, *more, **options), way


def test_the_window_is_moved(at_work):
    def working():
        return [name for name in NODES if at_work.node_directory(name).exists()]

    assert working() == ["node-1"]
    done = at_work.play("gpuval.fleet.window", "-e", "run_window_nodes=3", "--check")
    assert done.code == 0, str(done)
    assert not (at_work.run_folder / ".state/window.json").exists()
    done = at_work.play("gpuval.fleet.window", "-e", "run_window_nodes=3")
    assert done.code == 0, str(done)
    until(lambda: len(working()) == 3, "three nodes at work")
    for wrong, told in (
        ("run_window_nodes=-1", "give a whole number"),
        ("run_window_nodes=two", "N=two: give a whole number, 0 for no limit"),
        ("run_window_transfers=many", "TRANSFERS=many: give a whole number"),
        ("x=y", "nothing to set"),
    ):
        done = at_work.play("gpuval.fleet.window", "-e", wrong)
        assert done.code != 0
        assert told in done.told
    assert working() == NODES[:3]


def test_a_log_is_followed_and_a_shell_is_in_the_folder_of_the_run(at_work):
    done, way = reach(at_work, "follow")
    assert done.code == 0, str(done)
    followed = subprocess.Popen(["sh", str(way)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert any("worked: 3 items" in line for line in followed.stdout)
    finally:
        os.killpg(followed.pid, signal.SIGKILL)
        followed.wait(60)
        followed.stdout.close()
    done, way = reach(at_work, "shell")
    options = {"capture_output": True, "text": True, "timeout": 120, "env": {"SHELL": "/bin/sh"}}
    told = subprocess.run(["sh", str(way)], input="pwd\n", check=True, **options).stdout
    assert told.strip() == str(at_work.node_directory("node-1"))


def test_over_ssh_the_pinned_keys_hold(at_work):
    pins = at_work.root / "state/known_hosts/hosts.json"
    done, way = reach(at_work, "shell", node="node-2", nodes={**{name: {} for name in NODES}, "node-2": GONE})
    assert done.code == 0, str(done)
    command = way.read_text()
    assert command.startswith("exec ssh -t -o StrictHostKeyChecking=yes ")
    assert "192.0.2.250" in command
    assert not pins.exists() or str(pins) in command


def test_who_is_not_there_is_reported(at_work):
    for more, told in (
        (["-e", "run_reach_stage=training"], "'training' is no stage of this run on node-1"),
        (["-e", "run_reach_node=node-9"], "'node-9' is no node of run"),
    ):
        done, way = reach(at_work, "follow", *more)
        assert done.code != 0
        assert told in done.told
        assert not way.exists()
