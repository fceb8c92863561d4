"""A server process and everything it spawned: start, listen to its output, stop all of it.

Servers start workers that leave the process group or lose their parent. Each carries an environment variable that only
this start gave out, so they are found in /proc wherever they went.
"""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, cast

from ..common.processes import end, marked
from ..common.tool_output import shortened

MARKER = "GPUVAL_SERVER_MARKER"
LAST_LINES = 20
TERM_SECONDS = 20.0
REST_SECONDS = 3.0
KILL_SECONDS = 10.0

_LINE_BYTES = 4000
#: How the line of a Python exception begins.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|NotFound)\b")


class ServerProcess:
    """A running server. Its output goes line by line to ours, with a prefix; the last lines are kept for messages."""

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
        """Return the exit code (negative: the signal's number), None while it runs."""
        return self._process.poll()

    def last_lines(self) -> str:
        return "\n".join(self._lines)

    def how_it_ended(self) -> str:
        code = self.exit_code()
        if code is None:
            return "still runs"
        self._reader.join(timeout=2)
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{ending} ({self._first_error})" if self._first_error else ending

    def stop(self) -> list[int]:
        """Stop the server and everything it spawned; return the process ids that are left, normally none.

        The server is asked first, alone: it knows how to end its workers and to give back shared memory. What is left
        then gets TERM, and at last KILL.
        """
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
