"""Finds and runs other vendors' programs, with a deadline and bounded output, and ends all their processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Callable

from .processes import end_group, signal_group

HEAD_BYTES, TAIL_BYTES = 1 << 20, 3 << 20
ECHO_BYTES = 2 << 20
ECHO_LINE = 2000
TERM_SECONDS, KILL_SECONDS = 10.0, 10.0
QUIET_SECONDS = 20.0

#: Folders in which packages and images install tools, searched after ``--path`` and PATH.
_ROOTS = ("/opt", "/usr/local", "/workspace", "", "/root")
USUAL = (
    "/usr/local/bin",
    *(f"{root}/{tests}/build" for tests in ("nccl-tests", "rccl-tests") for root in _ROOTS),
    *("/opt/nccl_tests/build", "/opt/rccl-tests/bin", "/opt/rocm/bin", "/opt/rocm/extras-7/bin"),
    *("/opt/amd/agfhc", "/opt/amdtools/agfhc"),
    *(f"/opt/habanalabs/qual/{chip}/bin" for chip in ("gaudi3", "gaudi2", "gaudi")),
)

_CHUNK = 64 << 10
_POLL_SECONDS = 0.2
_DRAIN_SECONDS = 5.0


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended. ``code`` is the exit code, negative for a signal, None if the program never started
    (``problem`` says why). ``output`` is its standard output and error; of more than 4 MiB, ``lost_bytes`` in the
    middle are left out."""

    code: int | None
    output: str
    seconds: float = 0.0
    lost_bytes: int = 0
    timed_out: bool = False
    problem: str = ""

    def how(self) -> str:
        """Return how the program ended, in words that follow its name."""
        if self.problem:
            return self.problem
        if self.timed_out:
            return f"had not ended after {self.seconds:.0f} s and was stopped"
        if self.code is not None and self.code < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"was killed by {names.get(-self.code, f'signal {-self.code}')}"
        return f"ended with exit code {self.code}"


def run(
    command: Sequence[str | os.PathLike],
    seconds: float,
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    echo: Callable[[str], None] | None = None,
    say: Callable[[str], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> ProgramEnd:
    """Run a program for at most ``seconds``, or until ``stopped`` returns True; then end its process group by TERM and
    KILL, which also ends leftovers. Never raises for a failure of the program. ``echo`` gets the output lines, at most
    2 MiB; ``say`` a line now and then while the program is silent."""
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            [os.fspath(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return ProgramEnd(None, "", problem=f"could not be started: {getattr(error, 'strerror', None) or error}")
    output = _Output(echo)
    reader = threading.Thread(target=_read, args=(process.stdout, output), daemon=True)
    timed_out, problem = False, ""
    try:
        reader.start()
        spoken = start
        while process.poll() is None and not stopped():
            now = time.monotonic()
            if timed_out := now >= start + seconds:
                break
            if say and now - max(output.last, spoken) >= QUIET_SECONDS:
                spoken = now
                say(f"still runs, {now - start:.0f} s so far")
            with suppress(subprocess.TimeoutExpired):
                process.wait(min(_POLL_SECONDS, max(start + seconds - now, 0.01)))
        if process.poll() is None and not end_group(process, TERM_SECONDS, KILL_SECONDS):
            problem = f"had not ended after {seconds:.0f} s and could not be killed"
    finally:
        signal_group(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_SECONDS)
        if reader.is_alive():
            reader.join(_DRAIN_SECONDS)  # a process that left the group may still hold the pipe
    text, lost = output.text()
    return ProgramEnd(process.returncode, text, time.monotonic() - start, lost, timed_out, problem or output.problem)


class _Output:
    """Keeps the start and the end of a program's output."""

    def __init__(self, echo: Callable[[str], None] | None) -> None:
        self._echo, self._echoed, self._line = echo, 0, b""
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = self._lost = 0
        self._lock = threading.Lock()
        self.last = time.monotonic()
        self.problem = ""

    def feed(self, data: bytes) -> None:
        self.last = time.monotonic()
        self._show(data)
        with self._lock:
            room = HEAD_BYTES - len(self._head)
            self._head += data[:room]
            if data[room:]:
                self._tail.append(data[room:])
                self._tail_bytes += len(data) - room
            while self._tail_bytes - len(self._tail[0] if self._tail else b"") >= TAIL_BYTES:
                self._lost += len(self._tail[0])
                self._tail_bytes -= len(self._tail.popleft())

    def text(self) -> tuple[str, int]:
        with self._lock:
            hole = f"\n[{self._lost} bytes left out]\n".encode() if self._lost else b""
            return (bytes(self._head) + hole + b"".join(self._tail)).decode("utf-8", "replace"), self._lost

    def _show(self, data: bytes) -> None:
        if self._echo is None or self._echoed > ECHO_BYTES:
            return
        *lines, incomplete = (self._line + data).split(b"\n")
        self._line = incomplete[:ECHO_LINE]
        for line in lines:
            self._echoed += len(line) + 16  # a line costs more than its length
            if self._echoed > ECHO_BYTES:
                self._echo("(its further output is not shown here)")
                return
            self._echo(line[:ECHO_LINE].decode("utf-8", "replace").rstrip())


def _read(stream: IO[bytes], output: _Output) -> None:
    """Read a stream to its end. Keeps the stream object: its descriptor could be reused once it is closed elsewhere."""
    try:
        with stream:
            while data := os.read(stream.fileno(), _CHUNK):
                output.feed(data)
    except OSError as error:
        output.problem = f"its output could not be read: {error.strerror or error}"


class ExecutableSearch:
    """Searches executables in the preferred folders, then on PATH, then in the usual folders."""

    def __init__(self, preferred: Sequence[Path], environ: Mapping[str, str], usual: Sequence[str] = USUAL) -> None:
        folders = [*map(str, preferred), *environ.get("PATH", "").split(os.pathsep), *usual]
        self._path = os.pathsep.join(filter(None, folders))

    def find(self, name: str) -> Path | None:
        path = shutil.which(name, path=self._path)
        return Path(path) if path else None
