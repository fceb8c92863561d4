"""The parts of the inference workload that need no server."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from gpuval_workloads.common.device import CPU, TorchDevices
from gpuval_workloads.common.processes import marked
from gpuval_workloads.common.result import WorkloadFailure
from gpuval_workloads.inference import client, program, servers
from gpuval_workloads.inference.client import CompletionAnswer, RequestError, Stream, Tally, prompt
from gpuval_workloads.inference.servers import MARKER

CONTENT = b'data: {"choices": [{"delta": {"content": "a"}}]}\n'
FINISH = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n'
DONE = b"data: [DONE]\n"


def stream(*events):
    reading = Stream(started=10.0)
    for index, event in enumerate(events):
        reading.feed(event, 11.0 + index)
    return reading


def test_an_answer_has_its_times_and_the_servers_count():
    answer = stream(b": comment\n", b"\n", CONTENT, CONTENT, b"event: x\n", CONTENT, FINISH, USAGE, DONE).answer()
    assert (answer.text, answer.ttft, answer.gaps) == ("aaa", 3.0, (1.0, 2.0))
    assert (answer.prompt_tokens, answer.generated_tokens, answer.has_usage) == (7, 3, True)


def test_without_usage_content_chunks_are_counted():
    answer = stream(CONTENT, CONTENT, FINISH).answer()
    assert (answer.generated_tokens, answer.has_usage, answer.prompt_tokens) == (2, False, None)


def test_reasoning_is_generated_text_too():
    assert stream(b'data: {"choices": [{"delta": {"reasoning_content": "hm"}}]}\n', DONE).answer().ttft == 1.0


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((CONTENT,), "cut"),
        ((), "cut"),
        ((FINISH, DONE), "empty"),
        ((b'data: {"choices": [], "usage": {"completion_tokens": 0}}\n', DONE), "empty"),
        ((b"data: {oops\n",), "malformed"),
        ((b"data: 5\n",), "malformed"),
        ((b'data: {"choices": ["x"]}\n',), "malformed"),
        ((b'data: {"choices": 5}\n',), "malformed"),
        ((b'data: {"choices": [{"delta": {"content": ["x"]}}]}\n', DONE), "malformed"),
        ((b"<html>\n",), "malformed"),
        ((CONTENT, b'data: {"error": "boom"}\n'), "boom"),
    ],
)
def test_what_is_no_whole_answer_is_an_error(events, reason):
    with pytest.raises(RequestError, match=reason):
        stream(*events).answer()


def test_a_failed_request_adds_nothing_but_a_failure():
    tally = Tally()
    tally.add_answer(CompletionAnswer("aa", 0.5, (0.1, 0.3), 2, 7, True))
    tally.add_failure("HTTP 500")
    figures = {name: value for name, value, _ in tally.metrics(2.0)}
    assert figures["inference_requests_done_count"] == 1
    assert figures["inference_requests_failed_count"] == 1
    assert figures["inference_generated_tokens_count"] == 2
    assert figures["inference_tokens_per_second"] == 1.0
    assert figures["inference_requests_per_second"] == 0.5
    assert figures["inference_itl_p50_seconds"] == pytest.approx(0.2)


def test_what_was_not_measured_is_absent():
    names = {name for name, _, _ in Tally().metrics(0.0)}
    assert "inference_ttft_p50_seconds" not in names
    assert "inference_tokens_per_second" not in names
    assert "inference_requests_done_count" in names


@pytest.mark.parametrize(("flags", "source"), [((True,), "usage"), ((False,), "chunks"), ((True, False), "where")])
def test_the_source_of_token_counts_is_named(flags, source):
    tally = Tally()
    for flag in flags:
        tally.add_answer(CompletionAnswer("a", None, (), 1, None, flag))
    assert source in tally.token_source()


def test_a_long_stream_is_sampled_evenly(monkeypatch):
    monkeypatch.setattr(client, "SAMPLE_SIZE", 1000)
    tally = Tally()
    tally.add_answer(CompletionAnswer("a", None, tuple(float(value) for value in range(100_000)), 1, None, False))
    figures = {name: value for name, value, _ in tally.metrics(1.0)}
    assert figures["inference_itl_p50_seconds"] == pytest.approx(50_000, rel=0.1)
    assert figures["inference_itl_p99_seconds"] == pytest.approx(99_000, rel=0.02)


def test_prompts_are_the_same_everywhere_and_different_each():
    assert prompt(3, 100) == prompt(3, 100)
    assert len({prompt(index, 100) for index in range(500)}) == 500
    assert 50 < len(prompt(0, 100).split()) < 100


def test_other_braces_stay_as_they_are():
    assert servers.fill(["{model}:{port}", '{"a": {x}}'], {"model": "/m", "port": "1"}) == ["/m:1", '{"a": {x}}']


def test_no_accelerator_means_that_none_is_seen():
    inherited = {
        "PATH": "/bin",
        "GPUVAL_RESULT_FILE": "/r",
        "GPUVAL_RCLONE_CONFIG": "/c",
        "VLLM_CPU_KVCACHE_SPACE": "4",
    }
    server = servers.ServerKind("vllm", (), "/health", environment={"VLLM_CPU_KVCACHE_SPACE": "1"})
    environment = servers.server_environment(server, inherited, CPU, 4)
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["HF_HUB_OFFLINE"] == environment["TRANSFORMERS_OFFLINE"] == "1"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert not {"GPUVAL_RESULT_FILE", "GPUVAL_RCLONE_CONFIG"} & set(environment)
    gpus = servers.server_environment(server, inherited, TorchDevices("cuda", 8, "nccl"), 4)
    assert "CUDA_VISIBLE_DEVICES" not in gpus


@pytest.mark.parametrize(
    ("kind", "accelerator", "concurrency", "inherited", "threads"),
    [
        ("transformers", CPU, 4, {}, "2"),
        ("transformers", CPU, 64, {}, "1"),
        ("transformers", CPU, 4, {"OMP_NUM_THREADS": "5"}, "5"),
        ("transformers", TorchDevices("cuda", 8, "nccl"), 4, {}, None),
        ("vllm", CPU, 4, {}, None),  # it has threads of its own
        ("command", CPU, 4, {}, None),
    ],
)
def test_requests_at_the_same_time_share_the_cores(monkeypatch, kind, accelerator, concurrency, inherited, threads):
    monkeypatch.setattr(servers, "available_cores", lambda: 8)
    server = servers.ServerKind(kind, (), "/health")
    environment = servers.server_environment(server, inherited, accelerator, concurrency)
    assert environment.get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(
    ("config", "gpus", "size"),
    [
        ({"num_attention_heads": 32, "num_key_value_heads": 8}, 8, 8),
        ({"num_attention_heads": 28, "num_key_value_heads": 4}, 8, 4),  # Qwen2.5 7B: 28 is not divided by 8
        ({"num_attention_heads": 14, "num_key_value_heads": 2}, 8, 2),  # 7 divides the heads, but shares no key head
        ({"num_attention_heads": 4}, 8, 4),
        ({"num_attention_heads": 7}, 4, 1),
        ({"text_config": {"num_attention_heads": 40, "num_key_value_heads": 8}}, 4, 4),
        ({"num_attention_heads": 32, "num_key_value_heads": 1}, 6, 4),
        ({}, 8, 8),
        ({"num_attention_heads": "many"}, 0, 1),
    ],
)
def test_the_model_is_split_over_as_many_gpus_as_divide_its_heads(config, gpus, size):
    assert servers.tensor_parallel_size(config, gpus) == size


def test_vllm_spreads_over_the_gpus_it_is_given(monkeypatch):
    monkeypatch.setattr(servers, "find_spec", lambda package: True)
    server = servers.choose("auto", None, ["--seed", "1"], TorchDevices("cuda", 8, "nccl"))
    command = servers.fill(server.command, {"python": sys.executable, "tensor_parallel_size": "4"})
    assert command[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert command[command.index("--tensor-parallel-size") + 1] == "4"
    assert command[-2:] == ["--seed", "1"]


@pytest.mark.parametrize(
    ("kind", "command", "words"),
    [("command", None, "--server-command"), ("vllm", None, "vllm cannot be imported"), ("auto", None, "pip install")],
)
def test_what_is_not_installed_is_reported_with_the_remedy(monkeypatch, kind, command, words):
    monkeypatch.setattr(servers, "find_spec", lambda package: False)
    with pytest.raises(WorkloadFailure, match=words):
        servers.choose(kind, command, (), CPU)


def test_a_server_that_is_not_installed_is_no_fault_of_the_node(tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "find_spec", lambda package: package != "fastapi")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text("{}")
    options = program.parse_arguments(["--model-folder", "tiny", "--server", "transformers", "--seconds", "1"])
    result = SimpleNamespace(environment={})
    with pytest.raises(WorkloadFailure, match="fastapi cannot be imported") as raised:
        program.serve_and_measure(options, {"GPUVAL_MODELS_DIR": str(tmp_path), "GPUVAL_ACCELERATOR": "cpu"}, result)
    assert raised.value.fault == "no_server"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model-folder", "not_loaded"], "holds no model"),
        (["--model-folder", "tiny", "--server", "command"], "needs --server-command"),
        (
            ["--model-folder", "tiny", "--server", "command", "--server-command", "/no/server {model}"],
            "cannot be started",
        ),
        (["--model-folder", "tiny", "--server", "auto"], "neither vllm nor transformers"),
    ],
)
def test_what_is_missing_beside_the_node_is_named_as_such(tmp_path, monkeypatch, arguments, words):
    monkeypatch.setattr(servers, "find_spec", lambda package: False)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/config.json").write_text("{}")
    for name, value in {"GPUVAL_MODELS_DIR": str(tmp_path), "GPUVAL_ACCELERATOR": "cpu"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GPUVAL_RESULT_FILE", str(tmp_path / "result.json"))
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    assert program.main([*arguments, "--seconds", "1"]) == 1
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["environment"]["fault"] == "no_server"
    assert words in result["message"]


def test_marked_processes_are_found_and_others_are_not():
    with subprocess.Popen(["sleep", "30"], env={**os.environ, MARKER: "abc"}) as process:
        try:
            assert marked(MARKER, "abc") == {process.pid}
            assert marked(MARKER, "ab") == set()
        finally:
            process.kill()
