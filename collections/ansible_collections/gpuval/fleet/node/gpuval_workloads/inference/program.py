"""Starts a server for one model, waits until it is healthy, warms it up, measures requests, and stops the server."""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common.arguments import model_path, positive_float, positive_int, workload_parser
from ..common.device import CPU, TorchDevices
from ..common.processes import free_port
from ..common.result import WorkloadFailure, WorkloadResult, run_workload
from . import servers
from .client import CompletionAnswer, Endpoint, RequestError, RequestLoad, Tally, ask, get, prompt
from .servers import ServerProcess

HOST = "127.0.0.1"
HEALTH_SECONDS = 1.0
WARM_UP_ATTEMPTS = 3
DRAIN_SECONDS = 15.0
#: Reserve before the plan's deadline, to stop the server and report: seconds, or share of the remaining time.
RESERVE_SECONDS, RESERVE_SHARE = 120.0, 0.25
DEVICE_SECONDS = 300.0
WATCH_SECONDS = 0.2

_ASK_TORCH = """
import json
from gpuval_workloads.common.device import choose_accelerator
from gpuval_workloads.common.result import WorkloadFailure
try:
    accelerator = choose_accelerator()
    print(json.dumps([accelerator.kind, accelerator.count, accelerator.backend]))
except WorkloadFailure as failure:
    print(json.dumps({"failure": str(failure)}))
except ImportError as error:
    print(json.dumps({"lacks": f"{error}: install PyTorch in the image or environment that serves the model"}))
"""


@dataclass(frozen=True)
class Session:
    """A running server: its process and endpoint, the options of requests, the event that ends the measurement, and its
    deadline on the monotonic clock (``ends_at``)."""

    process: ServerProcess
    endpoint: Endpoint
    options: argparse.Namespace
    stopped: threading.Event
    ends_at: float | None


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    return run_workload(lambda result: serve_and_measure(options, os.environ, result))


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = workload_parser("inference", __doc__)
    add = parser.add_argument
    add("--model-folder", required=True, help="folder name in the model cache, like models--org--name")
    add("--server", choices=servers.KINDS, default="auto", help="auto: vllm, else transformers")
    add("--server-command", help="for --server command; {model} {host} {port} {gpu_count} are replaced")
    add("--server-arg", action="append", default=[], help="a further argument for the server; repeat")
    bound = parser.add_mutually_exclusive_group(required=True)
    bound.add_argument("--seconds", type=positive_float, help="seconds for which requests are sent")
    bound.add_argument("--requests", type=positive_int, help="number of requests to send")
    until_stopped = "send requests until SIGTERM, or shortly before the plan's deadline"
    bound.add_argument("--until-stopped", action="store_true", help=until_stopped)
    add("--concurrency", type=positive_int, default=8, help="requests at the same time (default 8)")
    add("--max-tokens", type=positive_int, default=128, help="tokens of an answer (default 128)")
    add("--prompt-tokens", type=positive_int, default=128, help="tokens of a prompt, roughly (default 128)")
    add("--startup-timeout", type=positive_float, default=900.0, help="seconds until healthy")
    add("--request-timeout", type=positive_float, default=600.0, help="seconds for one request")
    add("--refresh-seconds", type=positive_float, default=120.0, help="seconds between preliminary results")
    split = "GPUs that vllm splits the model over; default: as fits its heads"
    add("--tensor-parallel-size", type=positive_int, help=split)
    return parser.parse_args(arguments)


def serve_and_measure(options: argparse.Namespace, environ: Mapping[str, str], result: WorkloadResult) -> None:
    """Run the whole measurement, fill `result`, and stop the server with all its processes. Raises ``WorkloadFailure``
    when model or server program are missing, the server is not healthy in time or dies, or no request succeeds."""
    ends_at, seconds_left = None, environ.get("GPUVAL_SECONDS_LEFT")
    if options.until_stopped and seconds_left:  # early enough to stop the server and report before the deadline
        reserve = min(RESERVE_SECONDS, float(seconds_left) * RESERVE_SHARE)
        ends_at = time.monotonic() + float(seconds_left) - reserve
    model = model_path(environ, options.model_folder)
    config = servers.model_config(model)
    accelerator = _accelerator(environ)
    server = servers.choose(options.server, options.server_command, options.server_arg, accelerator)
    endpoint = (HOST, free_port(HOST))
    split = options.tensor_parallel_size or servers.tensor_parallel_size(config, accelerator.count)
    texts = {"python": sys.executable, "model": str(model), "name": options.model_folder, "host": HOST}
    numbers = {"port": endpoint[1], "gpu_count": max(1, accelerator.count), "tensor_parallel_size": split}
    values = texts | {name: str(number) for name, number in numbers.items()}
    command = servers.fill(server.command, values)
    result.environment = {
        "server": server.kind,
        "server_version": server.version,
        "server_command": command,
        "dtype": str(config.get("dtype") or config.get("torch_dtype") or "unknown"),
        "tensor_parallel_size": split,
        "accelerator": accelerator.kind,
        "gpu_count": accelerator.count,
        "inter_token_latency": "gaps between content chunks of a stream",
        **{name: getattr(options, name) for name in ("model_folder", "concurrency", "max_tokens", "prompt_tokens")},
    }
    result.report(f"starting {server.kind}")
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # the server is stopped and the figures are kept
        signal.signal(number, lambda *_: stopped.set())
    started = time.monotonic()
    process = _start(command, servers.server_environment(server, environ, accelerator, options.concurrency))
    session = Session(process, endpoint, options, stopped, ends_at)
    try:
        _wait_for_health(session, server.health_path, started)
        startup = time.monotonic() - started
        result.add_metric("inference_startup_seconds", startup, "seconds")
        result.report(f"healthy after {startup:.1f} s, warming up")
        body = {**server.request, "model": _served_name(server, endpoint, values)}
        _warm_up(session, body, result)
        _measure(session, body, result)
    finally:
        survivors = process.stop()
        exception = f", but not {survivors}" if survivors else ""
        print(f"stopped {server.kind} (process {process.pid}) and what it spawned{exception}", flush=True)
    if survivors:
        raise WorkloadFailure(
            f"processes {', '.join(map(str, survivors))} of the server did not end after KILL: they hang in the kernel "
            "(look for a GPU or file system that does not answer); reboot the node"
        )
    with socket.socket() as probe:
        probe.settimeout(2)
        if probe.connect_ex(endpoint) == 0:
            raise WorkloadFailure(f"port {endpoint[1]} still answers after the server was stopped: find its owner")


def _accelerator(environ: Mapping[str, str]) -> TorchDevices:
    """Return the devices, found by PyTorch in a separate process: this one must not hold a GPU beside the server."""
    if environ.get("GPUVAL_ACCELERATOR") == "cpu":
        return CPU
    own_package = str(Path(__file__).resolve().parents[2])  # the folder or zip that holds this package
    completed = subprocess.run(
        [sys.executable, "-c", _ASK_TORCH],
        env={**environ, "PYTHONPATH": os.pathsep.join(filter(None, (own_package, environ.get("PYTHONPATH"))))},
        capture_output=True,
        text=True,
        timeout=DEVICE_SECONDS,
        check=False,
    )
    if completed.returncode != 0 or not completed.stdout.strip():
        raise WorkloadFailure(f"PyTorch cannot be asked for the GPUs: {completed.stderr.strip()[-600:]}")
    answer = json.loads(completed.stdout.splitlines()[-1])
    if isinstance(answer, dict):
        raise WorkloadFailure(answer["failure"]) if "failure" in answer else servers.NoServerError(answer["lacks"])
    return TorchDevices(*answer)


def _start(command: Sequence[str], environment: Mapping[str, str]) -> ServerProcess:
    try:
        return ServerProcess(command, environment)
    except OSError as error:
        raise servers.NoServerError(
            f"the server {command[0]!r} cannot be started ({error.strerror}): check --server-command and the image"
        ) from error


def _wait_for_health(session: Session, path: str, started: float) -> None:
    """Wait until the server answers GET `path` with 200; it was `started` at that second of the monotonic clock."""
    process, timeout = session.process, session.options.startup_timeout
    last_seen = "no answer"
    while True:
        if process.exit_code() is not None:
            raise WorkloadFailure(
                f"the server {process.how_it_ended()} before it was healthy: read the stage's log for the cause "
                "(memory, a model it does not support, a driver that does not fit). Its last lines:\n"
                f"{process.last_lines()}"
            )
        remaining = started + timeout - time.monotonic()
        if remaining <= 0:
            raise WorkloadFailure(
                f"the server was not healthy within {timeout:g} s (GET {path}: {last_seen}): read the stage's log; a "
                f"large model on a slow disk may need a longer --startup-timeout. Its last lines:\n"
                f"{process.last_lines()}"
            )
        try:
            status, _ = get(session.endpoint, path, timeout=min(5.0, max(remaining, 0.1)))
        except (OSError, http.client.HTTPException) as error:
            last_seen = type(error).__name__
        else:
            if status == http.HTTPStatus.OK:
                return
            last_seen = f"HTTP {status}"
        if session.stopped.wait(min(HEALTH_SECONDS, max(remaining, 0))):
            raise WorkloadFailure("stopped before the server was healthy")


def _served_name(server: servers.ServerKind, endpoint: Endpoint, values: Mapping[str, str]) -> str:
    """Return the model name for requests: the name given to the server, else the first that it lists."""
    if server.kind == "vllm":
        return values["name"]
    if server.kind == "command":
        try:
            _, body = get(endpoint, "/v1/models")
            return str(json.loads(body)["data"][0]["id"])
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
            print(f"the server lists no model ({type(error).__name__}): asking for its folder", flush=True)
    return values["model"]


def _warm_up(session: Session, body: Mapping, result: WorkloadResult) -> None:
    """Send one uncounted request, which triggers lazy loading; its answer is a fingerprint to compare nodes."""
    process, options = session.process, session.options
    for attempt in range(1, WARM_UP_ATTEMPTS + 1):
        try:
            answer = ask(session.endpoint, _request(body, options, 0), options.request_timeout)
        except RequestError as error:
            print(f"warm-up request {attempt} of {WARM_UP_ATTEMPTS} failed: {error}", flush=True)
            if process.exit_code() is not None or attempt == WARM_UP_ATTEMPTS:
                raise WorkloadFailure(
                    f"the server was healthy but the warm-up request failed ({error}); the server "
                    f"{process.how_it_ended()}: read the stage's log. Its last lines:\n{process.last_lines()}"
                ) from error
            time.sleep(1)
        else:
            result.fingerprints["inference_warm_up_answer"] = hashlib.sha256(answer.text.encode()).hexdigest()
            return


def _measure(session: Session, body: Mapping, result: WorkloadResult) -> None:
    process, options = session.process, session.options
    tally = Tally()

    def send(index: int) -> CompletionAnswer:
        return ask(session.endpoint, _request(body, options, index), options.request_timeout)

    load = RequestLoad(send, tally, options.concurrency, options.requests)
    started = refreshed = time.monotonic()
    load.start()
    while load.is_running() and process.exit_code() is None and not session.stopped.wait(WATCH_SECONDS):
        now = time.monotonic()
        if now - started >= (options.seconds or math.inf) or now >= (session.ends_at or math.inf):
            break
        if now - refreshed >= options.refresh_seconds:
            refreshed = now
            _record(tally, now - started, result)
            result.report(_summary(tally, now - started))
    is_hurried = session.stopped.is_set() or session.ends_at is not None or process.exit_code() is not None
    load.stop(DRAIN_SECONDS if is_hurried else options.request_timeout)
    seconds = time.monotonic() - started
    _record(tally, seconds, result)
    summary = _summary(tally, seconds)
    if process.exit_code() is not None:
        raise WorkloadFailure(
            f"the server {process.how_it_ended()} in the middle ({summary}): read the stage's log and the node's "
            f"kernel log (out of memory, GPU errors). Its last lines:\n{process.last_lines()}"
        )
    if tally.done == 0:
        raise WorkloadFailure(f"no request succeeded ({summary}): read the server's lines in the stage's log")
    result.message = summary
    print(summary, flush=True)


def _request(body: Mapping, options: argparse.Namespace, index: int) -> dict:
    return {
        **body,
        "messages": [{"role": "user", "content": prompt(index, options.prompt_tokens)}],
        "max_tokens": options.max_tokens,
        "temperature": 0,
        "stream": True,
    }


def _record(tally: Tally, seconds: float, result: WorkloadResult) -> None:
    for name, value, unit in tally.metrics(seconds):
        result.add_metric(name, value, unit)
    result.environment["token_count"] = tally.token_source()


def _summary(tally: Tally, seconds: float) -> str:
    text = f"{tally.done} requests done, {tally.failed} failed, {tally.generated_tokens} tokens in {seconds:.1f} s"
    if seconds > 0:
        text += f": {tally.generated_tokens / seconds:.1f} tokens/s"
    error = tally.most_frequent_error()
    return f"{text}; most failures: {error}" if error else text
