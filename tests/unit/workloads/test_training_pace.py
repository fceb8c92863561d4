"""Who is waited for: the marks of a step, and a rank that is really slowed."""

import contextlib
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from gpuval_workloads.training.config import SIZES, TrainingConfig, llama_batch_size, parse_arguments, wants_compile

from tests.kit.device_event import Event
from tests.kit.workload_process import TorchWorkload, Workload

torch = pytest.importorskip("torch")

MODULE = "gpuval_workloads.training"


@pytest.mark.parametrize("kind", ["llama", "resnet18"])
def test_the_first_parameters_gradient_comes_last(kind):
    """What the marks stand on. A parameter beside it that is used in the same place may share the end."""
    from gpuval_workloads.training.models.llama import Llama
    from gpuval_workloads.training.models.resnet import ResNet18
    from gpuval_workloads.training.pace import on_last_gradient

    if kind == "llama":
        model, inputs = Llama(SIZES["tiny"], 8), torch.randint(256, (2, 8))
        targets = inputs
    else:
        model, inputs, targets = ResNet18(), torch.randn(2, 3, 32, 32), torch.tensor([0, 1])
    order = []
    for name, parameter in list(model.named_parameters())[1:]:
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    on_last_gradient(model, lambda: order.append("last"))
    model(inputs, targets).backward()
    assert order[-1] == "last"
    assert len(order) == len(list(model.parameters()))


def test_a_step_is_work_and_waiting(monkeypatch):
    from gpuval_workloads.common.device import CPU
    from gpuval_workloads.training import pace

    clock = iter([0.0, 3.0, 4.0, 4.5, 5.5, 8.5, 9.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    watch = pace.StepPace(CPU)
    for _ in range(2):
        watch.mark()
        watch.mark()
        watch.step_done()
    assert watch.times() == [pace.StepTime(4.5, 3.5, 1.0), pace.StepTime(4.5, 1.5, 3.0)]


def test_marks_of_the_device_are_given_to_the_heartbeat_recorded_and_in_order(monkeypatch):
    from gpuval_workloads.common.device import TorchDevices
    from gpuval_workloads.training import pace

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    watch = pace.StepPace(TorchDevices("cuda", 1, "nccl"))
    for step in range(1, 3):
        watch.mark()
        watch.mark()
        watch.step_done()
        numbers = [event.at for event in watch.events]
        assert len(numbers) == 1 + 3 * step
        assert numbers == sorted(numbers)
    assert watch.times() == [pace.StepTime(3.0, 2.0, 1.0)] * 2


def test_a_training_of_hours_takes_bounded_room():
    import pickle

    from gpuval_workloads.common.device import CPU
    from gpuval_workloads.common.ranks import Ranks
    from gpuval_workloads.training.pace import StepTime
    from gpuval_workloads.training.worker import TIMED_STEPS, TrainingLoop

    training = TrainingLoop(TrainingConfig(), Ranks(0, 2, CPU), None, None, None)
    for _ in range(600):
        training._judge(torch.ones(2, 100))
        training.step_times.extend([StepTime(1.0, 0.5, 0.5)] * 100)
    assert len(training.losses) == training.step_times.count == 60_000
    assert TIMED_STEPS / 2 <= len(training.step_times.kept) <= TIMED_STEPS
    assert len(pickle.dumps(training.losses)) < 100_000


def test_the_rate_is_that_of_all_ranks(monkeypatch):
    from gpuval_workloads.common.device import CPU
    from gpuval_workloads.common.ranks import Ranks
    from gpuval_workloads.training.pace import StepTime
    from gpuval_workloads.training.worker import TrainingLoop

    training = TrainingLoop(TrainingConfig(), Ranks(0, 2, CPU), None, SimpleNamespace(items_per_batch=2048), None)
    training.step_times.extend([StepTime(1.0, 0.5, 0.5)] * 10)
    training.measured_from = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: 104.0)
    assert training._rate() == 2 * 10 * 2048 / 4


def test_the_slowest_part_by_its_own_work():
    from gpuval_workloads.training.pace import slowest

    assert slowest([1.0, 1.0, 1.5, 1.0]) == (2, 1.5)
    assert slowest([2.0]) == (0, 1.0)
    assert slowest([0.0, 0.0]) == (0, 1.0)


@contextlib.contextmanager
def slowed(pid, share=0.9, period=0.3):
    """Stop a process for most of the time: it has less of a core than on a busy machine."""
    done = threading.Event()

    def stop_and_go():
        with contextlib.suppress(ProcessLookupError):
            while not done.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(period * share)
                os.kill(pid, signal.SIGCONT)
                time.sleep(period * (1 - share))

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("slow", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_the_slow_rank_is_the_one_that_others_wait_for(tmp_path, slow):
    workload = TorchWorkload(tmp_path, MODULE, "--seconds", "5", "--processes", "2")
    workload.wait_for_line("step ")
    with slowed(workload.rank(slow)):
        ended = workload.end()
    assert ended.code == 0, ended.err
    mine, other = (
        {name: ended.metric(f"training_{name}_p50_seconds", f"rank:{rank}") for name in ("compute", "wait")}
        for rank in (slow, 1 - slow)
    )
    assert mine["compute"] > 1.15 * other["compute"]  # 3 to 4 times on a machine that does nothing else
    assert other["wait"] > mine["wait"]
    assert ended.metric("training_slowest_compute_ratio") > 1.05
    assert ended.metric("training_duration_seconds") > 4
    assert f"the others wait for rank:{slow}" in ended.result["message"]


@pytest.mark.slow
def test_where_compiling_fails_the_training_goes_on_without(tmp_path):
    arguments = ("--steps", "3", "--processes", "2", "--compile", "always")
    variables = {"CXX": "/bin/false", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    ended = Workload(tmp_path, MODULE, *arguments, **variables).end()
    assert (ended.code, ended.result["state"]) == (0, "success"), ended.err
    assert "; not compiled (rank:" in ended.result["message"]
    assert ended.result["environment"]["compile"] is False
    assert ended.result["environment"]["compile_problem"]
    assert ended.metric("training_compile_failed_count") == 1
    assert ended.metric("training_steps_count") == 3


def test_a_compiler_that_takes_too_long_is_given_up_and_the_model_is_as_before(monkeypatch):
    from gpuval_workloads.common.device import CPU
    from gpuval_workloads.common.ranks import Ranks
    from gpuval_workloads.training.compiling import compile_layers

    class Layer(torch.nn.Module):
        def compile(self):
            self._compiled_call_impl = "compiled"

    forgotten = []
    monkeypatch.setitem(vars(torch), "_dynamo", SimpleNamespace(reset=lambda: forgotten.append(1)))  # 3 s to import
    monkeypatch.setattr(torch.distributed, "all_gather_object", lambda items, item: items.__setitem__(0, item))
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([Layer()])
    seconds, problem = compile_layers(model, lambda: time.sleep(60), Ranks(0, 1, CPU), limit_seconds=0.1)
    assert 0.1 <= seconds < 50
    assert problem == "rank:0: not done after 0 s"
    assert (model.layers[0]._compiled_call_impl, forgotten) == (None, [1])


SLOW_COMPILER = """#!/bin/sh
exec sleep 1000
"""

LIMITED = """
import sys
from gpuval_workloads.common.ranks import leave, run_rank
from gpuval_workloads.training import compiling, worker

def limited(model, next_loss, ranks):
    return compile_layers(model, next_loss, ranks, limit_seconds=3.0)

compile_layers, worker.compile_layers = compiling.compile_layers, limited
leave(run_rank(worker.main))
"""

PARENT = """
import sys
from gpuval_workloads.common.device import CPU
from gpuval_workloads.common.launch import run_ranks
from gpuval_workloads.common.result import run_workload
sys.exit(run_workload(lambda result: run_ranks(result, "limited_rank", sys.argv[1:], CPU, 2)))
"""


@pytest.mark.slow
def test_a_real_compiler_that_takes_too_long_is_given_up(tmp_path):
    (tmp_path / "limited_parent.py").write_text(PARENT)
    (tmp_path / "limited_rank.py").write_text(LIMITED)
    compiler = tmp_path / "slow-compiler"
    compiler.write_text(SLOW_COMPILER)
    compiler.chmod(0o755)
    ended = Workload(
        tmp_path,
        "limited_parent",
        *("--steps", "3", "--compile", "always"),
        CXX=str(compiler),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
        GPUVAL_STALL_SECONDS="60",
    ).end()
    assert (ended.code, ended.result["state"]) == (0, "success"), ended.err
    assert "not done after 3 s" in ended.result["message"]


@pytest.mark.parametrize(
    ("arguments", "is_nvidia", "compiled"),
    [
        ((), True, False),
        (("--seconds", "119"), True, False),
        (("--seconds", "120"), True, True),
        (("--seconds", "120"), False, False),
        (("--seconds", "300", "--steps", "10"), True, False),
        (("--seconds", "300", "--model", "resnet18"), True, False),
        (("--seconds", "300", "--compile", "never"), True, False),
        (("--seconds", "300", "--validation-only"), True, False),
        (("--steps", "10", "--compile", "always"), False, True),
        (("--compile",), False, True),
    ],
)
def test_compiling_where_it_pays(arguments, is_nvidia, compiled):
    assert wants_compile(parse_arguments(arguments), is_nvidia) is compiled


def test_the_batch_is_what_the_memory_holds():
    assert llama_batch_size(TrainingConfig(), "1b", True, 150_000_000_000) == 24
    assert llama_batch_size(TrainingConfig(), "1b", True, 80_000_000_000) == 8
    assert llama_batch_size(TrainingConfig(), "1b", False, 150_000_000_000) == 8
    assert llama_batch_size(TrainingConfig(), "tiny", True, 150_000_000_000) == 16
    assert llama_batch_size(TrainingConfig(batch_size=3), "1b", True, 150_000_000_000) == 3
