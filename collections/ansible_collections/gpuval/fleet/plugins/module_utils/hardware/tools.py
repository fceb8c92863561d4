"""Runs command-line tools with limits on time and output."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

# Without persistence mode a driver wakes eight GPUs one after another, which takes well over 20 seconds on some hosts.
VENDOR_TOOL_TIMEOUT_SECONDS = 60.0
TOOL_TIMEOUT_SECONDS = 10.0
OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024
EXTRA_DIRECTORIES = (
    "/usr/local/sbin",
    "/usr/sbin",
    "/sbin",
    "/opt/rocm/bin",
    "/usr/local/nvidia/bin",
    "/usr/lib/wsl/lib",
)
KILL_GRACE_SECONDS = 2.0
#: PIDs of the tools that threads of this process run now.
RUNNING: set[int] = set()


@dataclass(frozen=True)
class ToolResult:
    """The result of a command-line tool. `returncode`: None if it is missing, did not start or did not end in time."""

    tool: str
    stdout: str = ""
    stderr: str = ""
    returncode: Optional[int] = None
    missing: bool = False
    timeout_seconds: Optional[float] = None
    truncated: bool = False

    @property
    def timed_out(self) -> bool:
        return self.timeout_seconds is not None

    @property
    def ok(self) -> bool:
        return self.returncode == 0 and not self.truncated

    @property
    def complaint(self) -> str:
        """Reason, on one line, why the tool gave no answer."""
        if self.missing:
            return f"{self.tool} is not installed"
        if self.timed_out:
            return f"{self.tool} did not answer within {self.timeout_seconds:g} s"
        if self.truncated:
            return f"{self.tool} wrote more than {OUTPUT_LIMIT_BYTES} bytes"
        lines = [line.strip() for line in (self.stderr + "\n" + self.stdout).splitlines() if line.strip()]
        reason = f": {lines[0][:300]}" if lines else ""
        return f"{self.tool} ended with status {self.returncode}{reason}"


Run = Callable[..., ToolResult]
"""`run(tool, *arguments, timeout=seconds)`; never raises for what a tool does."""


def toolbox(root: str = "/") -> Run:
    """Return a function that runs tools on PATH or in vendors' folders; for another `root`, only in its bin folders."""
    if root == "/":
        search = os.pathsep.join([*os.environ.get("PATH", os.defpath).split(os.pathsep), *EXTRA_DIRECTORIES])
    else:
        search = os.pathsep.join(str(Path(root) / directory) for directory in ("bin", "usr/bin"))

    def run(tool: str, *arguments: str, timeout: float = TOOL_TIMEOUT_SECONDS) -> ToolResult:
        path = shutil.which(tool, path=search)
        if path is None:
            return ToolResult(tool, missing=True)
        return run_bounded(tool, [path, *arguments], timeout)

    return run


def run_bounded(tool: str, command: list[str], timeout: float) -> ToolResult:
    """Run `command` for at most `timeout` seconds; a tool stuck in the kernel is left behind. `tool`: for messages."""
    environment = {**os.environ, "LC_ALL": "C", "LANG": "C"}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return ToolResult(tool, stderr=f"cannot be started: {error.strerror}")

    deadline = time.monotonic() + timeout
    output: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    RUNNING.add(process.pid)
    try:
        ended = _drain(process, output, deadline)
        truncated = any(len(part) >= OUTPUT_LIMIT_BYTES for part in output.values())
        if not ended:
            with contextlib.suppress(ProcessLookupError):  # the tool ended after the deadline
                os.killpg(process.pid, signal.SIGKILL)
            # A tool that hangs in the driver cannot be killed, and to wait longer would only spread the hang.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_GRACE_SECONDS)
    finally:
        RUNNING.discard(process.pid)
    for stream in output:
        stream.close()
    stdout, stderr = (bytes(part).decode("utf-8", "replace") for part in output.values())
    if not ended and not truncated:
        return ToolResult(tool, stdout, stderr, timeout_seconds=timeout)
    return ToolResult(tool, stdout, stderr, process.returncode, truncated=truncated)


def _drain(process: subprocess.Popen[bytes], output: dict[Any, bytearray], deadline: float) -> bool:
    """Collect a process's output by pipe until it ends; False if the deadline (monotonic) or size limit came first."""
    with selectors.DefaultSelector() as selector:
        for pipe in output:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                return False
            ended = process.poll() is not None  # before reading the pipes, which then hold its last output
            ready = selector.select(0 if ended else min(seconds, 0.2))
            if ended and not ready:
                break  # a background child may keep the pipe open: the tool's own output is complete
            for key, _events in ready:
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                output[key.fileobj] += chunk
                if len(output[key.fileobj]) >= OUTPUT_LIMIT_BYTES:
                    return False
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True
