"""What the runner's tests share: plans, a node directory with its commands, a store that can be away."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gpuval_runner import scratch
from gpuval_runner.layout import NodeDirectory
from jsonschema import Draft202012Validator

COLLECTION = Path(__file__).resolve().parents[2] / "collections" / "ansible_collections" / "gpuval" / "fleet"
PACKAGES = COLLECTION / "node"
RECORD_SCHEMA = Draft202012Validator(json.loads((COLLECTION / "schemas" / "record.schema.json").read_text()))
SERIES_SCHEMA = Draft202012Validator(json.loads((COLLECTION / "schemas" / "series.schema.json").read_text()))
PLAN_SCHEMA = Draft202012Validator(json.loads((COLLECTION / "schemas" / "plan.schema.json").read_text()))

#: Shell text that ends a stage well.
SUCCEED = """printf '{"state":"success","message":"done"}' > "$GPUVAL_RESULT_FILE" """


def stage(name: str, command: str | list[str] = SUCCEED, **changes) -> dict:
    """A stage of a plan; a text is a shell script."""
    return {
        "name": name,
        "workload": name,
        "command": ["sh", "-c", command] if isinstance(command, str) else command,
        "image": None,
        "environment": {},
        "timeout_seconds": 30,
        "inactivity_seconds": 0,
        "grace_seconds": 1,
        "on_failure": "continue",
        "needs": [],
        "retry": [],
        "patterns": [],
        "log_max_bytes": 100_000,
        "expected_seconds": None,
        "tags": [],
        **changes,
    }


def plan(*stages: dict, **changes) -> dict:
    document = {
        "schema": "gpuval.plan/1",
        "run_id": "r1",
        "node": "n1",
        "attempt": 1,
        "created_at": "2026-01-01T00:00:00Z",
        "deadline_seconds": 60,
        "heartbeat_seconds": 0.2,
        "runtime": "host",
        "accelerator": {"vendor": "cpu", "count": 0},
        "python": sys.executable,
        "models_dir": None,
        "stages": list(stages),
        **changes,
    }
    PLAN_SCHEMA.validate(document)
    return document


def until(condition, seconds: float = 30.0, what: str = "the expected state"):
    """Wait for a condition; returns its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def until_written(path: Path) -> str:
    """Shell text that waits until a file holds something: a stage that lasts as long as a test needs it."""
    return f"while ! [ -s {path} ]; do sleep 0.05; done"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Node:
    """A node directory and the runner's commands on it."""

    def __init__(self, base: Path, run_id: str, name: str = "n1") -> None:
        self.run_id, self.name = run_id, name
        self.base = base
        self.files = NodeDirectory(base / run_id / name)
        self.files.root.mkdir(parents=True)
        self._started: list[subprocess.Popen] = []

    def put_plan(self, *stages: dict, **changes) -> dict:
        document = plan(*stages, run_id=self.run_id, node=self.name, **changes)
        self.files.plan.write_text(json.dumps(document))
        return document

    def put_store(self, url: str, names: list[str], **changes) -> None:
        put = {
            f"{kind}/{name}": f"{url}/{kind}/{name}?X-Amz-Signature=5ecret"
            for kind in ("records", "logs", "series")
            for name in names
        }
        document = {
            "schema": "gpuval.store/1",
            "expires_at": "2999-01-01T00:00:00Z",
            "ca_file": None,
            "put": put,
            **changes,
        }
        self.files.store.write_text(json.dumps(document))
        self.files.store.chmod(0o600)

    def command(self, *arguments: str, directory: bool = True) -> list[str]:
        where = ["--dir", str(self.files.root)] if directory else []
        return [sys.executable, "-m", "gpuval_runner", arguments[0], *where, *arguments[1:]]

    def begin(self, *arguments: str, **options) -> subprocess.Popen:
        """Start a command and leave it running."""
        environment = {**os.environ, "PYTHONPATH": str(PACKAGES), **options.pop("environment", {})}
        process = subprocess.Popen(
            self.command(*arguments),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self._started.append(process)
        return process

    def call(
        self, *arguments: str, text: str | None = None, seconds: float = 60, **options
    ) -> subprocess.CompletedProcess:
        """Run a command to its end."""
        environment = {**os.environ, "PYTHONPATH": str(PACKAGES), **options.pop("environment", {})}
        return subprocess.run(
            self.command(*arguments),
            env=environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            **options,
        )

    def ask(self, *arguments: str, text: str | None = None) -> dict:
        """Run a command that prints JSON."""
        done = self.call(*arguments, text=text)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def record(self, name: str) -> dict:
        document = json.loads(self.files.record(name).read_text())
        RECORD_SCHEMA.validate(document)
        return document

    def records(self) -> dict[str, dict]:
        return {path.stem: self.record(path.stem) for path in (self.files.root / "records").glob("*.json")}

    def states(self) -> dict[str, str]:
        return {name: record["state"] for name, record in self.records().items()}

    def wait_for(self, name: str, state: str) -> dict:
        def reached() -> dict | None:
            if not self.files.record(name).exists():
                return None
            record = self.record(name)
            return record if record["state"] == state else None

        return until(reached, what=f"{name} to be {state}")

    @property
    def until_released(self) -> str:
        """Shell text that waits for `release`, however busy the machine is."""
        return until_written(self.base / "released")

    def release(self) -> None:
        (self.base / "released").write_text("yes")

    def log(self, name: str) -> str:
        return self.files.result(f"logs/{name}").read_text(errors="replace")

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(5)  # then it is killed
                except subprocess.TimeoutExpired:
                    process.kill()
            process.communicate()
        for work in (self.files.root / "work").glob("*"):
            scratch.remove(work)
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"GPUVAL_STAGE_ID={self.run_id}/".encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)


class StoreServer:
    """An HTTP store: takes PUTs, can answer otherwise, can be away."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.objects: dict[str, bytes] = {}
        self.history: list[tuple[str, bytes]] = []
        self.types: dict[str, str] = {}
        self.requests: list[tuple[float, str]] = []
        self.answer = 200
        self.held = "none"  # keys that begin so are not answered before `released`
        self.released = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.open()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def open(self) -> None:
        store = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                key = self.path.partition("?")[0].strip("/")
                data = self.rfile.read(int(self.headers["Content-Length"]))
                store.requests.append((time.monotonic(), key))
                if key.startswith(store.held):
                    store.released.wait(60)
                if store.answer == 200:
                    store.objects[key] = data
                    store.history.append((key, data))
                    store.types[key] = self.headers["Content-Type"]
                self.send_response(store.answer)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        if self._tls:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def states(self, name: str) -> list[str]:
        """The states of a stage as its records arrived, without repetitions."""
        seen = [json.loads(data)["state"] for key, data in self.history if key == f"records/{name}"]
        return [state for number, state in enumerate(seen) if number == 0 or state != seen[number - 1]]
