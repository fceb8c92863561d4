"""Jobs of several nodes: members are processes with an address each, launchers are real where they are there."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from gpuval_workloads.common.result import WorkloadFailure
from gpuval_workloads.gang import membership
from gpuval_workloads.gang.members import Gang, GangMember
from gpuval_workloads.job import gang_run
from gpuval_workloads.job.program import JobStep, JobSteps

from tests.kit.gang_jobs import Members, write
from tests.kit.needs import needs_deepspeed, needs_programs
from tests.kit.ports import free_port
from tests.kit.workload_process import is_alive

ASKED = {"least": 2, "most": 0, "order": "inventory", "gpus_per_node": 0, "join_seconds": 60}


def step(name, run, **more):
    return {"name": name, "run": run, **more}


def ended(folder, path, **options):
    with Members(folder, free_port(), path, **options) as members:
        return members.end()


def variables(log):
    return dict(line.split("=", 1) for line in log.splitlines() if "=" in line and not line.startswith("=="))


def test_every_node_has_the_gangs_environment_and_the_first_prepares(tmp_path):
    shared = tmp_path / "shared"
    steps = [
        step("download", f"sleep 1; echo done > {shared}", once=True),
        step("work", f'cat {shared}; env | sort; cat "$GPUVAL_HOSTFILE"'),
    ]
    found = ended(tmp_path, write(tmp_path, *steps, gpus_per_node=2))
    told = [variables(log) for _code, log, _result in found]
    for index, (code, log, result) in enumerate(found):
        assert (code, result["state"]) == (0, "success"), log
        assert "done\n" in log
        assert "127.0.0.1 slots=2\n127.0.0.2 slots=2\n" in log
        assert told[index].items() >= {
            "MASTER_ADDR": "127.0.0.1", "RANK_0_FQDN": "127.0.0.1", "WORLD_SIZE": "4", "NNODES": "2",
            "NODE_RANK": str(index), "JOB_COMPLETION_INDEX": str(index), "GPUS_PER_NODE": "2",
            "JOB_IDENTIFIER": "run-1-mine", "HOSTNAME_PREFIX": f"node-{index + 1}", "GPUVAL_STEP": "work",
        }.items()  # fmt: skip
        gang = result["environment"]["gang"]
        assert (gang["name"], gang["leader"], gang["joined"]) == ("all", "node-1", True)
    for name in ("JOB_UUID", "JOB_TIMESTAMP"):
        assert told[0][name] == told[1][name]
    assert "step download (1 of 2): waiting for node-1" in found[1][1]


def test_a_step_that_fails_on_the_first_frees_the_others_and_is_named(tmp_path):
    steps = [step("clone", "echo no such repository; exit 3", once=True), step("train", f"touch {tmp_path}/trained")]
    begun = time.monotonic()
    first, second = ended(tmp_path, write(tmp_path, *steps))
    assert time.monotonic() - begun < 40
    assert first[0] == 3 and first[2]["message"] == "step clone (1 of 2)"
    assert second[0] == 2
    assert second[2]["message"] == "the gang has ended: node-1 (127.0.0.1): step clone (1 of 2): exit code 3"
    assert second[2]["environment"]["gang"]["stopped_by"] == "node-1"
    assert "lost" not in second[2]["environment"]["gang"]
    assert not (tmp_path / "trained").exists()


def test_a_step_that_fails_on_another_node_ends_what_runs_elsewhere(tmp_path):
    pid = tmp_path / "pid"
    fails = f"while [ ! -e {pid} ]; do sleep 0.1; done; exit 4"
    run = f'if [ "$NODE_RANK" = 1 ]; then {fails}; fi; echo $$ > {pid}; sleep 300'
    first, second = ended(tmp_path, write(tmp_path, step("train", run)))
    assert second[0] == 4, second[1]
    assert first[2]["message"] == "the gang has ended: node-2 (127.0.0.2): step train (1 of 1): exit code 4"
    assert not is_alive(int(pid.read_text()))


def test_a_result_of_failure_is_what_the_others_hear(tmp_path):
    run = """echo '{"state": "failure", "message": "loss is NaN"}' > "$GPUVAL_RESULT_FILE" """
    first, second = ended(tmp_path, write(tmp_path, step("train", run, once=True)))
    assert (first[0], first[2]["state"]) == (1, "failure")
    assert "node-1 (127.0.0.1): step train (1 of 1): loss is NaN" in second[2]["message"]


def test_a_node_that_skips_the_work_does_not_leave_the_others_waiting(tmp_path):
    run = """[ "$NODE_RANK" = 1 ] || echo '{"state": "skipped"}' > "$GPUVAL_RESULT_FILE" """
    begun = time.monotonic()
    first, second = ended(tmp_path, write(tmp_path, step("train", run), step("next", "true")))
    assert time.monotonic() - begun < 40
    told = "step train (1 of 2): skipped on node-1 and not here: choose nodes of one kind"
    assert (first[0], second[0], second[2]["message"]) == (2, 2, told)
    assert told in first[2]["message"]


@pytest.mark.parametrize("once", [False, True])
def test_a_job_that_all_nodes_skip_is_skipped(tmp_path, once):
    run = """echo '{"state": "skipped", "message": "wrong GPUs"}' > "$GPUVAL_RESULT_FILE" """
    steps = [step("train", run, once=once), step("next", "exit 1")]
    for code, log, result in ended(tmp_path, write(tmp_path, *steps)):
        assert (code, result["state"]) == (0, "success"), log
        assert result["message"] == "skipped: step train (1 of 2): wrong GPUs"


def test_a_node_whose_job_ended_before_it_joined_is_named_before_the_time_for_joining_ends(tmp_path):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"attempt": 1, "state": "crash", "message": "no image"}')

        def log_message(self, *_):
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        urls = {"mine/node-2": f"http://127.0.0.1:{server.server_port}/"}
        (tmp_path / membership.RECORDS_FILE).write_text(json.dumps({"urls": urls, "ca": ""}))
        path = write(tmp_path, step("train", "true"), join_seconds=80)
        own = {"GPUVAL_GANG_FILE": str(tmp_path / "gang.json"), "GPUVAL_STAGE": "mine", "GPUVAL_ATTEMPT": "1"}
        with Members(tmp_path, free_port(), path, **own) as members:
            os.killpg(members.processes[1].pid, signal.SIGKILL)
            code, _log, result = members._ended(0, members.processes[0], time.monotonic() + 60)
        server.shutdown()
    assert code == 2
    assert "node-2 (127.0.0.2) ended before it joined: no image" in result["message"]


def test_a_step_over_its_limit_frees_the_others(tmp_path):
    steps = [step("download", "sleep 300", once=True, timeout_seconds=1), step("train", "true")]
    first, second = ended(tmp_path, write(tmp_path, *steps))
    assert first[0] == 124
    assert second[2]["message"].endswith("step download (1 of 2) exceeded its limit of 1 s")


@pytest.mark.parametrize(
    ("place", "told"), [(0, "node-1 (127.0.0.1), the leader, was lost"), (1, "node-2 (127.0.0.2) was lost")]
)
def test_a_node_that_dies_while_others_wait_frees_them(tmp_path, place, told):
    path = write(tmp_path, step("download", "echo begun; sleep 300", once=True), step("train", "true"))
    with Members(tmp_path, free_port(), path, count=3) as members:
        members.until(0, "begun")
        members.until(2, "waiting for node-1")
        os.killpg(members.processes[place].pid, signal.SIGKILL)
        died = time.monotonic()
        found = members.end()
        del found[place]
        assert time.monotonic() - died < 30
    for code, log, result in found:
        assert code == 2, log
        assert told in result["message"]
        assert result["environment"]["gang"]["lost"] == f"node-{place + 1}"


def test_a_node_whose_stage_is_ended_says_so_and_is_not_accused(tmp_path):
    path = write(tmp_path, step("train", "echo begun; sleep 300"))
    with Members(tmp_path, free_port(), path) as members:
        for index in (0, 1):
            members.until(index, "begun")
        members.processes[1].send_signal(signal.SIGTERM)
        first, second = members.end()
    assert second[0] == 128 + signal.SIGTERM
    assert "node-2 (127.0.0.2): was ended from outside" in first[2]["message"]
    assert first[2]["environment"]["gang"]["stopped_by"] is None


def test_steps_are_skipped_alike_on_all_nodes(tmp_path):
    made = tmp_path / "made"
    made.mkdir()
    steps = [
        step("clone", "exit 1", once=True),
        step("download", "exit 1", once=True, creates=str(made)),
        step("convert", 'mkdir -p "$GPUVAL_JOB_DIR/converted"; echo "converts on $NODE_RANK"', creates="converted"),
        step("train", "true"),
    ]
    for code, log, result in ended(tmp_path, write(tmp_path, *steps), chosen={"skip": ["clone"]}):
        assert code == 0, log
        assert "step clone skipped" in log
        assert result["message"].startswith(("2 of 4 steps", "3 of 4 steps"))


def test_figures_are_the_first_nodes(tmp_path):
    results = {"patterns": [{"pattern": r"loss=(?P<value>\S+)", "name": "loss"}], "csv": "perf.csv"}
    run = '[ "$NODE_RANK" = 1 ] || printf "model,performance,metric\\na,1,s\\n" > perf.csv'
    first, second = ended(tmp_path, write(tmp_path, step("train", run), results=results))
    assert "gpuval figure a: 1 s" in first[1]
    assert (second[0], second[2]["state"]) == (0, "success")


def test_a_launcher_that_an_image_lacks_is_named_with_its_node_before_any_work(tmp_path):
    """An interpreter without packages stands for the image."""
    steps = [step("download", f"touch {tmp_path}/begun", once=True), step("train", ["train.py"], launcher="torchrun")]
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    for code, _log, result in ended(tmp_path, write(tmp_path, *steps), python=bare / "bin/python"):
        assert code == 1
        assert result["state"] == "failure"
        assert result["message"].startswith("node-1, node-2: launcher torchrun: there is no PyTorch in ")
        assert result["message"].endswith("use an image that has it, or another launcher")
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_port_in_use_is_named_before_any_work(tmp_path, monkeypatch, launcher):
    monkeypatch.setattr(gang_run, "find_spec", lambda _name: True)
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/pdsh")
    run, port = gang_run.GangRun.__new__(gang_run.GangRun), free_port()
    run._gang = Gang("all", (GangMember("n1", "127.0.0.1", 1), GangMember("n2", "127.0.0.2", 1)), 0, 1, 3)
    run._launchers, run._folder = {launcher}, tmp_path
    with socket.create_server(("", port)), ExitStack() as stack:
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(WorkloadFailure, match=f"port {port} of n1, .* find the process"):
            run._prepare(stack)


def test_mpirun_that_is_missing_is_named(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "bash").symlink_to(shutil.which("bash"))
    usual = gang_run.ExecutableSearch((), {}).find("mpirun")
    if usual:
        pytest.skip(f"{usual} is found whatever PATH says")
    path = write(tmp_path, step("train", "true", launcher="mpirun"))
    for _code, _log, result in ended(tmp_path, path, PATH=str(tools)):
        assert "launcher mpirun: there is no mpirun of Open MPI on PATH" in result["message"]


TRAIN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if os.environ["RANK"] == "0":
    told = f"own {os.environ['OWN']} step {os.environ['GPUVAL_STEP']}"
    print(f"performance: {total.item()} samples/s  {told}", flush=True)
dist.destroy_process_group()
"""
FAILS = """
import os, sys, time
sys.exit(5) if os.environ["OMPI_COMM_WORLD_RANK"] == "1" else time.sleep(300)
"""


@pytest.mark.slow
def test_torchrun_starts_the_ranks_of_all_nodes(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAIN)
    path = write(tmp_path, step("train", ["train.py"], launcher="torchrun"), files=["train.py"], gpus_per_node=2)
    first, second = ended(tmp_path, path, OWN='a "b"\n c')
    assert first[0] == 0, first[1]
    assert "performance: 4.0 samples/s  own" in first[1]
    assert second[0] == 0 and "performance" not in second[1]


@pytest.fixture
def keys(tmp_path):
    needs_programs({"sshd": "openssh-server", "ssh-keygen": "openssh-client"})
    (tmp_path / "keys").mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "keys/id_ed25519"], check=True)


@pytest.mark.slow
@pytest.mark.usefixtures("keys")
def test_mpirun_starts_the_processes_of_all_nodes_in_the_jobs_environment(tmp_path):
    needs_programs({"mpirun": "openmpi-bin", "orted": "openmpi-bin"})
    run = 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $GPUVAL_NODE, own $OWN, $NODE_RANK $(pwd)"'
    path = write(tmp_path, step("train", run, launcher="mpirun", environment={"OWN": "a 'b' \"c\""}), gpus_per_node=2)
    first, second = ended(tmp_path, path)
    assert first[0] == 0, first[1]
    assert second[0] == 0, second[1]
    for rank in range(4):
        index = rank // 2
        assert f"rank {rank} of 4 on node-{index + 1}, own a 'b' \"c\", {index} {tmp_path}/{index}/job" in first[1]


@pytest.mark.slow
@pytest.mark.usefixtures("keys")
def test_deepspeed_starts_the_ranks_of_all_nodes_and_each_has_its_own_log(tmp_path):
    needs_deepspeed()
    needs_programs({"pdsh": "pdsh"})
    (tmp_path / "train.py").write_text(TRAIN)
    path = write(tmp_path, step("train", ["train.py"], launcher="deepspeed"), files=["train.py"])
    python = Path(__file__).resolve().parents[3] / ".venv-node/bin/python"
    first, second = ended(tmp_path, path, OWN="mine", python=python)
    assert first[0] == 0, first[1]
    assert "performance: 2.0 samples/s  own mine step train" in first[1]
    assert second[0] == 0, second[1]


@pytest.mark.slow
@pytest.mark.usefixtures("keys")
def test_a_rank_that_fails_on_another_node_is_named_by_all(tmp_path):
    needs_programs({"mpirun": "openmpi-bin", "orted": "openmpi-bin"})
    (tmp_path / "train.py").write_text(FAILS)
    path = write(tmp_path, step("train", ["train.py"], launcher="mpirun"), files=["train.py"])
    first, second = ended(tmp_path, path)
    assert "node-2 (127.0.0.2): step train (1 of 1): rank 1: exit code 5" in first[2]["message"], first[1]
    assert second[2]["message"].startswith("step train (1 of 1): rank 1: exit code 5")


class Channel:
    """Where all members have come to each meeting."""

    stopped = None

    def arrive(self, name, word):
        pass

    def met(self, _name):
        return [""]


def launched(folder, rank, code, monkeypatch):
    """A process of a step that a launcher starts."""
    end = f"kill -{code - 128} $$" if code > 128 else f"exit {code}"
    launch = {"command": ["sh", "-c", end], "folder": str(folder), "environment": {"GPUVAL_STEP": "train"}}
    (folder / gang_run.rank.FILE).write_text(json.dumps(launch))
    monkeypatch.setenv(gang_run.RANK_DIRECTORY_VARIABLE, str(folder))
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setattr(gang_run.rank.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["rank"])
    return gang_run.rank.main()


@pytest.mark.parametrize("launcher", gang_run.OVER_SSH)
@pytest.mark.parametrize(
    ("codes", "told"),
    [
        ([0, 0], ""),
        ([0, 5], "step train (1 of 1): rank 1: exit code 5"),
        ([137, 0], "step train (1 of 1): rank 0: exit code 137"),
        ([0], "step train (1 of 1): 1 of 2 processes here never ended by themselves"),
    ],
)
def test_a_rank_that_failed_is_seen_although_its_launcher_succeeds(tmp_path, monkeypatch, launcher, codes, told):
    run = gang_run.GangRun.__new__(gang_run.GangRun)
    gang = Gang("all", (GangMember("n1", "10.0.0.1", 2, {}), GangMember("n2", "10.0.0.2", 2, {})), 0, 1, 3)
    run._gang, run._folder, run._channel, run._what = gang, tmp_path, Channel(), "step train (1 of 1)"
    run._inapplicable = ""
    assert [launched(tmp_path, rank, code, monkeypatch) for rank, code in enumerate(codes)] == codes
    step = SimpleNamespace(name="train", launcher=launcher, once=False)
    if not told:
        run._after(step, ran=True)
        return
    with pytest.raises(gang_run.WorkloadCrash, match=re.escape(told)):
        run._after(step, ran=True)


@pytest.mark.parametrize("launcher", gang_run.OVER_SSH)
def test_a_step_of_a_launcher_whose_file_exists_is_skipped_and_the_job_goes_on(tmp_path, monkeypatch, launcher):
    (tmp_path / "made").touch()
    one = JobStep("convert", ("false",), 0.0, {}, "made", skip=False, force=False, launcher=launcher)
    job = JobSteps("mine", {}, (one,), figures=False, csv="", gang={"figures": "first"})
    run = gang_run.GangRun(job, tmp_path, tmp_path / "result.json")
    run._gang = Gang("all", (GangMember("n1", "10.0.0.1", 2, {}), GangMember("n2", "10.0.0.2", 2, {})), 0, 1, 3)
    run._channel = Channel()
    monkeypatch.setattr(Channel, "arrive", lambda self, _name, word: setattr(self, "word", word))
    monkeypatch.setattr(Channel, "met", lambda self, _name: [self.word])
    assert run._work() == 0


MPIRUN = """#!/bin/bash
[[ $1 != --version ]] || {{ echo "mpirun (Open MPI) 5.0"; exit 0; }}
while [[ $1 != {python} ]]; do shift; done
for index in 0 1; do RANK=$index {variable}={folder}/$index/job "$@"; done
exit 0
"""


@pytest.mark.slow
@pytest.mark.usefixtures("keys")
def test_a_rank_that_fails_is_named_by_all_although_mpirun_succeeds(tmp_path):
    (tmp_path / "tools").mkdir()
    mpirun = tmp_path / "tools" / "mpirun"
    mpirun.write_text(MPIRUN.format(python=sys.executable, folder=tmp_path, variable=gang_run.RANK_DIRECTORY_VARIABLE))
    mpirun.chmod(0o755)
    run = '[[ $GPUVAL_NODE != node-2 ]] || exit 5; echo "well done"'
    path = write(tmp_path, step("train", run, launcher="mpirun"))
    first, second = ended(tmp_path, path, PATH=f"{mpirun.parent}:{os.environ['PATH']}")
    assert "well done" in first[1]
    assert (first[0], second[0]) == (2, 2)
    assert "node-2 (127.0.0.2): step train (1 of 1): rank 1: exit code 5" in first[2]["message"], first[1]
    assert second[2]["message"].startswith("step train (1 of 1): rank 1: exit code 5")
    assert "success" not in (first[2]["state"], second[2]["state"])


def members(*labels):
    return tuple(
        GangMember(f"n{i}", f"10.0.0.{i}", 8, {"rack": rack} if rack else {}) for i, rack in enumerate(labels, 1)
    )


def test_nodes_are_ordered_by_rack_and_no_more_than_asked_for_take_part():
    gang = Gang("all", members("a", "b", "a", "b"), 2, 1, 3)
    shaped = gang_run.shaped(gang, {**ASKED, "order": "rack", "most": 3}, False)
    assert [one.node for one in shaped.members] == ["n1", "n3", "n2"]
    assert shaped.own.node == "n3"
    spare = gang_run.shaped(Gang("all", gang.members, 3, 1, 3), {**ASKED, "order": "rack", "most": 3}, False)
    assert spare.index == 3


@pytest.mark.parametrize(
    ("asked", "told"),
    [({"least": 3}, "gang all has 2 nodes and the job needs 3"), ({"gpus_per_node": 9}, "needs 9 GPUs per node")],
)
def test_a_gang_that_does_not_fit_says_why(asked, told):
    with pytest.raises(WorkloadFailure, match=told):
        gang_run.shaped(Gang("all", members("", ""), 0, 1, 3), {**ASKED, **asked}, False)


def test_a_spare_node_passes_at_once(tmp_path):
    found = ended(tmp_path, write(tmp_path, step("work", "true"), most_nodes=2), count=3)
    assert [code for code, _log, _result in found] == [0, 0, 0]
    assert found[2][2]["message"] == "spare: the job uses 2 of 3 nodes (most_nodes)"
