"""A stage's telemetry as its run sees it: begun, looked at without waiting, ended in bounded time."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Optional, cast

from gpuval_runner.environment import inherited
from gpuval_runner.layout import own_archive
from gpuval_runner.telemetry import kernel_log
from gpuval_runner.telemetry.summary import Summary

#: How long the helper is waited for once the stage has ended: child.AFTER_SECONDS, and what a tool that cannot be
#: killed takes to be left behind.
END_SECONDS = 13.0
#: A call of a GPU's driver that takes longer has hung.
HUNG_SECONDS = 10.0
#: How long a killed helper is waited for. One that stays hangs in a driver: what ends the stage finds and names it.
KILLED_SECONDS = 0.5
READ_BYTES = 1 << 16
MAX_READS = 32
MAX_LINE_BYTES = 1 << 20
#: `-I -S`: without the user's and the site's packages, and it starts in half the time.
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from gpuval_runner.telemetry.child import main; main()"


@dataclass
class Handover:
    """What a stage leaves to the next of the same process, which reports what happened between the two."""

    kmsg: Optional[Path] = None
    #: Of the kernel's log. A helper that inherits it reads on where the one before stopped: they share its position.
    handle: Optional[int] = None
    #: What `journalctl` and `dmesg` were asked for already.
    position: Optional[kernel_log.Position] = None
    #: GPUs that earlier stages saw.
    gpus: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def open(self, kmsg: Path) -> str:
        """Open the log unless it is; returns why it cannot be read."""
        if self.handle is not None and self.kmsg != kmsg:
            self.close()
        if self.handle is None:
            try:
                self.kmsg, self.handle = kmsg, kernel_log.open_at_end(kmsg)
            except kernel_log.NoLogError as error:
                return str(error)
        return ""

    def close(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


#: Of the runner's own stages.
PROCESS = Handover()


class Telemetry:
    """What is sampled beside one stage. Nothing here raises for what a helper, a driver or a kernel does."""

    def __init__(
        self,
        period_seconds: float,
        vendor: str,
        *,
        kmsg: Path = kernel_log.KMSG,
        root: str = "/",
        end_seconds: float = END_SECONDS,
        hung_seconds: float = HUNG_SECONDS,
        carried: Handover = PROCESS,
    ) -> None:
        """Begin sampling every so many seconds; 0 is not at all. `vendor` as in a plan: cpu has no GPUs to look at."""
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._left = b""
        self._end_seconds = end_seconds
        self._carried = carried
        self.summary = Summary(time.monotonic(), period_seconds, carried.gpus)
        self.on = period_seconds > 0
        if self.on:
            settings = {"period_seconds": period_seconds, "vendor": vendor, "root": root, "hung_seconds": hung_seconds}
            self._begin(settings, kmsg)

    @property
    def problem(self) -> str:
        """Why it stopped before the stage did; empty otherwise."""
        return self.summary.problem

    def _begin(self, settings: dict[str, Any], kmsg: Path) -> None:
        problem = self._carried.open(kmsg)
        handle = self._carried.handle
        position = self._carried.position = self._carried.position or kernel_log.Position.now()
        settings = {**settings, "kmsg": handle, "no_kmsg": problem, "since": [position.wall, position.boot]}
        place = own_archive() or Path(__file__).resolve().parents[2]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", PROGRAM, str(place), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=inherited(os.environ),
                pass_fds=() if handle is None else (handle,),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self.summary.stop(f"telemetry could not be started: {error.strerror or error}")
            return
        self._input = cast("IO[bytes]", self._process.stdin)
        self._output = cast("IO[bytes]", self._process.stdout)
        os.set_blocking(self._output.fileno(), False)

    def tick(self) -> None:
        """Read what the helper reported meanwhile."""
        if self._process and not self._output.closed:
            self._read()

    def end(self) -> None:
        """Have the helper read for the last time, and end it, in about `end_seconds` at most; once is enough.

        It is a child of the runner, so it has to end before the stage's leftover processes are looked for.
        """
        process = self._process
        if process is None:
            return
        with contextlib.suppress(OSError):
            self._input.close()
        deadline = time.monotonic() + self._end_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while time.monotonic() < deadline and selector.select(max(0.0, deadline - time.monotonic())):
                if not self._read():
                    break
        self._carried.gpus = self.summary.seen()
        self._carried.position = self.summary.position or self._carried.position
        self.summary.stop("telemetry ended before the stage did")
        process.kill()
        self._output.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_SECONDS)
        self._process = None

    def _read(self) -> bool:
        """Read what is there; False when the helper has closed its output."""
        for _ in range(MAX_READS):
            try:
                data = os.read(self._output.fileno(), READ_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            *lines, self._left = (self._left + data).split(b"\n")
            if len(self._left) > MAX_LINE_BYTES:
                self._left = b""
            for line in lines:
                with contextlib.suppress(ValueError, RecursionError):
                    self.summary.take(json.loads(line))
        return True
