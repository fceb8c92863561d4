"""Ranks that a launcher starts over SSH: what they are told, what they print, and who is refused; sshd, pdsh and
DeepSpeed's launcher are real where they are there."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

pytest.importorskip("torch")

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import COLLECTION
from gpuval_workloads.common import processes
from gpuval_workloads.common.device import CPU, TorchDevices
from gpuval_workloads.common.launch import RANK_DIRECTORY_VARIABLE
from gpuval_workloads.common.result import WorkloadFailure
from gpuval_workloads.gang import __main__ as program
from gpuval_workloads.gang import launching, members, membership, threads

from tests.kit.needs import needs_deepspeed, needs_programs
from tests.kit.ports import free_port
from tests.kit.workload_process import NODE

SITES = [*Path(__file__).resolve().parents[3].glob(".venv-node/lib/python3*/site-packages")]
#: In place of pdsh: it leaves what it was told.
FAKE_PDSH = """#!/bin/sh
for word in "$@"; do echo "$word" >> "$TOLD"; done
"""


@pytest.fixture
def deepspeed():
    needs_deepspeed()


@pytest.fixture
def sshd():
    needs_programs({"sshd": "openssh-server", "ssh-keygen": "openssh-client"})


@pytest.fixture
def pdsh():
    needs_programs({"pdsh": "pdsh"})


def gang_of(*slots, addresses=("127.0.0.1", "127.0.0.2"), index=0, port=29500):
    listed = [{"node": f"n{i}", "address": a, "slots": s} for i, (a, s) in enumerate(zip(addresses, slots), 1)]
    return members.parse(
        json.dumps({"name": "all", "members": listed, "index": index, "port": port, "ssh_port": port + 2})
    )


@pytest.mark.usefixtures("deepspeed")
def test_the_launcher_exports_nothing_of_the_leaders_own(tmp_path, monkeypatch, capfd):
    """NCCL_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_DEBUG_FILE of the leader mean other things, or nothing, elsewhere."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "pdsh").write_text(FAKE_PDSH)
    (tools / "pdsh").chmod(0o755)
    own = {
        "NCCL_SOCKET_IFNAME": "=eth7", "NCCL_IB_HCA": "mlx5_9", "NCCL_DEBUG_FILE": "/leader", "MV2_X": "1",
        "UCX_NET_DEVICES": "mlx5_9:1", "MLFLOW_X": "1", "PYTHONHASHSEED": "7",
        "PYTHONPATH": os.pathsep.join(map(str, SITES)), "DS_ACCELERATOR": "cuda",  # CUDA's has NCCL exported
        "PATH": f"{tools}:{os.environ['PATH']}", "TOLD": str(tmp_path / "told"),
    }  # fmt: skip
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    launcher = launching.DeepSpeedLauncher(gang_of(1, 1), tmp_path, [])
    launcher.start("gpuval_workloads.gang.training", ["training"])
    deadline = time.monotonic() + 200
    while launcher.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    launcher.end()
    out, err = capfd.readouterr()
    told = (tmp_path / "told").read_text()
    exports = [word.split("=")[0].removeprefix("export ").strip() for word in told.split(";") if "export " in word]
    assert {word.split()[-1] for word in exports} == {"PYTHONPATH", "PYTHONUNBUFFERED"}, told
    assert 'export PYTHONPATH="$GPUVAL_PYTHONPATH"' in told
    assert f'--enable_each_rank_log="${RANK_DIRECTORY_VARIABLE}"/ranks' in told
    for text in ("run.sh:\n#!/bin/sh", "deepspeed_env:\nPYTHONUNBUFFERED=1", "hostfile:\n127.0.0.1 slots=1\n"):
        assert text in out, "the stage's log has what the launcher was told"
    assert "NCCL_IB_HCA" not in told + err


@pytest.mark.parametrize(
    ("accelerator", "name"),
    [(CPU, "cpu"), (TorchDevices("cuda", 8, "nccl"), "cuda"), (TorchDevices("hpu", 8, "hccl"), "hpu")],
)
def test_deepspeed_gets_the_accelerator(tmp_path, accelerator, name):
    made = program._environment({}, gang_of(1, 1), accelerator, tmp_path, "127.0.0.1")
    assert made["DS_ACCELERATOR"] == name
    assert "DS_ACCELERATOR" not in program._environment(
        {"DS_ACCELERATOR": "x"}, gang_of(1, 1), accelerator, tmp_path, "127.0.0.1"
    )


def test_ranks_are_given_all_that_the_stage_was_given():
    declared = {
        variable["name"]: str(variable["value"])
        for path in (COLLECTION / "networks").glob("*.yml")
        for variable in yaml.safe_load(path.read_text())["environment"]
    }
    others = dict.fromkeys(
        ["OFI_NCCL_PROTOCOL", "PYTORCH_CUDA_ALLOC_CONF", "LD_PRELOAD", "ROCR_VISIBLE_DEVICES", "PT_HPU_LAZY_MODE",
         "SHARP_COLL_LOG_LEVEL", "HF_HOME", "PATH", "HOME", "MY_OWN"], "a b='c'",
    )  # fmt: skip
    token = {membership.TOKEN_VARIABLE: "5ecret"}
    odd = {"QUOTED": '{"a": 1}', "LINES": "a\nb", "BACK": "a\\"}
    given, kept_back = membership.passed(
        {**declared, **others, **token, **odd, "USER": "x", "SSH_CONNECTION": "y"}, membership.TOKEN_VARIABLE
    )
    assert given == {**declared, **others}
    assert kept_back == ["BACK", "LINES", "QUOTED"]
    assert "5ecret" not in str(given)


@pytest.fixture
def authorized(tmp_path):
    """A pair of keys that was brought as one for another user is: readable by all."""
    key = tmp_path / "brought" / "id_ed25519"
    key.parent.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    key.chmod(0o644)
    return key


@pytest.mark.usefixtures("sshd")
def test_a_rank_sees_the_values_as_they_are_by_a_key_that_all_could_read(tmp_path, authorized):
    gang = gang_of(1, 1, port=free_port())
    values = {"AN_EQUAL": "a=b c", "A_TICK": "it's $HOME `x` #7", "EMPTY": "", "UMLAUT": "ü"}
    public = authorized.with_suffix(".pub").read_text()
    with membership.SshServer(gang, tmp_path / "ssh", public, values) as server:
        options = membership.client(gang, tmp_path, authorized, [server.host_key] * 2)
        done = subprocess.run(
            ["ssh", *options, "-p", str(gang.ssh_port), "127.0.0.1", "env -0"],
            capture_output=True, timeout=30, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = dict(item.split("=", 1) for item in done.stdout.decode().split("\0") if "=" in item)
    assert {name: seen[name] for name in values} == values


@pytest.mark.usefixtures("sshd")
def test_the_server_of_a_member_with_a_name_is_reached_at_all_addresses(tmp_path, authorized):
    gang = gang_of(1, 1, addresses=("localhost", "127.0.0.2"), port=free_port())
    server = membership.SshServer(gang, tmp_path / "ssh", authorized.with_suffix(".pub").read_text(), {})
    with server, socket.create_connection(("127.0.0.9", gang.ssh_port), timeout=60) as connection:
        assert connection.recv(4) == b"SSH-"


@pytest.mark.usefixtures("sshd")
def test_the_server_of_a_member_with_an_address_listens_there_alone(tmp_path, authorized):
    gang = gang_of(1, 1, port=free_port())
    server = membership.SshServer(gang, tmp_path / "ssh", authorized.with_suffix(".pub").read_text(), {})
    with server, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.9", gang.ssh_port), timeout=60)


@pytest.mark.parametrize(("slots", "is_right"), [((8, 8), True), ((8, 4), True), ((4, 8), False), ((3, 2), False)])
def test_gangs_that_deepspeeds_launcher_numbers_wrongly_are_refused(slots, is_right):
    gang = gang_of(*slots)
    numbered = [rank % slots[1] for rank in range(slots[0], sum(slots))]  # as launch.py of DeepSpeed does
    assert (numbered == list(range(slots[1]))) is is_right
    if is_right:
        launching.check_deepspeed(gang)
    else:
        with pytest.raises(WorkloadFailure, match=r"n2 has . processes .* Choose launcher torchrun"):
            launching.check_deepspeed(gang)


def test_a_folder_with_a_blank_is_refused():
    launching.check_blanks(Path("/opt/gpuval"), sys.executable)
    with pytest.raises(WorkloadFailure, match="'/data/my runs' has a blank"):
        launching.check_blanks(Path("/opt/gpuval"), Path("/data/my runs"))


def test_what_ranks_leave_in_files_is_printed_as_it_comes_and_in_the_end(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(threads, "FORWARD_SECONDS", 0.05)
    monkeypatch.setattr(threads, "MOST_BYTES", 100)
    folder = tmp_path / "ranks"
    with threads.Forwarder(folder) as forwarder:
        (folder / "one").write_text("step 1\nhalf a li")
        seen, deadline = "", time.monotonic() + 60
        while "step 1\n" not in seen and time.monotonic() < deadline:
            time.sleep(0.02)
            seen += capsys.readouterr().out
        assert seen == "step 1\n"
        forwarder._seconds = 60
        time.sleep(0.2)
        with (folder / "one").open("a") as file:
            file.write("ne\nno end")
        (folder / "two").write_bytes(b"x" * 150 + b"\xff\n")
    out = capsys.readouterr().out
    assert "half a line\nno end" in out
    assert "[52 bytes of two are left out]\n" in out and out.endswith("x" * 98 + "\ufffd\n")


MEMBER = """
import sys
from gpuval_workloads.common.result import run_workload
from gpuval_workloads.gang import __main__ as program
sys.exit(run_workload(program.main))
"""
SPEAKING = """
import os, sys
"RANK" in os.environ and print("rank", os.environ["RANK"], "speaks,", os.environ["MY_OWN"], file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("sshd", "deepspeed", "pdsh")
def test_each_member_has_what_its_own_rank_printed_also_when_the_leader_dies(tmp_path, authorized):
    """Two members on the loopback interface, by DeepSpeed's launcher; the leader is killed, and with it its log."""
    (authorized.parent / "token").write_text("t" * 32)
    port, started = free_port(), []
    listed = [{"node": f"node-{i}", "address": f"127.0.0.{i}", "slots": 1} for i in (1, 2)]
    try:
        for index in (0, 1):
            own = tmp_path / f"{index}"
            own.mkdir()
            gang = {"name": "all", "members": listed, "index": index, "port": port, "ssh_port": port + 2}
            (own / "gang.json").write_text(json.dumps(gang))
            (own / "sitecustomize.py").write_text(SPEAKING)
            environment = {
                **{n: v for n, v in os.environ.items() if not n.startswith("GPUVAL_")},
                "PYTHONPATH": os.pathsep.join([str(own), str(NODE), *map(str, SITES)]), "OMP_NUM_THREADS": "1",
                "GPUVAL_GANG_FILE": str(own / "gang.json"), "TMPDIR": str(own),
                "GPUVAL_GANG_KEYS": str(authorized.parent), "GPUVAL_WORK_DIR": str(own), "MY_OWN": f"m{index}",
                "GPUVAL_RESULT_FILE": str(own / "result.json"), "GPUVAL_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo",
            }  # fmt: skip
            command = [sys.executable, "-c", MEMBER, "collectives", "--launcher", "deepspeed", "--tool", "torch"]
            command += ["--only", "all_reduce", "--most-bytes", "4096", "--seconds", "300"]
            with (own / "log").open("wb") as log:
                started.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
                )
        logs = [tmp_path / str(index) / "log" for index in (0, 1)]
        deadline = time.monotonic() + 250
        while "collectives across the gang" not in logs[0].read_text() and time.monotonic() < deadline:
            time.sleep(0.2)
        text = logs[0].read_text()
        assert "collectives across the gang" in text, text + logs[1].read_text()
        assert "rank 0 speaks, m0" in text and "rank 1 speaks" not in text, text
        assert "rank 1 speaks, m1" in logs[1].read_text(), logs[1].read_text()
        left = processes.below(started[0].pid)
        started[0].kill()
        for pid in left:  # as the runner ends what a killed program leaves
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        started[1].wait(120)
    finally:
        for process in started:
            for pid in [*processes.below(process.pid), process.pid]:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
    assert "node-1 (127.0.0.1), the leader, was lost" in logs[1].read_text()
