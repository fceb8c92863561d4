"""The inference workload as the runner starts it, against real server processes."""

import json
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts.tiny_model import write_tiny_llama

from tests.kit.sse_server import FIRST, GAP, TOKENS
from tests.kit.workload_process import Workload, is_alive

SERVER = Path(__file__).parents[2] / "kit" / "sse_server.py"
MODULE = "gpuval_workloads.inference"


@pytest.fixture
def models(tmp_path):
    folder = tmp_path / "models" / "models--test--x"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"torch_dtype": "float16"}')
    return folder.parent


def start(models, *arguments, mode="good", extra="", folder="models--test--x", **variables):
    command = f"{{python}} {SERVER} --port {{port}} --mode {mode} {extra}"
    return Workload(
        models.parent,
        MODULE,
        *("--model-folder", folder, "--server", "command", "--server-command", command),
        *("--concurrency", "2", "--startup-timeout", "60", *arguments),
        GPUVAL_MODELS_DIR=str(models),
        **variables,
    )


def port_of(ended):
    command = ended.result["environment"]["server_command"]
    return int(command[command.index("--port") + 1])


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_healthy_server_is_measured(models):
    ended = start(models, "--requests", "12").end()
    assert ended.code == 0, ended.err
    assert ended.metric("inference_requests_done_count") == 12
    assert ended.metric("inference_requests_failed_count") == 0
    assert ended.metric("inference_generated_tokens_count") == 12 * TOKENS
    assert ended.metric("inference_prompt_tokens_count") == 12 * 11
    seconds = ended.metric("inference_running_seconds")
    assert FIRST <= ended.metric("inference_ttft_p50_seconds") < seconds
    assert GAP <= ended.metric("inference_itl_p50_seconds") < seconds
    assert seconds >= 6 * (FIRST + (TOKENS - 1) * GAP)
    assert ended.metric("inference_tokens_per_second") == pytest.approx(12 * TOKENS / seconds)
    assert 0 < ended.metric("inference_startup_seconds") < 20
    assert len(ended.result["fingerprints"]["inference_warm_up_answer"]) == 64
    environment = ended.result["environment"]
    assert (environment["server"], environment["dtype"], environment["concurrency"]) == ("command", "float16", 2)
    assert not is_open(port_of(ended))


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("error500", "HTTP 500"),
        ("hang", "no complete answer within 1 s"),
        ("drip", "no complete answer within 1 s"),
        ("cut", "stream cut after 3 chunks"),
        ("malformed", "malformed event"),
        ("error_event", "worker died"),
        ("empty", "empty answer"),
    ],
)
def test_a_server_that_misbehaves_does_no_work(models, mode, words):
    ended = start(models, "--requests", "2", "--request-timeout", "1", mode=mode).end()
    assert ended.code == 1
    assert ended.result["state"] == "failure"
    assert words in ended.result["message"]
    assert ended.metric("inference_requests_failed_count") == 2
    assert ended.metric("inference_requests_done_count") == 0
    assert ended.metric("inference_generated_tokens_count") == 0


def test_failed_requests_are_counted_apart(models):
    ended = start(models, "--requests", "8", mode="odd").end()
    assert ended.code == 0
    assert ended.metric("inference_requests_done_count") == 4
    assert ended.metric("inference_requests_failed_count") == 4
    assert ended.metric("inference_generated_tokens_count") == 4 * TOKENS
    assert "out of memory" in ended.result["message"]


def test_tokens_are_counted_by_chunks_without_usage(models):
    ended = start(models, "--requests", "2", mode="no_usage").end()
    assert ended.metric("inference_generated_tokens_count") == 2 * TOKENS
    # the warm-up is not counted, so no usage was ever seen
    assert ended.result["environment"]["token_count"] == "content chunks"
    assert not [m for m in ended.result["metrics"] if m["name"] == "inference_prompt_tokens_count"]


def test_a_server_that_never_gets_healthy(models):
    ended = start(models, "--requests", "1", "--startup-timeout", "8", mode="unhealthy").end()
    assert ended.code == 1
    assert "not healthy within 8 s (GET /v1/models: HTTP 503)" in ended.result["message"]
    assert "--startup-timeout" in ended.result["message"]
    assert not is_open(port_of(ended))


def test_a_server_that_dies_at_start_is_noticed_at_once(models):
    began = time.monotonic()
    ended = start(models, "--requests", "1", "--startup-timeout", "110", mode="die_at_start").end()
    assert time.monotonic() - began < 60
    assert "ended with exit code 7 before it was healthy" in ended.result["message"]
    assert "CUDA error: no kernel image" in ended.result["message"]


def test_a_server_that_lacks_a_package_names_it_first(models, tmp_path):
    """The first exception, not those that follow it."""
    lines = ["Traceback (most recent call last):", "  File x", "ModuleNotFoundError: No module named 'opentelemetry'"]
    lines += ["During handling of the above exception, another occurred:", "RuntimeError: engine core failed"]
    (tmp_path / "server.py").write_text(f"import sys; print({chr(10).join(lines)!r}); sys.exit(1)")
    command = f"{sys.executable} {tmp_path / 'server.py'}"
    ended = start(models, "--requests", "1", "--server-command", command).end()
    error = "ModuleNotFoundError: No module named 'opentelemetry'"
    assert f"the server ended with exit code 1 ({error}) before it was healthy" in ended.result["message"]


def test_a_server_that_dies_in_the_middle(models):
    ended = start(models, "--seconds", "30", mode="die").end()
    assert ended.code == 1
    assert "was killed by SIGKILL in the middle" in ended.result["message"]
    assert ended.metric("inference_requests_failed_count") >= 1


def test_until_stopped_refreshes_and_ends_with_figures(models):
    workload = start(models, "--until-stopped", "--refresh-seconds", "0.3")
    workload.wait_for_line("healthy")
    result = models.parent / "result.json"
    deadline = time.monotonic() + 60
    while "requests done" not in result.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    running = json.loads(result.read_text())
    assert running["state"] == "running"
    assert any(m["name"] == "inference_tokens_per_second" for m in running["metrics"])
    workload.process.send_signal(signal.SIGTERM)
    ended = workload.end()
    assert ended.code == 0
    assert ended.result["state"] == "success"
    assert ended.metric("inference_requests_done_count") >= 1
    assert ended.metric("inference_requests_failed_count") == 0


def test_until_stopped_ends_by_itself_before_the_plans_deadline(models):
    begun = time.monotonic()
    ended = start(models, "--until-stopped", GPUVAL_SECONDS_LEFT="16").end()
    assert time.monotonic() - begun < 40
    assert ended.code == 0
    assert ended.result["state"] == "success"
    assert ended.metric("inference_requests_done_count") >= 1
    assert 0 < ended.metric("inference_running_seconds") < 20


def test_everything_the_server_spawned_is_stopped(models, monkeypatch):
    pids = models.parent / "pids"
    workload = start(models, "--requests", "1", extra=f"--pid-file {pids}")
    workload.wait_for_line("healthy")
    children = [int(pid) for pid in pids.read_text().split()]
    assert len(children) == 2
    assert all(is_alive(pid) for pid in children)
    ended = workload.end()
    assert ended.code == 0
    assert not any(is_alive(pid) for pid in children)


def test_a_model_that_was_not_loaded(models):
    ended = start(models, "--requests", "1", folder="models--test--other").end()
    assert ended.code == 1
    assert "run the loading stage first" in ended.result["message"]


@pytest.mark.parametrize("folder", ["../secrets", "a/b", ""])
def test_a_model_folder_is_one_plain_name(models, folder):
    assert start(models, "--requests", "1", folder=folder).end().code == 1


def test_a_command_that_does_not_exist(models):
    workload = Workload(
        models.parent,
        MODULE,
        *("--model-folder", "models--test--x", "--server", "command", "--server-command", "/no/such/server {port}"),
        *("--requests", "1"),
        GPUVAL_MODELS_DIR=str(models),
    )
    assert "check --server-command" in workload.end().result["message"]


def test_gpus_that_pytorch_does_not_see_are_a_failure(models):
    pytest.importorskip("torch")
    ended = start(models, "--requests", "1", GPUVAL_ACCELERATOR="nvidia", GPUVAL_GPU_COUNT="8").end()
    assert ended.code == 1
    assert "PyTorch sees none" in ended.result["message"]


@pytest.mark.slow
def test_transformers_serves_the_tiny_model(tmp_path):
    pytest.importorskip("transformers")
    folder = write_tiny_llama(tmp_path / "models" / "models--gpuval--tiny-llama")
    ended = Workload(
        tmp_path,
        MODULE,
        *("--model-folder", folder.name, "--server", "transformers", "--requests", "4", "--concurrency", "2"),
        *("--max-tokens", "16", "--prompt-tokens", "32"),
        GPUVAL_MODELS_DIR=str(folder.parent),
        OMP_NUM_THREADS="1",
    ).end()
    assert ended.code == 0, ended.out
    assert ended.metric("inference_generated_tokens_count") == 4 * 16
    assert ended.result["environment"]["dtype"] == "bfloat16"
    assert ended.result["environment"]["token_count"] == "usage reported by the server"
    assert not is_open(port_of(ended))
