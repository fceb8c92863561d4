"""What becomes of a rank's end: real ranks, each ending in its own way."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.kit.workload_process import NODE, TorchWorkload

pytest.importorskip("torch")

import torch.distributed as dist
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.rounds import OCCUPIED
from gpuval_workloads.common import ranks
from gpuval_workloads.common.device import CPU
from gpuval_workloads.common.launch import first_failure
from gpuval_workloads.common.result import EXIT_FAILURE, WorkloadCrash, WorkloadFailure

PARENT = """
import sys
from gpuval_workloads.common.device import CPU
from gpuval_workloads.common.launch import run_ranks
from gpuval_workloads.common.result import run_workload
sys.exit(run_workload(lambda result: run_ranks(result, "sample_rank", sys.argv[1:], CPU, 2)))
"""

RANK = """
import os, sys, time
import torch
from gpuval_workloads.common.ranks import leave, run_rank
from gpuval_workloads.common.result import WorkloadFailure

def main(ranks, result):
    result.add_metric("sample_ranks_count", len(ranks.gather(os.getpid())), "count")
    if ranks.is_first:
        result.write()
    ranks.gather(None)
    if ranks.rank == 1:
        if sys.argv[1] == "fail":
            raise WorkloadFailure("rank 1 says no")
        if sys.argv[1] == "memory":
            raise torch.OutOfMemoryError("Tried to allocate 20 GiB")
        if sys.argv[1] == "raise":
            raise KeyError("a defect")
    ranks.gather(None)

leave(run_rank(main))
"""

BUSY = """
import atexit, threading, sys
import torch
from gpuval_workloads.common.ranks import leave

def work():
    ones = torch.ones(64, 64)
    begun.set()
    while True:
        ones @ ones

begun = threading.Event()
threading.Thread(target=work, daemon=True).start()
begun.wait(30)
atexit.register(print, "ended in order")
print("all is reported")
leave(3)
"""


NCCL = """\
NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled cuda error (run with NCCL_DEBUG=INFO)
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 2 'out of memory'"""


def test_what_nccl_met_last_is_kept():
    text = ranks._words(RuntimeError(NCCL))
    assert text.startswith("NCCL error in: ") and text.endswith("; Cuda failure 2 'out of memory'")
    assert ranks.is_out_of_memory(RuntimeError(NCCL)) and OCCUPIED.search(text)
    other = ranks._words(RuntimeError(NCCL.replace("Cuda failure 2 'out of memory'", "socketPoll: closed by peer")))
    assert other.endswith("unhandled cuda error (run with NCCL_DEBUG=INFO); socketPoll: closed by peer")


def test_a_thread_within_pytorch_does_not_turn_an_end_into_a_crash():
    """By ``sys.exit`` this program is aborted every time: "terminate called without an active exception"."""
    done = subprocess.run(
        [sys.executable, "-c", BUSY], env={**os.environ, "PYTHONPATH": str(NODE)}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (3, "all is reported\nended in order\n", "")


def test_what_else_an_exception_says_is_left_out_and_all_is_bounded():
    full = "CUDA out of memory. Process 7 has 70.60 GiB memory in use. If reserved but unallocated memory is large try"
    assert ranks._words(RuntimeError(full)).endswith("70.60 GiB memory in use.")
    assert ranks._words(RuntimeError("CUDA error: x\nCUDA kernel errors might\nCompile with")) == "CUDA error: x"
    assert len(ranks._words(RuntimeError("x" * 10_000 + "\nout of memory" * 1000))) < 1100


@pytest.fixture
def of_several_nodes():
    """A rank whose node has none of the others: here there are no others."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield ranks.Ranks(0, 1, CPU, node_ranks=range(0))
    dist.destroy_process_group()


def test_nothing_that_another_node_sends_is_unpickled(of_several_nodes, monkeypatch):
    monkeypatch.setattr(dist, "all_gather_object", None)
    item = {"ddp": (0.1, 1e-300), "umlaut": "ü", "none": None}
    assert of_several_nodes.gather(item) == [{"ddp": [0.1, 1e-300], "umlaut": "ü", "none": None}]
    with pytest.raises(TypeError, match="not JSON serializable"):
        of_several_nodes.gather(object())


def test_what_a_rank_of_another_node_hands_over_is_bounded(of_several_nodes):
    with pytest.raises(WorkloadCrash, match="hands over 2000002 bytes, not 1 to 1048576"):
        of_several_nodes.gather("x" * 2_000_000)


def test_a_gpu_that_is_gone_when_a_rank_begins_is_a_failure_with_its_message(tmp_path, monkeypatch):
    def lacking():
        raise WorkloadFailure("8 GPUs are expected but PyTorch sees 7")

    for name, value in {"RANK": "0", "WORLD_SIZE": "2", ranks.RANK_DIRECTORY_VARIABLE: str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(ranks.LAUNCHER_VARIABLE, raising=False)
    monkeypatch.setattr(ranks, "die_with_parent", lambda: None)
    monkeypatch.setattr(ranks, "RankProgress", lambda _path: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(ranks, "choose_accelerator", lacking)
    assert ranks.run_rank(lambda _ranks, _result: None) == EXIT_FAILURE
    assert first_failure(tmp_path)["message"] == "8 GPUs are expected but PyTorch sees 7"


@pytest.mark.parametrize(
    ("way", "code", "state", "words"),
    [
        ("return", 0, "success", ""),
        ("fail", 1, "failure", "rank 1 says no"),
        ("memory", 1, "failure", "rank 1 (rank:1) ran out of device memory. Lower --batch-size"),
        ("raise", 2, "running", "broke off with KeyError: 'a defect'"),
    ],
)
def test_ends(tmp_path, way, code, state, words):
    (tmp_path / "sample_parent.py").write_text(PARENT)
    (tmp_path / "sample_rank.py").write_text(RANK)
    ended = TorchWorkload(tmp_path, "sample_parent", way).end()
    assert (ended.code, ended.result["state"]) == (code, state), ended.err
    assert ended.metric("sample_ranks_count") == 2
    if state == "failure":
        assert words in ended.result["message"]
    assert words in ended.err.strip().rpartition("\n")[2]
    assert not list(tmp_path.glob("ranks-*"))
