"""The telemetry of a stage on the runner's side: begins the helper, reads without waiting, ends in bounded time."""

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
from typing import IO, Optional, cast

from gpuval_node.node_directory import inherited

from gpuval_runner import descendants
from gpuval_runner.layout import own_archive
from gpuval_runner.telemetry import kernel_log
from gpuval_runner.telemetry.gpu_figures import SeenGpu
from gpuval_runner.telemetry.summary import TelemetrySummary

#: Seconds to wait for the helper once the stage has ended: child.AFTER_SECONDS, and the time until a tool that cannot
#: be killed is left behind.
END_SECONDS = 13.0
#: Seconds after which a call of a GPU's driver counts as hung.
HUNG_SECONDS = 10.0
#: Seconds to wait for a killed helper. If it stays, it hangs in a driver: the stage's end finds and names it.
KILLED_SECONDS = 0.5
READ_BYTES = 1 << 16
MAX_READS = 32
MAX_LINE_BYTES = 1 << 20
#: Program of the helper. With `-I -S`, Python starts without packages of user and site, and in half the time.
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from gpuval_runner.telemetry.child import main; main()"
#: The line that ends a stage, and the answer of a helper that is ready for the next stage.
END, DONE = b"end", {"kind": "done"}


class HelperProcess:
    """The telemetry helper (`child`). One process serves all stages: a start costs as much as a minute of its work."""

    def __init__(self, kmsg: Optional[int]) -> None:
        """`kmsg`: file descriptor of the kernel's log, which the helper inherits. Raises ``OSError``."""
        program_path = own_archive() or Path(__file__).resolve().parents[2]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PROGRAM, str(program_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=inherited(os.environ),
            pass_fds=() if kmsg is None else (kmsg,),
            start_new_session=True,
            bufsize=0,
        )
        self.output = cast("IO[bytes]", self.process.stdout)
        os.set_blocking(self.output.fileno(), False)
        descendants.LASTING.add(self.process.pid)

    def order(self, line: bytes) -> bool:
        """Send a line to the helper: settings begin a stage, others end it. Returns whether the helper is alive."""
        try:
            cast("IO[bytes]", self.process.stdin).write(line + b"\n")
        except OSError:
            return False
        return True

    def end(self, wait_seconds: float = KILLED_SECONDS) -> None:
        """Close the helper's input, which ends the helper; kill it after `wait_seconds`."""
        cast("IO[bytes]", self.process.stdin).close()
        self.output.close()
        for seconds in (wait_seconds, KILLED_SECONDS):
            try:
                self.process.wait(seconds)
                break
            except subprocess.TimeoutExpired:
                self.process.kill()
        descendants.LASTING.discard(self.process.pid)


@dataclass
class Handover:
    """What the telemetry of a stage passes on: the next stage also reports what happened between the two stages."""

    kmsg: Optional[Path] = None
    #: File descriptor of the kernel's log. Helpers that inherit it share its position and read on where others stopped.
    handle: Optional[int] = None
    #: Position up to which `journalctl` and `dmesg` were read.
    position: Optional[kernel_log.Position] = None
    gpus: list[SeenGpu] = field(default_factory=list)
    helper: Optional[HelperProcess] = None

    def open(self, kmsg: Path) -> str:
        """Open the kernel's log unless it is open; returns why it cannot be read, empty if it can."""
        if self.handle is not None and self.kmsg != kmsg:
            self.close()
        if self.handle is None:
            try:
                self.kmsg, self.handle = kmsg, kernel_log.open_at_end(kmsg)
            except kernel_log.NoLogError as error:
                return str(error)
            self.end_helper()  # the running helper has not inherited the log
        return ""

    def begin(self, settings: bytes) -> HelperProcess:
        """Begin a stage in the running telemetry helper, else in a new helper. Raises ``OSError``."""
        if self.helper and self.helper.order(settings):
            return self.helper
        self.end_helper()
        self.helper = HelperProcess(self.handle)
        self.helper.order(settings)
        return self.helper

    def end_helper(self, wait_seconds: float = KILLED_SECONDS) -> None:
        if self.helper:
            self.helper.end(wait_seconds)
            self.helper = None

    def close(self) -> None:
        self.end_helper()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


#: What each stage of this runner passes on to the next.
PROCESS = Handover()


class Telemetry:
    """Samples telemetry beside one stage. No failure of helper, driver or kernel raises here."""

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
        """Begin sampling every `period_seconds`; 0 samples nothing. `vendor` is as in a plan: cpu has no GPUs."""
        self._helper: Optional[HelperProcess] = None
        self._left = b""
        self._done = False
        self._end_seconds = end_seconds
        self._carried = carried
        self.summary = TelemetrySummary(time.monotonic(), period_seconds, carried.gpus)
        self.on = period_seconds > 0
        if not self.on:
            return
        settings = {"period_seconds": period_seconds, "vendor": vendor, "root": root, "hung_seconds": hung_seconds}
        problem = carried.open(kmsg)
        position = carried.position = carried.position or kernel_log.Position.now()
        log = {"kmsg": carried.handle, "no_kmsg": problem, "since": [position.wall, position.boot]}
        try:
            self._helper = carried.begin(json.dumps({**settings, **log}).encode("ascii"))
        except OSError as error:
            self.summary.stop(f"telemetry could not be started: {error.strerror or error}")

    def tick(self) -> None:
        """Read the helper's new reports, without waiting."""
        if self._helper:
            self._read(self._helper)

    def end(self) -> None:
        """Let the helper do its last readings, in at most about `end_seconds`; further calls do nothing. A helper that
        is then ready for the next stage stays; any other is ended, with the processes that its driver left."""
        helper, self._helper = self._helper, None
        if helper is None:
            return
        helper.order(END)
        deadline = time.monotonic() + self._end_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(helper.output, selectors.EVENT_READ)
            while time.monotonic() < deadline and selector.select(max(0.0, deadline - time.monotonic())):
                if not self._read(helper) or self._done:
                    break
        self._carried.gpus = self.summary.seen()
        self._carried.position = self.summary.position or self._carried.position
        self.summary.stop("telemetry ended before the stage did")
        if not self._done:
            self._carried.end_helper(0.0)

    def _read(self, helper: HelperProcess) -> bool:
        """Read available reports of a helper; False when the helper has closed its output."""
        for _ in range(MAX_READS):
            try:
                data = os.read(helper.output.fileno(), READ_BYTES)
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
                    message = json.loads(line)
                    self._done = self._done or message == DONE
                    self.summary.take(message)
        return True
