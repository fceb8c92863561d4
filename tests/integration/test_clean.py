"""What `clean` takes away, and that two runs never work on one node at once."""

import contextlib
import json
import os
import re
import select
import subprocess
import time

from tests.kit.ansible_playbook import PROGRAM
from tests.kit.fleet import ROOT, STEP_SECONDS, Done, stored, until

FACTS = json.dumps({"gpuval_stages": ["facts"]})
PAUSE = json.dumps(
    {"gpuval_stages": ["facts", "pause"], "pause_workload": {"command": ["sleep", "600"], "needs": ["facts"]}}
)


def clean_at_terminal(fleet, answer):
    """`make clean RUN=first` of an operator who gives this answer."""
    ours, theirs = os.openpty()
    command = ["setsid", "--ctty", "--wait", *PROGRAM, "gpuval.fleet.clean", "-i", str(fleet.root / "hosts.json")]
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    environment = {**fleet.environment, "TERM": "dumb"}
    process = subprocess.Popen([*command, "-e", "gpuval_run_id=first"], cwd=ROOT, env=environment, **streams)
    os.close(theirs)
    output, deadline = b"", time.monotonic() + STEP_SECONDS
    with os.fdopen(ours, "rb+", buffering=0) as terminal, contextlib.suppress(OSError):  # EIO at its end
        while True:
            readable, _, _ = select.select([terminal], [], [], 1)
            if readable:
                output += terminal.read(4096)
            elif output.rstrip().endswith(b"[y/N]"):  # Ansible drops what is typed before it reads
                terminal.write(answer)
            assert time.monotonic() < deadline, output
    return Done(process.wait(STEP_SECONDS), output.decode())


def test_one_clean_takes_all_runs_of_this_controller(new_fleet):
    with new_fleet("cleaned") as fleet:
        for _ in range(2):
            assert fleet.play("gpuval.fleet.validate", "-e", FACTS, "-e", "gpuval_run_id=new").code == 0
        assert len(list(fleet.node_base("node-1").glob("*/node-1/plan.json"))) == 2
        first = fleet.play("gpuval.fleet.clean")
        assert first.code == 0, first
        assert not list(fleet.node_base("node-1").rglob("*"))
        assert len(list(fleet.results.glob("*/2*/report.json"))) == 2, "results are kept"
        assert len(list(fleet.store_data.glob("2*"))) == 2, "so are the records in the store"


def test_a_second_run_of_idle_nodes_leaves_out_the_one_at_work(new_fleet):
    with new_fleet("busy", settings={"gpuval_heartbeat_seconds": 1}) as fleet:
        first = fleet.start("gpuval.fleet.validate", "-e", PAUSE, "-e", "gpuval_run_id=first")
        first.expect(r"pause: running")
        second = fleet.play(
            "gpuval.fleet.validate", "-e", FACTS, "-e", "gpuval_run_id=second", "-e", "gpuval_only_idle=true"
        )
        assert second.code == 0, second
        assert "FINAL ACCEPTANCE: PARTIAL" in second.output and "Busy, not checked: node-1 (other_run)" in second.output
        report = json.loads((fleet.folder_of("second") / "report.json").read_text())
        busy = report["run"]["busy"]["node-1"]["reason"]
        assert re.search(r"run first is at work on this node since \S+Z, started by \S+@\S+", busy)
        assert first.running, "the first run goes on"
        cleaned = fleet.play("gpuval.fleet.clean", "-e", "gpuval_run_id=second")
        assert cleaned.code == 0, cleaned
        path = fleet.store_data / "first/records/pause/node-1.json"
        record = until(lambda: stored(path), "cleaning the other run left this one and its store alone", 60)
        assert record["state"] == "running"
        refused = fleet.play("gpuval.fleet.clean", "-e", "gpuval_run_id=first")
        assert refused.code != 0 and refused.output.count("FAILED") == 1, refused
        assert re.search(
            r"run first, working since .* works on it: press Ctrl-C there, or `make clean .*FORCE=1` ends", refused.told
        )
        declined = clean_at_terminal(fleet, b"n\r")
        assert declined.code != 0 and "run first goes on, and nothing was cleaned" in declined.told, declined
        assert first.running, "the first run goes on"
        closed = clean_at_terminal(fleet, b"y\r")
        assert closed.code == 0, closed
        ended = first.wait()
        assert ended.code != 0 and "closed by another command" in ended.output
        assert "FINAL ACCEPTANCE: INCOMPLETE" in ended.output, ended
        (node,) = json.loads((fleet.folder_of("first") / "report.json").read_text())["nodes"]
        (pause,) = [check for check in node["checks"] if check["name"] == "pause_state"]
        assert "the run was ended by another command (clean)" in pause["reason"]
        assert "--limit node-1" in pause["remedy"]
        assert not (fleet.node_base("node-1") / "first").exists()


def test_ctrl_c_names_what_becomes_of_the_run_and_a_clean_names_what_it_ends(new_fleet):
    with new_fleet("interrupted", settings={"gpuval_heartbeat_seconds": 1}) as fleet:
        first = fleet.start("gpuval.fleet.validate", "-e", PAUSE, "-e", "gpuval_run_id=first")
        first.expect(r"pause: running")
        first.interrupt()
        ended = first.wait()
        assert ended.code != 0 and "Callback dispatch" not in ended.output
        assert (
            "run first is interrupted, its nodes go on working: the same command, with RUN=first, " in ended.output
        ), ended
        assert re.search(r"`make clean INVENTORY=\S+ RUN=first` ends it", ended.output)
        trial = fleet.play("gpuval.fleet.clean", "--check")
        assert re.search(r"a clean would end run first, working since \S+, at work with 1 node, without", trial.output)
        assert re.search(r"To be removed: .*\d process", trial.output), trial
        cleaned = fleet.play("gpuval.fleet.clean")
        assert "this clean ends run first, working since" in cleaned.output
        assert re.search(r"Removed: .*\d process", cleaned.output), cleaned


def test_what_could_not_be_reached_is_named_and_the_rest_is_clean(new_fleet, closed_port):
    with new_fleet("unreached", nodes={"node-1": {}, "node-2": {}, "node-3": {}}) as fleet:
        fleet.play("gpuval.fleet.validate", "-e", FACTS)  # no PASS: the three are one machine
        assert all(fleet.node_directory(node).exists() for node in fleet.nodes)
        gone = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": closed_port}
        done = fleet.play("gpuval.fleet.clean", nodes={"node-1": {}, "node-2": gone})
        assert done.code != 0, done
        assert f"CLEAN: run {fleet.run_id}: 1 of 3 nodes are clean, 2 are not" in done.told
        assert "- node-2 not reached (refused): " in done.told
        assert "then clean again with --limit node-2" in done.told
        assert "- node-3 not in the inventory: " in done.told
        assert not list(fleet.node_base("node-1").rglob("*"))
        assert fleet.node_directory("node-2").exists()
        limited = fleet.play("gpuval.fleet.clean", "--limit", "node-2")
        assert limited.code == 0, limited
        assert "- node-3 left out by --limit" in limited.told
        assert "node-1 left out" not in limited.told, "it is clean already"
        last = fleet.play("gpuval.fleet.clean")
        assert last.code == 0, last
        assert "all of 3 nodes are clean" in last.told
        alone = fleet.play("gpuval.fleet.clean", nodes={"node-1": {}})
        assert alone.code == 0, "what is clean may leave the inventory"


def test_a_run_whose_results_are_lost_is_cleaned_by_its_id_or_with_all_others(new_fleet):
    with new_fleet("lost") as fleet:
        for run_id in ("first", "second"):
            assert fleet.play("gpuval.fleet.validate", "-e", FACTS, "-e", f"gpuval_run_id={run_id}").code == 0
        for path in sorted(fleet.results.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        told = fleet.play("gpuval.fleet.clean")
        assert "cleanup_all_runs=true" in told.told
        assert len(list(fleet.node_base("node-1").glob("*/node-1/plan.json"))) == 2
        one = fleet.play("gpuval.fleet.clean", "-e", "gpuval_run_id=first")
        assert one.code == 0, one
        assert [path.parent.name for path in fleet.node_base("node-1").glob("*/node-1")] == ["second"]
        every = fleet.play("gpuval.fleet.clean", "-e", "cleanup_all_runs=true")
        assert every.code == 0, every
        assert "CLEAN: all runs: all of 1 nodes are clean" in every.told
        assert not list(fleet.node_base("node-1").rglob("*"))
