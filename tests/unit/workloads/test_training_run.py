"""Real trainings in two processes, and the ways they end."""

import os
import signal
import time

import pytest

from tests.kit.reported import assert_covered
from tests.kit.workload_process import TorchWorkload, is_alive

torch = pytest.importorskip("torch")

MODULE = "gpuval_workloads.training"


def test_llama_learns(tmp_path):
    ended = TorchWorkload(tmp_path, MODULE, "--steps", "40", "--processes", "2").end()
    assert ended.code == 0, ended.err
    assert ended.result["state"] == "success"
    assert ended.metric("training_steps_count") == 40
    assert ended.metric("training_processes_count") == 2
    assert ended.metric("training_nonfinite_count") == 0
    assert ended.metric("training_loss_last") < 0.5 * ended.metric("training_loss_first")
    assert ended.metric("training_model_tflops", "rank:1") > 0
    for rank in ("rank:0", "rank:1"):
        p50, p99 = (ended.metric(f"training_step_p{percent}_seconds", rank) for percent in (50, 99))
        assert 0 < p50 <= p99 < ended.metric("training_duration_seconds")
    (series,) = ended.result["series"]
    assert series["x"] == list(range(1, 41))
    assert series["y"][0] == pytest.approx(5.5, abs=0.2)  # ln(256), before anything is learnt
    environment = ended.result["environment"]
    assert (environment["size"], environment["backend"], environment["parameters"]) == ("tiny", "gloo", 434_816)
    assert_covered("training", ended)


def test_resnet18_learns(tmp_path):
    arguments = ("--model", "resnet18", "--steps", "12", "--batch-size", "4", "--processes", "2")
    ended = TorchWorkload(tmp_path, MODULE, *arguments).end()
    assert ended.code == 0, ended.err
    assert ended.metric("training_loss_last") < ended.metric("training_loss_first")
    assert ended.metric("training_samples_per_second") > 0
    assert ended.result["environment"]["data"] == "generated images of 10 classes"


def test_validation_only_checks_and_does_not_train(tmp_path):
    ended = TorchWorkload(tmp_path, MODULE, "--validation-only", "--seconds", "1", "--processes", "2").end()
    assert ended.code == 0, ended.err
    assert ended.result["message"].startswith("validated without training: 2 x CPU")
    names = {metric["name"] for metric in ended.result["metrics"]}
    assert not {"training_steps_count", "training_loss_last"} & names
    assert ended.metric("training_nonfinite_count") == ended.metric("training_gradient_mismatch_count") == 0
    assert ended.metric("diagnostics_collective_error_count") == 0
    assert ended.metric("diagnostics_matmul_fp32_error_ratio", "rank:1") < 1e-5
    assert_covered("training", ended, "training_validation")


def test_a_nan_is_a_failure_of_its_own(tmp_path):
    ended = TorchWorkload(tmp_path, MODULE, "--steps", "10", "--inject-nan-step", "4", "--processes", "2").end()
    assert (ended.code, ended.result["state"]) == (1, "failure")
    assert ended.result["message"].startswith("the loss is not finite from step 4 on, first on rank 1 (rank:1)")
    assert ended.metric("training_steps_count") == 3
    assert ended.metric("training_nonfinite_count") >= 1
    assert all(value is not None for value in ended.result["series"][0]["y"])


def test_a_killed_rank_is_named(tmp_path):
    workload = TorchWorkload(tmp_path, MODULE, "--seconds", "100", "--processes", "2")
    workload.wait_for_line("step ")
    ranks = workload.ranks()
    victim = workload.rank(1)
    os.kill(victim, signal.SIGKILL)
    ended = workload.end()
    assert ended.code == 2
    assert ended.err.strip().rpartition("\n")[2].startswith(f"crash: rank 1 (pid {victim}) was killed by SIGKILL")
    assert ended.result is None or ended.result["state"] == "running"
    assert not any(is_alive(pid) for pid in ranks)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_rank_outlives_the_parent(tmp_path, number, code):
    workload = TorchWorkload(tmp_path, MODULE, "--seconds", "100", "--processes", "2")
    workload.wait_for_line("step ")
    ranks = workload.ranks()
    assert len(ranks) == 2
    workload.process.send_signal(number)
    ended = workload.end()
    assert ended.code == code
    assert ended.result is None
    deadline = time.monotonic() + 60
    while any(is_alive(pid) for pid in ranks):
        assert time.monotonic() < deadline, "a rank is still running"
        time.sleep(0.05)


def test_a_missing_gpu_is_reported_and_no_cpu_stands_in(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    ended = TorchWorkload(tmp_path, MODULE, "--steps", "2", GPUVAL_ACCELERATOR="nvidia", GPUVAL_GPU_COUNT="8").end()
    assert (ended.code, ended.result["state"]) == (1, "failure")
    assert "8 nvidia GPUs" in ended.result["message"]
    assert "PyTorch sees none" in ended.result["message"]
