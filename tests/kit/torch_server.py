"""Real processes that need not import PyTorch, which takes each of them 1.5 to 2.6 s of CPU.

A server imports PyTorch once and forks a child for each program. ``TorchProcess`` is a ``subprocess.Popen`` of
``[sys.executable, "-m" or "-c", ...]``: own process id, arguments, environment, folder, streams and exit code. The
ranks that torchrun starts in such a process are its own children, forked too, with torchrun's arguments and
environment. What differs from a program started as the product does: /proc/<pid>/environ and cmdline are those of
the server, and variables that PyTorch reads when it is imported have no effect, but for OMP_NUM_THREADS. No module
of the product is imported before the fork.
"""

from __future__ import annotations

import atexit
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


class TorchProcess(subprocess.Popen):
    """A Python program in a process that the server forks; its standard input is empty."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        _startupinfo, _creationflags, _shell, *pipes = rest[:9]
        *_, stdout, _errread, stderr = pipes
        self._control, remote = socket.socketpair()
        request = {
            "argv": list(map(str, args[1:])),
            "environment": dict(os.environ if env is None else env),
            "directory": str(cwd or Path.cwd()),
            "is_session": bool(rest[-2]),
        }
        streams = [1 if stdout == -1 else stdout, 2 if stderr == -1 else stderr]
        with remote:
            socket.send_fds(_server(), [json.dumps(request).encode()], [remote.fileno(), *streams])
        self._control.settimeout(60)
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


class _Rank(subprocess.Popen):
    """In place of the Popen of torchrun: a child forked from the process that starts the ranks."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *_):
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _run([arg for arg in args[1:] if arg != "-u"], env, str(Path.cwd()), (), is_session=True)
        self._child_created = True


@functools.cache
def _server() -> socket.socket:
    """Return the connection to this process's server, which is started on the first call."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.torch_server", str(theirs.fileno())],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end():
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def fork_ranks() -> None:
    """Let torchrun, called in this process, fork its ranks."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    subprocess_handler.Popen = _Rank


def _serve(requests: socket.socket) -> None:
    """Fork a child for each request until the other side has closed the connection."""
    importlib.import_module("torch._dynamo")  # the optimizers import it
    importlib.import_module("torch.distributed.run")
    fork_ranks()
    gc.freeze()  # no child looks for garbage in PyTorch
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that wait for a program are not waited for
    while True:
        data, files, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 3)
        if not data:
            return
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
        _run(request["argv"], request["environment"], request["directory"], streams, is_session=request["is_session"])
    for stream in streams:
        os.close(stream)
    os.write(control, str(child).encode())
    _, status = os.waitpid(child, 0)
    os.write(control, str(status).encode())
    os._exit(0)


def _run(
    argv: list[str], environment: dict[str, str], directory: str, streams: tuple[int, ...], *, is_session: bool
) -> NoReturn:
    """Be the program: ``argv`` is ``-m module ...`` or ``-c code ...``."""
    code = 1
    try:
        if is_session:
            os.setsid()
        _take_place(environment, directory, streams)
        way, program, *arguments = argv
        if way == "-m":
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


def _take_place(environment: dict[str, str], directory: str, streams: tuple[int, ...]) -> None:
    """Replace what a new Python would have of its own."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
    os.closerange(3, MAX_FILES)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    sys.stdout.reconfigure(write_through=bool(environment.get("PYTHONUNBUFFERED")))
    sys.path[:] = [directory, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *_PLAIN_PATH]
    sys.path_importer_cache.clear()
    weakref.finalize._registry.clear()  # a rank leaves the temporary folders of its parent alone
    for name in [name for name in sys.modules if name.partition(".")[0] in ("gpuval_workloads", "gpuval_runner")]:
        del sys.modules[name]
    tempfile.tempdir = None
    if "OMP_NUM_THREADS" in environment:
        sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))


_PLAIN_PATH = [entry for entry in sys.path if entry and Path(entry) != ROOT]

if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
