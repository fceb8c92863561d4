"""A rank that stands still is named: the judgement, and ranks that are really stopped, killed or asleep."""

import os
import signal
import subprocess
import threading
import time

import pytest
from gpuval_workloads.common import ranks
from gpuval_workloads.common.stall import (
    Beat,
    RankProgress,
    StallJudge,
    is_child,
    passed,
    process_state,
    read_beat,
    stall_seconds,
    where,
)

from tests.kit.workload_process import TorchWorkload, is_alive

LIMIT = 10.0


def beat(number=1, ticks=5, place=7, is_in_collective=False, patience=0.0, done=0):
    return Beat(100, number, ticks, place, "main (worker.py:1)", is_in_collective, patience, done)


def watch_for(seconds, *ranks):
    """Look once a second; every rank is a function of the second that returns its heartbeat and state."""
    watch = StallJudge(LIMIT)
    for second in range(seconds):
        found = watch.look({rank: see(second) for rank, see in enumerate(ranks)}, 1.0)
        if found:
            return second, *found
    return None


def working(second):
    return beat(second, ticks=second, place=second), "R"


def waiting(second):
    return beat(second, ticks=6, place=3, is_in_collective=True), "S"


def test_work_is_left_alone():
    assert watch_for(1000, working, working) is None


def test_all_waiting_alike_are_left_alone():
    assert watch_for(1000, waiting, waiting, waiting) is None


def test_a_stopped_rank_is_named_whatever_the_others_do():
    second, rank, words = watch_for(100, working, lambda second: (beat(3), "T" if second > 5 else "R"))
    assert (second, rank) == (15, 1)
    assert words.startswith("has been stopped (process state T)")


def test_a_rank_stopped_now_and_then_is_left_alone():
    assert watch_for(1000, working, lambda second: (beat(second, second), "T" if second % 8 else "R")) is None


def test_the_one_behind_is_named_where_it_stands():
    second, rank, words = watch_for(100, waiting, waiting, lambda second: (beat(second, ticks=4), "D"))
    assert (second, rank) == (10, 2)
    assert "state D, in the kernel" in words
    assert "stands in main (worker.py:1)" in words


def test_with_equal_progress_the_one_outside_of_the_collective_is_behind():
    assert watch_for(100, waiting, lambda second: (beat(second, ticks=6), "S"))[1] == 1


def test_where_ranks_count_by_the_clock_those_outside_of_the_collective_are_behind():
    """The fingerprint: repeats without a collective. The one that hangs may have counted most."""
    hangs = lambda second: (beat(second, ticks=90), "S")  # noqa: E731
    assert watch_for(100, waiting, waiting, hangs)[1] == 2


def test_where_no_host_stands_in_a_collective_the_device_that_did_least_is_behind():
    """Hosts run ahead of their GPUs and block where they read a result, all at the same place."""
    seen = lambda done: lambda second: (beat(second, ticks=40, done=done), "S")  # noqa: E731
    assert watch_for(100, seen(31), seen(30), seen(31), seen(31))[1] == 1
    assert watch_for(100, seen(31), seen(31)) is None


def test_a_device_that_goes_on_is_left_alone():
    assert watch_for(1000, waiting, lambda second: (beat(second, ticks=5, done=second), "S")) is None


def test_a_silent_rank_is_behind_whatever_it_counted():
    assert watch_for(100, waiting, lambda second: (beat(1, ticks=9), "R"))[1] == 1


def test_a_slow_compilation_moves_and_has_five_times_as_long():
    second, rank, _ = watch_for(100, waiting, lambda second: (beat(second, ticks=5, place=second), "R"))
    assert (second, rank) == (5 * LIMIT, 1)


def test_patience_is_granted():
    second, rank, _ = watch_for(100, waiting, lambda second: (beat(second, ticks=5, patience=40.0), "S"))
    assert (second, rank) == (40, 1)


def test_one_rank_alone_is_left_alone():
    assert watch_for(1000, lambda second: (beat(second), "S")) is None


def test_a_rank_that_has_ended_is_not_the_one_waited_for():
    ended = lambda second: (beat(1, ticks=9), "?")  # noqa: E731
    assert watch_for(100, ended, waiting, waiting) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"pid": 5}', '{"pid": "x"}', "\x00" * 4096, '{"pid": 1e999}', "9" * 5000]
)
def test_a_torn_heartbeat_is_no_heartbeat(tmp_path, text):
    path = tmp_path / "beat-0.json"
    path.write_text(text)
    assert read_beat(path) is None
    assert read_beat(tmp_path / "none") is None


def test_a_heartbeat_that_names_no_process_of_ours_is_none(tmp_path):
    path = tmp_path / "beat-0.json"
    path.write_text(
        '{"pid": 1, "number": 1, "ticks": 1, "place": 1, "stands_in": "", "is_in_collective": false, '
        '"patience_seconds": 0}'
    )
    assert read_beat(path) is None


def test_heartbeats_tell_progress_and_place(tmp_path):
    progress = RankProgress(tmp_path / "beat-0.json")
    progress.tick()
    with progress.patience(30):
        progress.start()
        deadline = time.monotonic() + 60
        while (seen := read_beat(tmp_path / "beat-0.json")) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    progress.stop()
    assert (seen.pid, seen.ticks, seen.patience_seconds, seen.is_in_collective) == (os.getpid(), 1, 30, False)
    assert ".py:" in seen.stands_in


class Mark:
    def __init__(self, is_passed):
        self.is_passed, self.asked = is_passed, 0

    def query(self):
        self.asked += 1
        if self.is_passed is None:
            raise RuntimeError("CUDA error: unspecified launch failure")
        return self.is_passed


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_marks_are_counted_up_to_the_first_not_passed(count):
    for done in range(count + 1):
        marks = [Mark(number < done) for number in range(count)]
        assert passed(marks) == done
        assert sum(mark.asked for mark in marks) <= 6


def test_the_device_is_reported_over_all_lists_of_marks(tmp_path):
    selected = []
    progress = RankProgress(tmp_path / "beat-0.json")
    assert progress.device_done() == 0
    first, second = [Mark(True), Mark(False)], [Mark(True), Mark(False), Mark(False)]
    progress.follow(first, lambda: selected.append(1))
    assert progress.device_done() == 1
    progress.follow(second, lambda: selected.append(2))
    assert progress.device_done() == 3
    second[1].is_passed = True
    assert progress.device_done() == 4
    second[1].is_passed = second[0].is_passed = None  # a GPU fallen off the bus: what was known stays
    assert progress.device_done() == 4
    assert selected == [1, 2, 2, 2]


def test_a_heartbeat_tells_of_a_lost_device_without_ending(tmp_path):
    progress = RankProgress(tmp_path / "beat-0.json")
    progress.follow([Mark(None)], lambda: None)
    progress.start()
    deadline = time.monotonic() + 60
    while (seen := read_beat(tmp_path / "beat-0.json")) is None or seen.number < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    progress.stop()
    assert seen.device_done == 0


def test_a_moving_thread_is_distinguished_from_a_standing_one():
    release = threading.Event()
    thread = threading.Thread(target=release.wait, args=(20,))
    thread.start()
    time.sleep(0.1)
    first, again = where(thread.ident), where(thread.ident)
    release.set()
    thread.join()
    assert first == again
    assert "wait (threading.py" in first[1]
    assert where(0) == (hash(()), "", False)


def test_the_state_of_a_process():
    assert process_state(os.getpid()) == "R"
    assert process_state(2**22 + 1) == "?"
    assert not is_child(os.getpid())
    child = subprocess.Popen(["sleep", "20"])
    try:
        assert is_child(child.pid)
    finally:
        child.kill()
        child.wait()
    assert not is_child(child.pid)


@pytest.mark.parametrize(("text", "seconds"), [("5", 5.0), ("", 60.0), ("-1", 60.0), ("nan", 60.0), ("x", 60.0)])
def test_the_limit_can_be_set(text, seconds):
    assert stall_seconds({"GPUVAL_STALL_SECONDS": text}) == seconds


# Processes on a GPU: the form of `nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory,process_name
# --format=csv,noheader,nounits`; the fields are those of `nvidia-smi --help-query-compute-apps`, "[N/A]" and
# "[Insufficient Permissions]" what the tool writes for what it does not tell.
LISTING = """GPU-1b8a5f0e-0000-1111-2222-333344445555, 4242, 100352, /usr/bin/python3
GPU-1b8a5f0e-0000-1111-2222-333344445555, 4243, [N/A], worker, with a comma
GPU-ffffffff-0000-1111-2222-333344445555, 4244, 512, /usr/bin/other
GPU-1b8a5f0e-0000-1111-2222-333344445555, 77, 1024, [Insufficient Permissions]
"""


def fake_tool(directory, monkeypatch, script):
    tool = directory / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_processes_of_the_gpu_are_listed_without_oneself(tmp_path, monkeypatch):
    fake_tool(tmp_path, monkeypatch, f"cat <<'END'\n{LISTING}END\n")
    for uuid in ("GPU-1b8a5f0e-0000-1111-2222-333344445555", "1b8a5f0e-0000-1111-2222-333344445555"):
        assert ranks.others_on(uuid, own_pid=77) == [
            "pid 4242 /usr/bin/python3 with 98.0 GiB",
            "pid 4243 worker, with a comma with an unknown amount",
        ]


@pytest.mark.parametrize("script", ["exit 1", "echo No running processes found", "printf '\\377\\000,,,'", "echo ,,,,"])
def test_a_tool_that_says_something_else_does_no_harm(tmp_path, monkeypatch, script):
    fake_tool(tmp_path, monkeypatch, script)
    assert not ranks.others_on("GPU-1")


def test_without_the_tool_nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ranks.others_on("GPU-1") == []


SLEEPER_PARENT = """
import sys
from gpuval_workloads.common.device import CPU
from gpuval_workloads.common.launch import run_ranks
from gpuval_workloads.common.result import run_workload
sys.exit(run_workload(lambda result: run_ranks(result, "sleeper_rank", sys.argv[1:], CPU, 2)))
"""

SLEEPER_RANK = """
import random, sys, time
import torch.distributed as dist
from gpuval_workloads.common.ranks import leave, run_rank

def dig(depth):
    # Each look finds another depth; work of PyTorch is seen only where it gives up the lock, often at one place.
    if depth:
        dig(depth - 1)

def main(ranks, result):
    ranks.gather(None)
    print("step 1", flush=True)
    if ranks.rank == int(sys.argv[2]):
        if sys.argv[1] == "sleep":
            time.sleep(1000)
        elif sys.argv[1] == "work":
            end = time.monotonic() + float(sys.argv[3])
            while time.monotonic() < end:
                dig(random.randrange(200))
    dist.barrier()
    ranks.gather(None)

leave(run_rank(main))
"""


def sleepers(tmp_path, *arguments, limit="4"):
    (tmp_path / "sleeper_parent.py").write_text(SLEEPER_PARENT)
    (tmp_path / "sleeper_rank.py").write_text(SLEEPER_RANK)
    return TorchWorkload(tmp_path, "sleeper_parent", *arguments, GPUVAL_STALL_SECONDS=limit)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_hangs_is_named(tmp_path, rank):
    pytest.importorskip("torch")
    workload = sleepers(tmp_path, "sleep", rank)
    workload.wait_for_line("step 1")
    ranks = workload.ranks()
    ended = workload.end()
    assert ended.code == 2
    last = ended.err.strip().rpartition("\n")[2]
    assert last.startswith(f"crash: rank {rank} (pid ")
    assert "has made no progress for" in last
    assert "stands in main (sleeper_rank.py:" in last
    assert not any(is_alive(pid) for pid in ranks)


@pytest.mark.slow  # the judgement: test_work_is_left_alone, test_a_slow_compilation_moves
def test_a_rank_that_works_while_others_wait_is_left_alone(tmp_path):
    pytest.importorskip("torch")
    # On a busy machine a heartbeat may be seconds late, which is silence: the limit is far above that.
    ended = sleepers(tmp_path, "work", "1", "12", limit="8").end()
    assert ended.code == 0, ended.err


STOPPED, KILLED = "has been stopped (process state T) for", "was killed by SIGKILL"


@pytest.mark.parametrize(
    ("module", "line", "number", "words"),
    [
        ("training", "step ", signal.SIGSTOP, STOPPED),
        ("diagnostics", "matrix products", signal.SIGSTOP, STOPPED),
        ("fingerprint", "the same work", signal.SIGSTOP, STOPPED),
        ("fingerprint", "the same work", signal.SIGKILL, KILLED),  # the others: test_training_run
    ],
)
def test_a_stopped_and_a_killed_rank_are_named_in_every_workload(tmp_path, module, line, number, words):
    pytest.importorskip("torch")
    arguments = ("--seconds", "60", "--processes", "2")
    workload = TorchWorkload(tmp_path, f"gpuval_workloads.{module}", *arguments, GPUVAL_STALL_SECONDS="3")
    workload.wait_for_line(line)
    ranks = workload.ranks()
    victim = workload.rank(1)
    os.kill(victim, number)
    ended = workload.end()
    assert ended.code == 2, ended.err
    assert ended.err.strip().rpartition("\n")[2].startswith(f"crash: rank 1 (pid {victim}) {words}")
    assert not any(is_alive(pid) for pid in ranks)


@pytest.fixture
def full_gpu(monkeypatch):
    """What PyTorch says of a GPU that another process has filled."""
    torch = pytest.importorskip("torch")
    from types import SimpleNamespace

    uuid = "1b8a5f0e-0000-1111-2222-333344445555"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 140 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=uuid))
    return monkeypatch


def account():
    from gpuval_workloads.common.device import TorchDevices
    from gpuval_workloads.common.ranks import Ranks, _memory_account

    return _memory_account(Ranks(2, 8, TorchDevices("cuda", 8, "nccl")))


def test_a_full_gpu_is_named_with_who_fills_it(full_gpu, tmp_path):
    fake_tool(tmp_path, full_gpu, f"cat <<'END'\n{LISTING}END\n")
    text = account()
    assert text.startswith("rank 2 (gpu:2) ran out of device memory: of 140.0 GiB this process holds 3.0")
    assert "1.0 are free (1073741824 of 150323855360 bytes)" in text
    assert "pid 4242 /usr/bin/python3 with 98.0 GiB" in text
    assert "4244" not in text


def test_a_full_gpu_that_refuses_the_question_is_named_too(full_gpu, tmp_path):
    import torch

    def refuse():
        raise RuntimeError("CUDA error: out of memory\nmore")

    full_gpu.setattr(torch.cuda, "mem_get_info", refuse)
    full_gpu.setenv("PATH", str(tmp_path))
    text = account()
    assert text.startswith("rank 2 (gpu:2) ran out of device memory: how much is free is unknown (CUDA error: out of")
    assert "nvidia-smi or rocm-smi lists the processes" in text


@pytest.mark.parametrize(
    ("words", "is_full"),
    [
        ("CUDA error: out of memory", True),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", True),
        ("NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_a_full_gpu_by_any_layers_message(words, is_full):
    pytest.importorskip("torch")
    from gpuval_workloads.common.ranks import is_out_of_memory

    assert is_out_of_memory(RuntimeError(words)) is is_full
