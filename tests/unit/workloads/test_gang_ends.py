"""How a gang ends badly, with the members' real programs on the loopback interface: whom each of them names."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")

import torch
from gpuval_workloads.gang.control_channel import CAUSE, ChannelLimits, ControlChannel, StoppedError

from tests.kit.gang_channel import Party, gang, until
from tests.kit.ports import free_port
from tests.kit.torch_server import TorchProcess
from tests.kit.workload_process import NODE

TOKEN = "t" * 32
#: The member's program; its ranks run the module that is named first, and it is ended hard after so many seconds.
MEMBER = """
import sys
from gpuval_workloads.common.result import run_workload
from gpuval_workloads.gang import __main__ as program
module, program.HARD_SECONDS = sys.argv.pop(1), float(sys.argv.pop(1))
program.RANKS = dict.fromkeys(program.RANKS, module) if module else program.RANKS
sys.exit(run_workload(program.main))
"""
#: What the ranks do, in place of a measurement.
RANKS = """
import os, sys, time
import torch
from gpuval_workloads.common.ranks import leave, run_rank
from gpuval_workloads.common.result import WorkloadFailure
from gpuval_workloads.diagnostics.collectives import Collective, collectives
from gpuval_workloads.diagnostics.measure import Meter
from gpuval_workloads.gang import training, wrong_values
from gpuval_workloads.gang.collectives import ERRORS

def main(ranks, result):
    if WAY == "nan":
        losses = iter([1.0, 1.0, 1.0, float("nan") if ranks.rank == 1 else 1.0])
        training.train("DDP", ranks, lambda: torch.tensor(next(losses)), 60)
    elif WAY == "memory":
        if ranks.rank == 1:
            time.sleep(1)
            raise WorkloadFailure("rank 1 ran out of device memory")
        raise RuntimeError("Connection closed by peer")
    elif WAY == "wrong":
        one = Collective("x", lambda n: 1.0, lambda *_: (int, int, lambda: 2 if ranks.rank == 1 else 0))
        try:
            keep = lambda n: wrong_values.keep(ranks.rank, ERRORS, n)
            collectives(ranks, Meter(ranks, int), 0.1, "gang", [one], 8, keep)
        finally:
            os._exit(3)

leave(run_rank(main))
"""


def start(folder, port, index, way="", hard=30.0, count=2, **variables):
    """A member's program, with one rank."""
    listed = [{"node": f"node-{i + 1}", "address": f"127.0.0.{i + 1}", "slots": 1} for i in range(count)]
    own = folder / f"{index}"
    own.mkdir()
    module = f"ranks_{way}" if way else ""
    (folder / f"{module}.py").write_text(f"WAY = {way!r}\n{RANKS}")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GPUVAL_")},
        "PYTHONPATH": f"{NODE}:{folder}", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        "GPUVAL_ACCELERATOR": "cpu",
        "GPUVAL_GANG": json.dumps(
            {"name": "all", "members": listed, "index": index, "port": port, "ssh_port": port + 2}
        ),
        "GPUVAL_GANG_TOKEN": TOKEN, "GPUVAL_WORK_DIR": str(own), "GPUVAL_RESULT_FILE": str(own / "result.json"),
        **variables,
    }  # fmt: skip
    command = [sys.executable, "-c", MEMBER, module, str(hard), "collectives", "--tool", "torch", "--seconds", "60"]
    return TorchProcess(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def ended(process, folder, index):
    """Its exit code, standard error and result."""
    try:
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    path = folder / f"{index}" / "result.json"
    return process.returncode, err, json.loads(path.read_text()) if path.exists() else None


def line_of(port, index, stops, count=2):
    """Another member, of which there is the line alone."""
    party = Party(0, index, ChannelLimits())
    bring = {"torch": torch.__version__, "host": None}
    return ControlChannel(gang(port, index, count), TOKEN, ChannelLimits(), party.beats, stops.append, bring)


def test_a_stop_before_the_ranks_begin_ends_the_leader_with_its_last_word(tmp_path):
    """It waits inside of PyTorch for the others' ranks to come, and hears no signal there."""
    port, stops = free_port(), []
    process = start(tmp_path, port, 0, hard=3.0)
    with line_of(port, 1, stops) as line:
        line.join()
        time.sleep(2)
        line.end("rank 1 was killed by SIGKILL", 30, weight=CAUSE)
        code, err, result = ended(process, tmp_path, 0)
    assert [stop.node for stop in stops] == ["node-2"]  # not the leader, lost
    assert code == 2, err
    assert "the gang has ended: node-2 (127.0.0.2): rank 1 was killed by SIGKILL" in err
    assert result["environment"]["gang"]["stopped_by"] == "node-2"


def test_who_is_ended_by_its_time_limit_says_so_and_is_not_accused(tmp_path):
    port, stops = free_port(), []
    with line_of(port, 0, stops, count=3) as line:
        process = start(tmp_path, port, 1, count=3)
        until(lambda: 1 in line._brought, 100)
        process.send_signal(signal.SIGTERM)
        code, err, _ = ended(process, tmp_path, 1)
        with pytest.raises(StoppedError, match=r"node-2 .*was ended from outside"):
            line.join()
    assert code == 128 + signal.SIGTERM, err
    assert stops[0].node is None


def test_who_is_at_work_and_ended_from_outside_is_not_accused(tmp_path):
    port = free_port()
    processes = [start(tmp_path, port, index) for index in (0, 1)]
    until(lambda: list(tmp_path.glob("1/gang-*/beat-1.json")), 100)
    processes[1].send_signal(signal.SIGTERM)
    first, second = (ended(process, tmp_path, index) for index, process in enumerate(processes))
    assert second[0] == 128 + signal.SIGTERM, second[1]
    assert first[0] == 2 and "node-2 (127.0.0.2): was ended from outside" in first[1]
    assert first[2]["environment"]["gang"]["stopped_by"] is None


def test_a_loss_that_is_no_number_is_kept_by_all_and_its_node_is_named(tmp_path):
    ends = both(tmp_path, "nan")
    for _code, err, result in ends:
        assert result["state"] == "failure", err
        assert figures(result) == {"gang_nonfinite_count": 1}
        assert "DDP: the loss is not finite from step 4 on, first on rank 1:" in result["message"]
    assert [result["environment"]["gang"].get("stopped_by") for *_, result in ends] == ["node-2", None]


def test_what_a_rank_reported_itself_is_the_cause_and_is_kept(tmp_path):
    (code, err, _), (_, _, second) = both(tmp_path, "memory")
    assert code == 2 and "the gang has ended: node-2 (127.0.0.2): rank 1 ran out of device memory" in err
    assert second["state"] == "failure" and second["message"].startswith("rank 1 ran out of device memory")


def test_wrong_elements_are_kept_where_the_work_breaks_off(tmp_path):
    _, (code, err, second) = both(tmp_path, "wrong")
    assert code == 2, err
    assert figures(second)["gang_collective_error_count"] >= 2


def both(folder, way):
    port = free_port()
    processes = [start(folder, port, index, way) for index in (0, 1)]
    return [ended(process, folder, index) for index, process in enumerate(processes)]


def figures(result):
    own = ("gang_nonfinite_count", "gang_collective_error_count")
    return {one["name"]: one["value"] for one in result["metrics"] if one["name"] in own}
