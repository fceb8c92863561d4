"""What is left of NCCL's log when a gang ends badly: its lines of trouble and its end in the stage's log."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from gpuval_workloads.common.device import TorchDevices
from gpuval_workloads.common.result import WorkloadResult
from gpuval_workloads.diagnostics import nccl_log
from gpuval_workloads.gang import collectives
from gpuval_workloads.gang.config import CollectivesConfig

from tests.kit.ports import free_port
from tests.kit.torch_server import TorchProcess
from tests.kit.workload_process import NODE

INFO = "node1:77:99 [0] NCCL INFO "
WARN = "node1:77:99 [0] misc/socket.cc:52 NCCL WARN socketProgress: Connection closed by remote peer"
NO_DEVICE = INFO + "NET/IB : No device found."
TUNING = INFO + "AllReduce: 8 Bytes -> Algo 0 proto 0 time 27.6"
SOCKET = f"{INFO}Using network Socket\n{INFO}Channel 00/0 : 7[7] -> 8[0] [receive] via NET/Socket/0\n"


@pytest.fixture
def environ(tmp_path, monkeypatch):
    nccl_log.ask(os.environ.copy(), tmp_path)
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / nccl_log.NAME))
    return os.environ


def told(environ, capsys):
    nccl_log.print_logs(environ)
    return capsys.readouterr().out.splitlines()


def test_trouble_before_the_end_is_reported_and_calls_are_not(tmp_path, environ, capsys):
    lines = [NO_DEVICE, WARN, *[f"{INFO}ring {number}" for number in range(1000)], *[TUNING] * 1000, "the last"]
    (tmp_path / "nccl.node1.77.log").write_text("\n".join(lines) + "\n")
    found = told(environ, capsys)
    assert found[:2] == [f"nccl.node1.77.log: {NO_DEVICE}", f"nccl.node1.77.log: {WARN}"]
    assert found[-2:] == [f"nccl.node1.77.log: {INFO}ring 999", "nccl.node1.77.log: the last"]
    assert not any("Algo" in line for line in found)
    assert len("\n".join(line.partition(": ")[2] for line in found[2:])) <= nccl_log.END_BYTES


def test_what_is_reported_is_bounded_and_of_one_line_each(tmp_path, environ, capsys):
    for number in range(20):
        lines = [f"{WARN} {n}" for n in range(500)] + ["\x1b[2J\r::error::\u2028x" + "y" * 100_000, "z" * 100_000]
        (tmp_path / f"nccl.node1.{number:03}.log").write_text("\n".join(lines))
    nccl_log.print_logs(environ)
    text = capsys.readouterr().out
    assert len(text) < nccl_log.MAX_LOGS * (nccl_log.END_BYTES * 2) + nccl_log.MAX_TROUBLES * nccl_log.MAX_LINE
    assert "\x1b" not in text and "\r" not in text and "\u2028" not in text
    assert all(line.startswith("nccl.node1.") for line in text.splitlines()[:-1])
    assert text.endswith("4 more logs of NCCL are not shown\n")


def test_of_a_huge_log_begin_and_end_are_looked_at(tmp_path, environ, capsys, monkeypatch):
    monkeypatch.setattr(nccl_log, "MAX_BYTES", 10_000)
    filling = "\n".join([f"{INFO}x"] * 5000)
    (tmp_path / "nccl.node1.77.log").write_text("\n".join([NO_DEVICE, filling, WARN, f"{INFO}bye"]))
    found = [line.partition(": ")[2] for line in told(environ, capsys)]
    assert (found[0], found[-2:]) == (NO_DEVICE, [WARN, f"{INFO}bye"])


def test_without_logs_nothing_is_reported(environ, capsys):
    assert told(environ, capsys) == []
    result = WorkloadResult()
    collectives.add_failure(result)
    assert result.environment == {}


def test_a_complaint_about_the_network_is_followed_by_the_log(tmp_path, environ, capsys):
    (tmp_path / "nccl.node1.77.log").write_text(f"{NO_DEVICE}\n{SOCKET}")
    result = WorkloadResult()
    result.add_metric("gang_collective_error_count", 0, "count")
    config = CollectivesConfig(expect_network=("IB",))
    collectives.complete(result, config, TorchDevices("cuda", 8, "nccl"), 2, 8)
    assert "NCCL's log in that of the stage" in result.message
    assert "NET/IB : No device found." in capsys.readouterr().out


BAD_END = """
import os, sys
from pathlib import Path
from gpuval_workloads.common.result import WorkloadCrash, WorkloadFailure, run_workload
from gpuval_workloads.gang import __main__ as program
def run(*_):
    Path(os.environ["NCCL_DEBUG_FILE"]).with_name("nccl.node1.77.log").write_text({text!r})
    raise {kind}("the work ends")
program._ByTorchrun.run = run
sys.exit(run_workload(program.main))
"""


@pytest.mark.parametrize("kind", ["WorkloadCrash", "WorkloadFailure", "SystemExit"])
def test_a_bad_end_leaves_log_and_networks(tmp_path, kind):
    gang = {"name": "all", "members": [{"node": "a", "address": "127.0.0.1", "slots": 1}], "index": 0}
    environment = {
        **os.environ, "PYTHONPATH": str(NODE), "GPUVAL_GANG_TOKEN": "t" * 32, "GPUVAL_WORK_DIR": str(tmp_path),
        "GPUVAL_GANG": json.dumps({**gang, "port": free_port(), "ssh_port": 3022}), "GPUVAL_ACCELERATOR": "cpu",
        "GPUVAL_RESULT_FILE": str(tmp_path / "result.json"),
    }  # fmt: skip
    command = [sys.executable, "-c", BAD_END.format(kind=kind, text=f"{SOCKET}{WARN}\n"), "collectives"]
    process = TorchProcess(
        [*command, "--tool", "torch"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = process.communicate(timeout=100)
    assert process.returncode, out + err
    assert f"nccl.node1.77.log: {WARN}" in out
    environment = json.loads((tmp_path / "result.json").read_text())["environment"]
    assert (environment["networks"], environment["networks_initialised"]) == (["Socket"], ["Socket"])
    assert environment["gang"]["joined"] is True


def test_a_log_that_is_cut_is_reported(tmp_path, environ, capsys, monkeypatch):
    monkeypatch.setattr(nccl_log, "MAX_BYTES", 100)
    (tmp_path / "nccl.node1.77.log").write_text(SOCKET)
    (tmp_path / "nccl.node1.78.log").write_text("short")
    assert nccl_log.read(environ) == SOCKET[:100] + "\nshort"
    assert capsys.readouterr().out == f"nccl.node1.77.log: the first 100 of {len(SOCKET)} bytes are read\n"
