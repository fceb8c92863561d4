"""The embedded store: `rclone serve s3` on the controller, for runs without an S3 service.

Two servers share one folder. The controller writes through the first, and signs URLs for it. Nodes load models from the
second, which is read-only, has another key and serves models/ alone. store.json keeps ports, keys and address, so that
a restart finds the same store and earlier signed URLs stay valid.

Without gpuval_store_address both servers listen on the loopback, without TLS. With it they listen on that address and
on the loopback, with TLS on both.
"""

import copy
import errno
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psutil
from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.units import human_bytes

from ...module_utils.store import CLIENT_ERRORS, Connection, Entry, Store, StoreError, as_store_error
from ..core import files
from ..core.paths import project_path
from ..core.text import some_of
from ..runs import cleanable, origin
from ..runs import folder as run_folder
from ..runs import state as run_state
from . import certificates
from .address import HIGHEST_PORT, LOOPBACK, bracketed, canonical, interface_bits_per_second, listening_addresses
from .backend import StoreBackend
from .certificates import CertificateFiles
from .guard import UPLOAD, FileGuard, shortage
from .rclone import find_rclone

START_SECONDS = 15.0
STOP_SECONDS = 10.0
#: Ports to choose from: below those of outgoing connections, which could occupy the store's port while it is stopped.
OWN_PORTS = range(20000, 32768)
#: rclone options of the read-only server, which serves only the folder models/ of each bucket.
READ_ONLY = ("--read-only", "--include", "/*/models/**")
#: Max characters of the end of rclone's log that an error message shows.
LOG_END = 500
#: rclone options that limit its log, which gets a line for each refused TLS handshake.
LOG_LIMITS = ("--log-file-max-size", "4M", "--log-file-max-backups", "1")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class FileReads(Store):
    """Client of the embedded store on the store's own machine: lists and reads objects as files in `objects`, the
    bucket's folder, at a thirtieth of the cost of a request. All other calls are requests to the server."""

    def __init__(self, connection: Connection, objects: Path) -> None:
        super().__init__(connection)
        self._objects = f"{objects}/"

    def list(self, prefix: str) -> Iterator[Entry]:
        """Objects whose keys begin with `prefix`. Raises StoreError if the server is down: nodes could not upload."""
        with as_store_error():
            self.client.head_bucket(Bucket=self.connection.bucket)
        beginning = self._objects + prefix
        paths = (
            f"{folder}/{name}"
            for folder, _, names in os.walk(beginning.rpartition("/")[0])
            for name in names
            if not name.startswith(UPLOAD)
        )
        for path in sorted(path for path in paths if path.startswith(beginning)):
            try:
                status = os.stat(path)  # noqa: PTH116 - Path takes as long again, for each record at each poll
            except FileNotFoundError:  # deleted meanwhile
                continue
            modified = EPOCH + timedelta(milliseconds=status.st_mtime_ns // 1_000_000)
            yield Entry(path.removeprefix(self._objects), "", status.st_size, modified)

    def get(self, key: str, *, max_bytes: int) -> bytes:
        try:
            with Path(self._objects + key).open("rb") as stream:
                return stream.read(max_bytes + 1)
        except OSError:  # the server reports the reason
            return super().get(key, max_bytes=max_bytes)


@dataclass
class Keys:
    access_key: str = field(default_factory=lambda: "GV" + secrets.token_hex(9).upper())
    secret_key: str = field(default_factory=lambda: secrets.token_urlsafe(30))


@dataclass
class EmbeddedServer(Keys):
    """One rclone server: its keys, its TCP port (0: not chosen yet) and the id of its last known process (0: none)."""

    port: int = 0
    pid: int = 0


@dataclass
class EmbeddedState:
    """Content of the embedded store's file `store.json` on the controller (mode 0600)."""

    writer: EmbeddedServer = field(default_factory=EmbeddedServer)
    reader: EmbeddedServer = field(default_factory=EmbeddedServer)
    #: Second pair of keys of the writing server, which signs the URLs that nodes get.
    signer: Keys = field(default_factory=Keys)
    #: Address by which nodes reach the store; empty: loopback only.
    address: str = ""

    def servers(self) -> tuple[EmbeddedServer, EmbeddedServer]:
        return self.writer, self.reader

    def place(self) -> tuple[str, int, int]:
        """Address and ports on which both servers listen."""
        return self.address, self.writer.port, self.reader.port


class EmbeddedStore(StoreBackend):
    """Start, find and stop the embedded store below `directory`. Objects lie in `directory/data/<bucket>/`.

    `address`: host by which nodes reach this machine. Empty puts a new store on the loopback and leaves an existing one
    as it is, since a run of another inventory may use it. `port`: of the writer, the reader has the next one; 0 keeps
    both, or chooses them. `creates_bucket`: whether a missing bucket is made beside others; the first one always is.
    `results`: folder of this controller's runs: while a run is active, the store must not move.
    """

    #: rclone's S3 server keeps the parts of an object in memory until the last one is there.
    takes_parts = False
    objects: Path

    def __init__(
        self,
        directory: Path,
        bucket: str,
        address: str = "",
        port: int = 0,
        *,
        creates_bucket: bool = False,
        results: Path | None = None,
    ) -> None:
        self.directory, self.bucket, self.results = directory, bucket, results
        self.wanted_address, self.wanted_port, self.creates_bucket = canonical(address), port, creates_bucket
        self.certificates, self._file = CertificateFiles(directory), directory / "store.json"
        self.data, self.objects = directory / "data", directory / "data" / bucket

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "EmbeddedStore":
        directory = project_path(options["state_dir"]) / "store"
        arguments = options["bucket"], options["address"], options["port"]
        results = project_path(options["results_dir"]) if options.get("results_dir") else None
        return cls(directory, *arguments, creates_bucket=bool(options.get("create_bucket")), results=results)

    def store(self) -> Store:
        return FileReads(self.connection(), self.objects)

    def connection(self) -> Connection:
        state = self._read()
        signing = (state.signer.access_key, state.signer.secret_key)
        return replace(self._connection(state, state.writer), signing=signing)

    def reader(self) -> Connection:
        state = self._read()
        connection = self._connection(state, state.reader)
        return replace(connection, endpoint=connection.public_endpoint or connection.endpoint, public_endpoint=None)

    def address(self) -> str:
        """The address by which nodes reach the store, once it is started; empty: loopback only."""
        return self.wanted_address or (self._read().address if self._file.exists() else "")

    def ports(self) -> tuple[int, int]:
        """TCP ports of the writing and the read-only server, which a firewall must allow."""
        return self._read().place()[1:]

    def reachable_from_nodes(self, transport: str) -> bool:
        """Whether nodes can reach the store; on the loopback only this machine can (`transport`: `local`)."""
        return transport == "local" or bool(self.address())

    def firewall_hint(self) -> str:
        if not self.address():
            return ""
        ports = " and ".join(map(str, self.ports()))
        return f"check that the controller's firewall allows TCP {ports} to {self.address()}"

    def link_bits_per_second(self) -> float | None:
        speeds = map(interface_bits_per_second, listening_addresses(self.address()) if self.address() else ())
        return min((speed for speed in speeds if speed), default=None)

    def guard(self, folder: str, store: Callable[[], Store]) -> Callable[[float], list[str]]:
        return FileGuard(self.objects, folder).look

    def shortage(self, further: int = 0) -> str:
        lacking = shortage(self.objects) + further if self.objects.is_dir() else 0
        return f"the disk of the store lacks {human_bytes(lacking)}: free space at {self.data}" if lacking > 0 else ""

    def start(self) -> bool:
        """Start the writing and the read-only server unless they answer. Returns whether one was started."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.held():
            before = self._read() if self._file.exists() else None
            state = copy.deepcopy(before) if before else EmbeddedState()
            self.ensure_may_move()
            buckets = sorted(path.name for path in self.data.iterdir() if path.is_dir()) if self.data.is_dir() else []
            if buckets and self.bucket not in buckets and not self.creates_bucket:
                raise StoreError(
                    f"the embedded store has no bucket {self.bucket}, it has {some_of(buckets)}: correct "
                    "gpuval_bucket, or set gpuval_create_bucket: true"
                )
            (self.objects / "models").mkdir(parents=True, exist_ok=True)
            hosts = self._hosts(state)
            if self.wanted_port:
                if not 0 < self.wanted_port < HIGHEST_PORT:
                    raise StoreError(
                        f"gpuval_store_port {self.wanted_port}: set it from 1 to {HIGHEST_PORT - 1} (the store also "
                        "uses the next port), or to 0 to let the store choose"
                    )
                state.writer.port, state.reader.port = self.wanted_port, self.wanted_port + 1
            for server in state.servers():
                server.port = server.port or _free_port([LOOPBACK, *hosts])
            moves, ran = before is None or before.place() != state.place(), self.running()
            try:
                for server in state.servers() if moves else ():
                    self._stop(server)  # the new port of one may be the old one of the other
                started = self._start_servers(state, hosts)
                self._check_address(state)
            except (OSError, StoreError):  # as a full disk, which has no room for store.json
                for server in () if ran and not moves else state.servers():
                    with suppress(StoreError):  # report why the start failed
                        self._stop(server)
                if moves:
                    self._move_back(before, ran=ran)
                raise
        return started

    def _start_servers(self, state: EmbeddedState, hosts: list[str]) -> bool:
        renewed = bool(state.address) and certificates.ensure(self.certificates, [state.address, *hosts])
        started = [self._ensure(state, server, hosts, renewed=renewed) for server in state.servers()]
        return any(started)

    def _move_back(self, before: EmbeddedState | None, *, ran: bool) -> None:
        """After a failed start at a new address, restore the old one, where other inventories expect the store."""
        if before is None:
            self._file.unlink(missing_ok=True)
            return
        with suppress(OSError, StoreError):  # report why the move failed
            self._write(before)
            if ran:
                self._start_servers(before, listening_addresses(before.address) if before.address else [])

    def moves(self) -> list[str]:
        """Names of the settings by which a start would move an existing store to another address or port."""
        if not self._file.exists():
            return []
        state = self._read()
        places = {"address": (self.wanted_address, state.address), "port": (self.wanted_port, state.writer.port)}
        return [f"gpuval_store_{name} {new}" for name, (new, old) in places.items() if new and new != old]

    def ensure_may_move(self) -> None:
        """Raise StoreError if a start would move the store during an active run, whose nodes have signed URLs."""
        moves = self.moves()
        if not moves or self.results is None:
            return
        active = cleanable.active(self.results, origin.embedded_in(self.directory.parent))
        # a run on which only this command works, and no node yet, does not count
        runs = [folder.path.name for folder in active if not run_state.only_opened(folder.read_run(), os.getppid())]
        if not runs:
            return
        state = self._read()
        ends = [cleanable.command(self.results, run_id) for run_id in runs]
        raise StoreError(
            f"run {some_of(runs, 3)} uses the embedded store on {state.address or LOOPBACK}, port {state.writer.port}, "
            f"and {' and '.join(moves)} would move it: leave that out, or wait for the end of the run; "
            f"after a change of the controller's address, end the run: {some_of(ends, 3)}"
        )

    def stop(self) -> bool:
        """Stop both servers."""
        if not self._file.exists():
            return False
        with self.held():
            if not self._file.exists():  # another `make clean` removed it meanwhile
                return False
            state = self._read()
            stopped = [self._stop(server) for server in state.servers()]
            state.writer.pid = state.reader.pid = 0
            self._write(state)
        return any(stopped)

    @contextmanager
    def left_as_it_was(self) -> Iterator[None]:
        """After the context, stop the store if it did not run before, and restore its address and ports."""
        before, ran = self._read() if self._file.exists() else None, self.running()
        try:
            yield
        finally:
            if not ran:
                self.stop()
                if before is None:
                    self.rotate()
                else:
                    self._write(before)

    def end_urls(self) -> None:
        if not self.running():
            return
        with self.held():
            state = self._read()
            state.signer = Keys()
            self._ensure(state, state.writer, self._hosts(state), renewed=True)

    def rotate(self) -> bool:
        """Delete keys, certificates, address and ports: earlier signatures become void. Only for a stopped store."""
        changed = self._file.exists()
        self._file.unlink(missing_ok=True)
        changed = self.certificates.remove() or changed
        for path in (self.directory / "lock", *self.directory.glob("writer*.log"), *self.directory.glob("reader*.log")):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.directory / "cache", ignore_errors=True)
        return changed

    def known(self) -> bool:
        """Whether the store was ever started here, and its keys still exist."""
        return self._file.exists()

    def running(self) -> bool:
        return self._file.exists() and any(self._process(server) for server in self._read().servers())

    def delete_run(self, folder: str) -> int:
        """Remove a run's objects, even from a stopped store. Returns the number removed."""
        bucket = self.objects.resolve()
        path = (bucket / folder).resolve()
        if bucket not in path.parents or not path.is_dir():
            return 0
        count = 0
        for item in list(path.iterdir()):
            if item.is_dir() and item.name in run_folder.OWN_FOLDERS:
                count += sum(one.is_file() for one in item.rglob("*"))
                shutil.rmtree(item)
            elif not item.is_dir():
                count += 1
                item.unlink()
        with suppress(OSError):  # the folder has another run in it
            path.rmdir()
        return count

    def _connection(self, state: EmbeddedState, server: EmbeddedServer) -> Connection:
        scheme = "https" if state.address else "http"
        public = f"https://{bracketed(state.address)}:{server.port}" if state.address else None
        return Connection(
            bucket=self.bucket,
            endpoint=f"{scheme}://{LOOPBACK}:{server.port}",
            access_key=server.access_key,
            secret_key=server.secret_key,
            ca_file=str(self.certificates.authority) if state.address else None,
            public_endpoint=public,
            direct=True,
        )

    def _hosts(self, state: EmbeddedState) -> list[str]:
        """IP addresses to listen on besides the loopback. Sets `state.address`, by which nodes reach the store."""
        if self.wanted_address:
            hosts = listening_addresses(self.wanted_address)
            state.address = self.wanted_address
            return hosts
        with suppress(StoreError):
            return listening_addresses(state.address) if state.address else []
        state.address = ""  # this machine no longer has that address
        return []

    def _arguments(self, state: EmbeddedState, server: EmbeddedServer, hosts: list[str], log: Path) -> list[str]:
        options = READ_ONLY if server is state.reader else ()
        listeners = [word for host in (LOOPBACK, *hosts) for word in ("--addr", f"{bracketed(host)}:{server.port}")]
        files = self.certificates
        secured = ["--cert", str(files.server), "--key", str(files.server_key), "--min-tls-version", "tls1.2"]
        return [
            *("serve", "s3", *options, *listeners, *(secured if state.address else ())),
            *("--cache-dir", str(self.directory / "cache"), "--vfs-cache-mode", "off", "--dir-cache-time", "1s"),
            *("--log-file", str(log), *LOG_LIMITS),
            # Hashes as ETags are recomputed for every listing: minutes per node that lists a large model.
            *("--etag-hash", "", str(self.data)),
        ]

    def _check_address(self, state: EmbeddedState) -> None:
        """Raise StoreError if the store does not answer at the address by which nodes reach it."""
        if not state.address:
            return
        connection = self.reader()
        try:
            Store(connection, timeout=5, attempts=2).client.head_bucket(Bucket=self.bucket)
        except CLIENT_ERRORS as error:
            raise StoreError(
                f"the embedded store does not answer on {connection.endpoint} ({error}): set gpuval_store_address to "
                f"an address of this controller, and see that its firewall lets TCP {state.writer.port} and "
                f"{state.reader.port} in"
            ) from error

    def _read(self) -> EmbeddedState:
        try:
            raw = json.loads(self._file.read_text())
            writer, reader = EmbeddedServer(**raw["writer"]), EmbeddedServer(**raw["reader"])
            return EmbeddedState(writer, reader, signer=Keys(**raw["signer"]), address=str(raw.get("address", "")))
        except FileNotFoundError:
            raise StoreError(
                f"there is no embedded store ({self._file} is missing): `make validate` starts it, and `make clean` "
                "removes it; or name the store to read with gpuval_s3_endpoint"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self._file} is damaged ({error}): remove it, and run again under a new run id"
            ) from error

    def _write(self, state: EmbeddedState) -> None:
        files.replace(self._file, json.dumps(asdict(state)).encode(), files.PRIVATE)

    def held(self) -> AbstractContextManager[None]:
        """A context that holds the store's lock, so that two controllers on one folder start one store, not two."""
        lock = self.directory / "lock"
        late = StoreError(f"another process holds {lock}: wait for it, or end it")
        return files.locked(lock, 3 * START_SECONDS, late)

    def _ensure(self, state: EmbeddedState, server: EmbeddedServer, hosts: list[str], *, renewed: bool) -> bool:
        """Start a server unless it runs and answers. `hosts`: IP addresses to listen on; `renewed`: keys or certificate
        are new, which need a restart. Returns whether it was started. Raises StoreError after START_SECONDS."""
        log = self.directory / ("writer.log" if server is state.writer else "reader.log")
        arguments = self._arguments(state, server, hosts, log)
        # A server with other arguments (address, port, those of an older gpuval) is replaced.
        with suppress(psutil.Error):
            running = self._process(server)
            serves = running is not None and running.cmdline()[-len(arguments) :] == arguments
            if serves and not renewed and self._answers(state, server):
                return False
        self._stop(server)
        accepted = [server, state.signer] if server is state.writer else [server]
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RCLONE_", "AWS_"))},
            # In the environment, since arguments are seen by everyone; CSV, since a pair holds a comma.
            "RCLONE_AUTH_KEY": ",".join(f'"{keys.access_key},{keys.secret_key}"' for keys in accepted),
            "RCLONE_CONFIG": "",
            # Uploads leave much garbage: GOGC 200 takes a seventh less processor time than 40, and 15 MB more.
            "GOGC": os.environ.get("GOGC", "200"),
        }
        begin = log.stat().st_size if log.exists() else 0
        with log.open("ab") as stream:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": stream}
            process = subprocess.Popen(
                [find_rclone(), *arguments], env=environment, start_new_session=True, cwd=self.directory, **streams
            )
        server.pid = process.pid
        try:
            self._write(state)
        except OSError:
            process.kill()  # the new process may not show its command line yet, by which `_stop` recognises it
            process.wait()
            raise
        deadline = time.monotonic() + START_SECONDS
        while not self._answers(state, server):
            if process.poll() is not None or time.monotonic() > deadline:
                printed = _end_of(log, begin)
                self._stop(server)
                advice = "set another gpuval_store_port"
                if not self.wanted_port:
                    advice = f"set gpuval_store_port, or remove {self._file} to choose another one"
                raise StoreError(
                    f"the embedded store did not start on {', '.join([LOOPBACK, *hosts])}, port {server.port}: "
                    f"{printed or 'no output'}. Is the port in use by another program? Free it, or {advice}."
                )
            time.sleep(0.1)
        return True

    def _answers(self, state: EmbeddedState, server: EmbeddedServer) -> bool:
        try:
            Store(self._connection(state, server), timeout=3, attempts=1).client.head_bucket(Bucket=self.bucket)
        except CLIENT_ERRORS:
            return False
        return True

    def _process(self, server: EmbeddedServer) -> psutil.Process | None:
        """The running rclone process of a server, else None. Checks the command line, since process ids are reused."""
        if not server.pid:
            return None
        try:
            process = psutil.Process(server.pid)
            command = process.cmdline()
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
        except psutil.Error:
            return None
        return process if "s3" in command and command[-1] == str(self.data) else None

    def _stop(self, server: EmbeddedServer) -> bool:
        process = self._process(server)
        if process is None:
            return False
        for end in (process.terminate, process.kill):
            with suppress(psutil.NoSuchProcess):
                end()
            if _has_ended(process):
                return True
        raise StoreError(f"the embedded store (process {server.pid}) does not end, even when killed")


def _end_of(log: Path, begin: int) -> str:
    """Last complete lines, at most LOG_END characters, written to a log after byte `begin` or since its rotation."""
    data = log.read_bytes()
    text = data[begin if begin <= len(data) else 0 :].decode(errors="replace").strip()
    if len(text) <= LOG_END:
        return text
    first, _, lines = text[-LOG_END:].partition("\n")
    return lines or first


def _has_ended(process: psutil.Process) -> bool:
    """Whether a process ends within STOP_SECONDS. A zombie has ended: only its parent has not read its exit status."""
    deadline = time.monotonic() + STOP_SECONDS
    try:
        while time.monotonic() < deadline:
            with suppress(psutil.TimeoutExpired):
                process.wait(0.5)
                return True
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
    except psutil.NoSuchProcess:
        return True
    return False


def _free_port(hosts: list[str]) -> int:
    """A TCP port of OWN_PORTS that is free on all these IP addresses. Raises StoreError."""
    for port in random.sample(OWN_PORTS, 50):
        with ExitStack() as sockets:
            try:
                for host in hosts:
                    family = socket.AF_INET6 if ":" in host else socket.AF_INET
                    sockets.enter_context(socket.socket(family)).bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise StoreError(f"the embedded store cannot listen on {host}: {error.strerror}") from error
                continue
            return port
    raise StoreError(f"no port is free on {', '.join(hosts)}: set gpuval_store_port to one that is")
