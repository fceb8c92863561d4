"""What becomes of a rank's end: real ranks, each ending in its own way."""

import pytest
from workload_process import Workload

pytest.importorskip("torch")

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
from gpuval_workloads.common.ranks import run_rank
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

sys.exit(run_rank(main))
"""


@pytest.mark.slow
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
    ended = Workload(tmp_path, "sample_parent", way).end()
    assert (ended.code, ended.result["state"]) == (code, state), ended.err
    assert ended.metric("sample_ranks_count") == 2
    if state == "failure":
        assert words in ended.result["message"]
    assert words in ended.err.strip().rpartition("\n")[2]
    assert not list(tmp_path.glob("ranks-*"))
