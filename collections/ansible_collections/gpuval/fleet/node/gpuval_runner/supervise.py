"""Starts one process, watches it, enforces its limits, and ends it with everything that it started."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Callable, Optional, cast

from gpuval_node.hardware import tools
from gpuval_node.process_stat import Process, snapshot
from gpuval_node.volumes import FAULT, find_hung_volume, volume_of

from gpuval_runner import descendants
from gpuval_runner.outcome import StageStop, signal_name
from gpuval_runner.text import seconds

TICK_SECONDS = 0.2
READ_BYTES = 1 << 16
DRAIN_SECONDS = 0.5
LEFTOVER_GRACE_SECONDS = 3.0
STOP_SECONDS, FOLLOW_SECONDS = 30.0, 3.0


#: The value of `fault` in a record's environment: something that the stage needs is missing or not permitted.
ENVIRONMENT = "environment"
ERRORS_OF_SITE = frozenset(
    (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOEXEC, errno.ELOOP)
)


@dataclass(frozen=True)
class ProcessSpec:
    """The process to start. Limits are in seconds, 0 is no limit; `adopts`: the caller is a subreaper without other
    children than tools that its threads run. `stop` returns, for a grace in seconds, the command that ends a container:
    signals do not reach its work."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    marker: str
    timeout_seconds: float = 0
    inactivity_seconds: float = 0
    grace_seconds: float = 10
    adopts: bool = False
    stop: Optional[Callable[[float], Sequence[str]]] = None


@dataclass
class ProcessEnd:
    """How a process ended. `left_behind` counts processes that outlived the main process, `unkillable` lists those that
    KILL did not end; `fault` classes a `start_error` or a timeout that proves nothing about the node. For a container,
    `memory` is the engine's message about memory, and `notes` are for the stage's message."""

    exit_code: Optional[int] = None
    signal: Optional[str] = None
    start_error: Optional[str] = None
    fault: str = ""
    stop: Optional[StageStop] = None
    left_behind: int = 0
    unkillable: list[Process] = field(default_factory=list)
    memory: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Hooks:
    """Callbacks while a process runs, all in one thread. `output` gets each piece of output; `tick` runs about five
    times a second and may return a reason to stop; `activity` returns a value whose change counts as a sign of life,
    like output; `started` gets the main pid; `ended` is called when the main process has ended by itself, before its
    leftover processes are ended. `limited` returns whether the limits of time and of silence apply."""

    output: Callable[[bytes], None]
    tick: Callable[[], Optional[StageStop]] = lambda: None
    activity: Callable[[], Any] = lambda: None
    started: Callable[[int], None] = lambda _pid: None
    ended: Callable[[], None] = lambda: None
    limited: Callable[[], bool] = lambda: True


def supervise(spec: ProcessSpec, hooks: Hooks) -> ProcessEnd:
    """Run a process until it ends or is stopped; on return, its descendants have ended, or the result names them."""
    try:
        process = subprocess.Popen(
            list(spec.argv),
            env=dict(spec.environment),
            cwd=spec.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
        )
    except (OSError, ValueError) as error:
        return ProcessEnd(start_error=explain_start_error(spec.argv[0], error), fault=fault_of(error))
    return _Supervision(spec, hooks, process).run()


class _Supervision:
    def __init__(self, spec: ProcessSpec, hooks: Hooks, process: subprocess.Popen[bytes]) -> None:
        self._spec, self._hooks, self._process = spec, hooks, process
        self._pipe = cast("IO[bytes]", process.stdout)
        self._selector = selectors.DefaultSelector()
        self._output: Optional[int] = None
        self._last_life = time.monotonic()

    def run(self) -> ProcessEnd:
        ended = ProcessEnd()
        try:
            ended.stop = self._watch(time.monotonic())
            if ended.stop is None:
                self._hooks.ended()
            elif ended.stop.state == "timeout":
                self._find_hung_volume(ended, ended.stop)
        finally:
            self._end(ended)
            self._selector.close()
            self._pipe.close()
        code = self._process.returncode
        if code is not None and code < 0:
            ended.signal = signal_name(-code)
        else:
            ended.exit_code = code
        return ended

    def _watch(self, begun: float) -> Optional[StageStop]:
        self._output = self._pipe.fileno()
        os.set_blocking(self._output, False)
        self._selector.register(self._output, selectors.EVENT_READ, "output")
        exit_handle: Optional[int] = None
        with contextlib.suppress(AttributeError, OSError):  # wake the loop at the end of the main process, if possible
            exit_handle = os.pidfd_open(self._process.pid)
            self._selector.register(exit_handle, selectors.EVENT_READ, "exit")
        self._hooks.started(self._process.pid)
        self._last_life = time.monotonic()
        life: Any = self._hooks.activity()
        next_tick = time.monotonic()
        try:
            while True:
                self._pump(TICK_SECONDS)
                if self._process.returncode is not None:
                    return None
                present = time.monotonic()
                if present < next_tick:
                    continue
                next_tick = present + TICK_SECONDS
                activity = self._hooks.activity()
                if activity != life:
                    life, self._last_life = activity, present
                stop = self._limit(begun, present) if self._hooks.limited() else None
                stop = stop or self._hooks.tick()
                if stop:
                    return stop
        finally:
            if exit_handle is not None:
                self._selector.unregister(exit_handle)
                os.close(exit_handle)

    def _limit(self, begun: float, present: float) -> Optional[StageStop]:
        """Return why a limit ends the process now, if so; both times are in seconds of the monotonic clock."""
        limit, quiet = self._spec.timeout_seconds, self._spec.inactivity_seconds
        if limit and present - begun >= limit:
            return StageStop("timeout", f"still running after its limit of {seconds(limit)} (timeout_seconds)")
        if quiet and present - self._last_life >= quiet:
            return StageStop(
                "timeout",
                f"no output and no result for {seconds(present - self._last_life)}, "
                f"its limit is {seconds(quiet)} (inactivity_seconds)",
            )
        return None

    def _pump(self, wait: float) -> None:
        """Read output, waiting up to `wait` seconds, and reap processes that have ended."""
        if not self._selector.get_map():
            time.sleep(min(wait, TICK_SECONDS / 4))
        for key, _ in self._selector.select(wait):
            if key.data == "output":
                self._read()
        self._reap()

    def _pump_until(self, is_over: Callable[[], bool], limit: float) -> None:
        """Read output and reap until `is_over` returns True, for at most `limit` seconds."""
        deadline = time.monotonic() + limit
        while not is_over() and time.monotonic() < deadline:
            self._pump(TICK_SECONDS / 4)

    def _read(self) -> bool:
        if self._output is None:
            return False
        try:
            data = os.read(self._output, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(self._output)
            self._output = None
            return False
        self._last_life = time.monotonic()
        self._hooks.output(data)
        return True

    def _reap(self) -> None:
        self._process.poll()
        if not self._spec.adopts:
            return
        with contextlib.suppress(ChildProcessError):
            while info := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if info.si_pid == self._process.pid:
                    self._process.poll()
                elif info.si_pid in tools.RUNNING:
                    break  # a tool: the thread that runs it needs its exit code
                else:
                    os.waitpid(info.si_pid, os.WNOHANG)

    def _members(self) -> list[Process]:
        own_tools = set(tools.RUNNING)  # tools of other threads, before and after the snapshot
        processes = snapshot()
        own_tools |= tools.RUNNING
        return descendants.belonging(
            {pid: process for pid, process in processes.items() if pid not in own_tools},
            self._spec.marker,
            session=self._process.pid,
            parent=os.getpid() if self._spec.adopts else None,
        )

    def _end(self, ended: ProcessEnd) -> None:
        """End all processes of the work (TERM, a grace, KILL), read the rest of the output, and fill in `ended`."""
        if self._process.returncode is not None:
            self._pump_until(lambda: not self._selector.get_map(), DRAIN_SECONDS)
        elif self._spec.stop:
            self._stop(self._spec.stop)
        ended.left_behind = len(self._members()) if ended.stop is None else 0
        grace = self._spec.grace_seconds if ended.stop else min(self._spec.grace_seconds, LEFTOVER_GRACE_SECONDS)
        _, ended.unkillable = descendants.end_all(self._members, grace, self._pump)
        self._pump_until(lambda: self._process.returncode is not None, 0.0 if ended.unkillable else 1.0)
        drained = time.monotonic() + DRAIN_SECONDS  # another user's process cannot be killed and may write for ever
        while self._read() and time.monotonic() < drained:
            pass

    def _find_hung_volume(self, ended: ProcessEnd, stop: StageStop) -> None:
        """Class a timeout as the site's if a file system that the work uses hangs: it proves nothing then."""
        seen = set()
        for process in self._members():
            with contextlib.suppress(OSError):  # the process has ended
                mounts = Path(f"/proc/{process.pid}/ns/mnt").readlink()  # most processes share one set of mounts
                if mounts not in seen and (volume := find_hung_volume(process.pid)):
                    ended.fault = FAULT
                    ended.stop = StageStop(stop.state, f"{stop.reason}; {volume.name} does not answer")
                    return
                seen.add(mounts)

    def _stop(self, stop: Callable[[float], Sequence[str]]) -> None:
        """Run the command `stop`, which ends the container, and read the work's output meanwhile."""
        try:
            stopper = subprocess.Popen(
                list(stop(self._spec.grace_seconds)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return  # the caller kills the processes that are left
        self._pump_until(lambda: stopper.poll() is not None, self._spec.grace_seconds + STOP_SECONDS)
        if stopper.poll() is None:
            stopper.kill()
        # The engine's client ends after its container.
        self._pump_until(lambda: None not in (stopper.poll(), self._process.returncode), FOLLOW_SECONDS)


def fault_of(error: Exception) -> str:
    """Return the class of an error of a command or folder: ``environment`` if the site is to correct it, else empty."""
    return ENVIRONMENT if isinstance(error, OSError) and error.errno in ERRORS_OF_SITE else ""


def unusable_folder(error: OSError) -> ProcessEnd:
    """Return the end of a stage whose folder or file could not be created."""
    text = f"{error.filename}: {error.strerror}: make room or correct the path"
    volume = volume_of(Path(error.filename or "/"))
    return ProcessEnd(start_error=text, fault=volume.fault_in(error.strerror or "") or fault_of(error))


def explain_start_error(command: str, error: Exception) -> str:
    """Return why a command could not be started, and what to do."""
    if isinstance(error, FileNotFoundError):
        return f"command not found: {command}: install it on the node or correct the stage's command"
    if isinstance(error, PermissionError):
        return f"not executable: {command}: make it executable (chmod +x) or correct the stage's command"
    return f"{command}: {getattr(error, 'strerror', None) or error}"
