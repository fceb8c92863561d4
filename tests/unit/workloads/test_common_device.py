import re
from types import SimpleNamespace

import pytest
from gpuval_workloads.common.device import CPU, TorchDevices, choose_accelerator
from gpuval_workloads.common.launch import KILLED, describe_end, first_end, process_count, rank_environment
from gpuval_workloads.common.result import WorkloadFailure

torch = pytest.importorskip("torch")


@pytest.fixture
def gpus(monkeypatch):
    """Let PyTorch see so many GPUs of a vendor."""

    def see(count, vendor="nvidia"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        hip = "7.0" if vendor == "amd" else None
        monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=None if hip else "13.0", hip=hip))

    return see


@pytest.mark.parametrize(
    ("visible", "vendor", "environ", "expected"),
    [
        (0, "nvidia", {}, CPU),
        (8, "nvidia", {"GPUVAL_ACCELERATOR": "cpu", "GPUVAL_GPU_COUNT": "0"}, CPU),
        (8, "nvidia", {}, TorchDevices("cuda", 8, "nccl")),
        (8, "nvidia", {"GPUVAL_ACCELERATOR": "nvidia", "GPUVAL_GPU_COUNT": "8"}, TorchDevices("cuda", 8, "nccl")),
        (8, "nvidia", {"GPUVAL_ACCELERATOR": "auto", "GPUVAL_GPU_COUNT": "4"}, TorchDevices("cuda", 4, "nccl")),
        (8, "amd", {"GPUVAL_ACCELERATOR": "amd", "GPUVAL_GPU_COUNT": ""}, TorchDevices("cuda", 8, "nccl")),
    ],
)
def test_choice(gpus, visible, vendor, environ, expected):
    gpus(visible, vendor)
    assert choose_accelerator(environ) == expected


@pytest.mark.parametrize(
    ("visible", "vendor", "environ", "words"),
    [
        (0, "nvidia", {"GPUVAL_ACCELERATOR": "nvidia", "GPUVAL_GPU_COUNT": "8"}, r"8 nvidia GPUs .* sees none"),
        (0, "nvidia", {"GPUVAL_ACCELERATOR": "amd"}, r"amd GPUs .* sees none"),
        (0, "nvidia", {"GPUVAL_GPU_COUNT": "2"}, r"2 GPUs are expected .* sees none"),
        (7, "nvidia", {"GPUVAL_ACCELERATOR": "nvidia", "GPUVAL_GPU_COUNT": "8"}, r"8 GPUs are expected .* sees 7"),
        (8, "nvidia", {"GPUVAL_ACCELERATOR": "amd"}, r"amd GPUs .* CUDA 13.0: use the image made for amd"),
        (8, "amd", {"GPUVAL_ACCELERATOR": "nvidia"}, r"nvidia GPUs .* ROCm 7.0: use the image made for nvidia"),
        (0, "nvidia", {"GPUVAL_ACCELERATOR": "gaudi"}, r"habana_frameworks cannot be imported"),
        (0, "nvidia", {"GPUVAL_ACCELERATOR": "tpu"}, r"'tpu': use one of"),
        (1, "nvidia", {"GPUVAL_GPU_COUNT": "-1"}, r"'-1': give the number"),
    ],
)
def test_a_cpu_never_stands_in(gpus, visible, vendor, environ, words):
    gpus(visible, vendor)
    with pytest.raises(WorkloadFailure, match=words):
        choose_accelerator(environ)


def test_one_process_per_gpu():
    eight = TorchDevices("cuda", 8, "nccl")
    assert process_count(eight) == 8
    assert process_count(eight, 2) == 2
    assert process_count(CPU, 3) == 3
    with pytest.raises(WorkloadFailure, match="--processes 9 is more than the 8"):
        process_count(eight, 9)


def test_rank_environment_shares_cores_and_keeps_what_is_set(monkeypatch):
    monkeypatch.setattr("gpuval_workloads.common.launch.available_cores", lambda: 64)
    assert rank_environment({}, TorchDevices("cuda", 8, "nccl"), 8) == {"OMP_NUM_THREADS": "8"}
    assert rank_environment({"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}, CPU, 2) == {}
    assert rank_environment({}, CPU, 2)["GLOO_SOCKET_IFNAME"].startswith("lo")


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ([(0, 10, 1, 101), (1, 11, -9, 100), (2, 12, -15, 102)], r"rank 1 \(pid 11\) was killed by SIGKILL: look in"),
        ([(0, 10, 1, 100), (1, 11, -9, 101)], r"rank 1 \(pid 11\) was killed by SIGKILL"),
        ([(0, 10, 1, 100), (1, 11, -9, 130)], r"rank 0 \(pid 10\) broke off with exit code 1"),  # 130: by torchrun
        ([(0, 10, -15, 100), (3, 13, -11, 100)], r"rank 3 \(pid 13\) was killed by SIGSEGV"),
        ([(0, 10, -15, 100)], r"rank 0 \(pid 10\) was killed by SIGTERM"),
    ],
)
def test_the_rank_that_broke_off_first_is_named(ends, text):
    assert re.match(text, describe_end(ends, {}))


@pytest.mark.parametrize(
    ("ends", "is_killed"),
    [
        ([(0, 10, 1, 100), (1, 11, -9, 101)], True),
        ([(0, 10, -7, 100)], True),
        ([(0, 10, -6, 100), (1, 11, 1, 100)], False),  # NCCL's watchdog
        ([(0, 10, -6, 100), (1, 11, -11, 102)], True),
        ([(0, 10, 1, 100), (1, 11, -9, 130)], False),  # by torchrun, after its patience
        ([(0, 10, -15, 100)], False),
    ],
)
def test_who_was_killed_knows_the_cause(ends, is_killed):
    assert (-first_end(ends, {})[2] in KILLED) is is_killed


def test_of_two_that_raised_the_first_is_named():
    ends = [(0, 10, 1, 100), (1, 11, 1, 100)]
    text = describe_end(ends, {0: (100.9, "RuntimeError: Connection closed by peer"), 1: (100.1, "KeyError: 'x'")})
    assert text.startswith("rank 1 (pid 11) broke off with KeyError: 'x'")
