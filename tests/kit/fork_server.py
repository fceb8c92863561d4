"""Real processes that need not import what takes most of their start: PyTorch (1.5 to 2.6 s of CPU), Ansible (2 s).

A server imports it once and forks a child for each program. ``ForkedProcess`` is a ``subprocess.Popen`` of
``[sys.executable, "-m", "-c" or "-P", ...]``: own process id, arguments, environment, folder, streams and exit code.
What differs from a program started as the product does: /proc/<pid>/cmdline is that of the server, and variables
that are read when the modules are imported have no effect, unless the program reads them again.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import weakref
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
MAX_REQUEST_BYTES = 2**17
MAX_FILES = 2**16
START_SECONDS = 240
#: Room for the environment of a program in that of the server.
ROOM = {"GPUVAL_TESTS_ROOM": "." * 2**14}


class ForkedProcess(subprocess.Popen):
    """A Python program in a process that the server forks; its standard input is empty."""

    #: The module whose function ``preload`` a server calls before it forks anything.
    preloads: str

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        _startupinfo, _creationflags, _shell, *pipes = rest[:9]
        *_, stdout, _errread, stderr = pipes
        # One message at a time: a program may have ended before its process id is read.
        self._control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {
            "argv": list(map(str, args[1:])),
            "environment": dict(os.environ if env is None else env),
            "directory": str(cwd or Path.cwd()),
            "is_session": bool(rest[-2]),
        }
        streams = [1 if stdout == -1 else stdout, 2 if stderr == -1 else stderr]
        with remote:
            socket.send_fds(_server(self.preloads), [json.dumps(request).encode()], [remote.fileno(), *streams])
        self._control.settimeout(START_SECONDS)
        self.pid = int(self._control.recv(32))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *_, **__):
        return self._poll_for(0)

    def _wait(self, timeout):
        if self._poll_for(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def _poll_for(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._control], [], [], seconds)[0]:
            self.returncode = os.waitstatus_to_exitcode(int(self._control.recv(32)))
            self._control.close()
        return self.returncode


@functools.cache
def _server(preloads: str) -> socket.socket:
    """Return the connection to this process's server, which is started on the first call."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve({preloads!r}, {theirs.fileno()})"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **ROOM},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end():
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def serve(preloads: str, requests_fd: int) -> NoReturn:
    """Fork a child for each request until the other side has closed the connection."""
    importlib.import_module(preloads).preload()
    requests = socket.socket(fileno=requests_fd)
    gc.freeze()  # no child looks for garbage in what was imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that wait for a program are not waited for
    while True:
        data, files, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 3)
        if not data:
            atexit._run_exitfuncs()
            os._exit(0)  # without what extension modules report of themselves in the end
        if not os.fork():
            requests.close()
            _attend(json.loads(data), *files)
        for file in files:
            os.close(file)


def _attend(request: dict[str, Any], control: int, *streams: int) -> NoReturn:
    """Fork the program, and send its process id and, when it has ended, its status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if not child:
        run(request["argv"], request["environment"], request["directory"], streams, is_session=request["is_session"])
    for stream in streams:
        os.close(stream)
    os.write(control, str(child).encode())
    _, status = os.waitpid(child, 0)
    os.write(control, str(status).encode())
    os._exit(0)


def run(
    argv: list[str], environment: dict[str, str], directory: str, streams: tuple[int, ...], *, is_session: bool
) -> NoReturn:
    """Be the program: ``argv`` is ``-m module ...``, ``-c code ...`` or ``-P file ...``."""
    code = 1
    try:
        if is_session:
            os.setsid()
        way, program, *arguments = argv
        _take_place(environment, [] if way == "-P" else [directory], streams)
        os.chdir(directory)
        if way == "-P":
            sys.argv = [program, *arguments]
            runpy.run_path(program, run_name="__main__")
        elif way == "-m":
            sys.argv = [program, *arguments]
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.argv = [way, *arguments]
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(program, "<string>", "exec"), vars(main))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            threading._shutdown()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code & 0xFF)


def _take_place(environment: dict[str, str], path: list[str], streams: tuple[int, ...]) -> None:
    """Replace what a new Python would have of its own."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
    os.closerange(3, MAX_FILES)
    os.environ.clear()
    os.environ.update(environment)
    _show(environment)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    sys.stdout.reconfigure(write_through=bool(environment.get("PYTHONUNBUFFERED")))
    sys.path[:] = [*path, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *_PLAIN_PATH]
    sys.path_importer_cache.clear()
    weakref.finalize._registry.clear()  # a rank leaves the temporary folders of its parent alone
    for name in [name for name in sys.modules if name.partition(".")[0] in ("gpuval_workloads", "gpuval_runner")]:
        del sys.modules[name]
    tempfile.tempdir = None
    if "torch" in sys.modules and "OMP_NUM_THREADS" in environment:
        sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))


def _show(environment: dict[str, str]) -> None:
    """Put it into /proc/<pid>/environ, by which tests find processes: the kernel shows what stands in that memory."""
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    text = b"".join(f"{name}={value}\0".encode() for name, value in environment.items())
    ctypes.memmove(start, text[: end - start].ljust(end - start, b"\0"), end - start)


_PLAIN_PATH = [entry for entry in sys.path if entry and Path(entry) != ROOT]
