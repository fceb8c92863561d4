"""The store goes away in the middle, or is out of a node's reach from the beginning: nothing is lost."""

import contextlib
import fcntl
import json
import signal
import stat
import sys
import time

from tests.kit.fleet import ONE_RANK
from tests.kit.processes import send

AWAY_SECONDS = 5  # longer than a heartbeat: what the node has to say does not get through


def work_until(sign):
    """Work that lasts until a file is there: when the test has seen all that befalls the store."""
    return {
        "command": ["sh", "-c", f"echo begun; while [ ! -e {sign} ]; do sleep 0.5; done; echo worked: 3 items"],
        "patterns": [{"name": "worked_items", "pattern": r"^worked: (?P<value>\d+) (?P<unit>items)"}],
        "timeout_seconds": 1800,
    }


def servers(fleet):
    """Pids and ports of the embedded store's two servers."""
    state = json.loads((fleet.root / "state/store/store.json").read_text())
    return [(state[name]["pid"], state[name]["port"]) for name in ("writer", "reader")]


@contextlib.contextmanager
def held(lock):
    """Whoever wants to start the store has to wait."""
    with lock.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def test_a_store_that_is_killed_and_then_hangs_costs_nothing(new_fleet, tmp_path):
    settings = {"gpuval_stages": ["facts", "work", "loading"], "work_workload": work_until(tmp_path / "go-on")}
    with new_fleet("away", settings=settings) as fleet:
        playing = fleet.start()
        playing.expect("work: running")
        fleet.at_work("node-1", "work", saying="begun")
        killed = servers(fleet)
        with held(fleet.root / "state/store/lock"):
            send([pid for pid, _ in killed], signal.SIGKILL)
            playing.expect("the store does not answer; nodes continue and keep their records")
            time.sleep(AWAY_SECONDS)
        playing.expect("the embedded store was restarted")
        playing.expect(r"the store answers again after \d+ s")
        revived = servers(fleet)
        assert [port for _, port in revived] == [port for _, port in killed]
        send([pid for pid, _ in revived], signal.SIGSTOP)
        playing.expect(r"answers again after [\s\S]*the store does not answer")
        send([pid for pid, _ in revived], signal.SIGCONT)  # the watch may have put another server in its place
        (tmp_path / "go-on").touch()
        done = playing.wait()

        assert done.code == 0, done
        assert "FINAL ACCEPTANCE: PARTIAL" in done.output
        assert fleet.verdict("node-1")["flaky"] is False
        fleet.assert_evidence("node-1", dict.fromkeys(settings["gpuval_stages"], "success"))
        assert fleet.report()["fleet"]["problems"] == []
        assert_nothing_is_missing(fleet)


def assert_nothing_is_missing(fleet):
    """What the node has is what the store and the results have, byte by byte (a log ends in a line feed there)."""
    directory = fleet.node_directory("node-1")
    for kind in ("records", "logs", "series"):
        for path in (directory / kind).iterdir():
            stored = fleet.folder_in_store / kind / path.stem / f"node-1{path.suffix}"
            assert stored.read_bytes() == path.read_bytes(), path


def test_a_node_that_cannot_reach_the_store_is_asked_for_its_records(new_fleet, as_root, tmp_path):
    """The node is in a network namespace of its own, where the controller's loopback is not."""
    settings = {
        **ONE_RANK,
        "gpuval_stages": ["facts", "training", "work"],
        "work_workload": work_until(tmp_path / "go-on"),
        "run_pull_seconds": 2,
    }
    with new_fleet("unreached", settings=settings) as fleet:
        python = fleet.root / "python-of-the-node"
        inside = f'ip link set lo up && exec "{sys.executable}" "$@"'
        python.write_text(f"#!/bin/sh\nexec unshare --net sh -c '{inside}' sh \"$@\"\n")
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        fleet.settings["ansible_python_interpreter"] = str(python)
        playing = fleet.start()
        playing.expect("node-1 work: running")  # seen while it runs, not at the end
        assert playing.running
        assert fleet.record("node-1", "work")["state"] == "running"
        (tmp_path / "go-on").touch()
        done = playing.wait()

        launch = json.loads((fleet.run_folder / ".state/launches/node-1.json").read_text())
        assert launch["store_reachable"] is False
        assert "the store does not answer" in launch["message"]
        assert f"node-1: {launch['message']}; records of such nodes are fetched" in done.told
        assert not (fleet.node_directory("node-1") / "uploaded.json").exists(), "the node did reach the store"
        assert done.code == 0, done
        assert "FINAL ACCEPTANCE: PARTIAL" in done.output
        fleet.assert_evidence("node-1", dict.fromkeys(settings["gpuval_stages"], "success"))
        assert_nothing_is_missing(fleet)
