"""Runs a program on a node over the standard input of its Python, and reads its answer, cheaper than an Ansible module.

An Ansible module unpacks itself and Ansible's libraries on the node at every call, and needs a session of its own to
find an interpreter. Here one session finds the interpreter and carries the runner, which then runs in memory.
"""

import base64
import contextlib
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ...module_utils.node_launch import ANSWER, OLDEST_PYTHON

OLDEST = ".".join(map(str, OLDEST_PYTHON))
OUTPUT_CHARACTERS = 800
#: Maximum characters of a program's output: its answer has some hundred, a greeting at login some thousand.
MAX_ANSWER_CHARACTERS = 1 << 20
NOT_FOUND = 127

#: Start of the program, which also runs on an old Python, to report that it is too old. It removes the current folder
#: from sys.path, which must not provide modules.
_BEGIN = f"""\
import sys
sys.path[:] = [folder for folder in sys.path if folder]
import json
def fail(text):
    sys.stdout.write(chr(10) + {ANSWER!r} + json.dumps(dict(failed=True, msg=text, python=sys.executable)) + chr(10))
    sys.exit(0)
if sys.version_info < {OLDEST_PYTHON!r}:
    fail("Python " + sys.version.split()[0] + " is too old for the runner, which needs {OLDEST}: " + sys.executable)
if not sys.platform.startswith("linux"):
    fail("a node must run Linux, this is " + sys.platform + ": a Mac can be the controller, not a node")
import os
stream = sys.stdin.buffer
runner = stream.read(int(stream.readline()))
try:
    handle = os.memfd_create("gpuval-runner")
    path = "/proc/%d/fd/%d" % (os.getpid(), handle)
except (AttributeError, OSError):  # a Python built for an old libc, a sandbox that forbids it
    import atexit, tempfile
    handle, path = tempfile.mkstemp(prefix="gpuval-runner-")
    atexit.register(os.unlink, path)
with open(handle, "wb", closefd=False) as memory:
    memory.write(runner)
sys.path.insert(0, path)
from gpuval_node.node_launch import main
main(runner, stream)
import gc
gc.freeze()  # else Python would look through all objects for garbage at its end
"""


def command(interpreter: str, candidates: Sequence[str]) -> str:
    """The shell command that runs a program from standard input with `interpreter`, or, if that is empty, with the
    first Python of `candidates` that the node has."""
    # Without line breaks, backslashes and single quotes, which login shells treat differently.
    source = base64.b64encode(_BEGIN.encode()).decode()
    program = shlex.quote(f'exec(__import__("base64").b64decode("{source}"))')
    if interpreter:  # not quoted: as for Ansible, it may contain ~ or arguments
        return f"{interpreter} -c {program}"
    names = " ".join(shlex.quote(name) for name in candidates)
    # A pyenv shim is found by `command -v` but fails to run: then try the next candidate.
    turn = f'command -v "$python" >/dev/null 2>&1 || continue; "$python" -c {program}; code=$?'
    search = f"for python in {names}; do {turn}; [ $code = {NOT_FOUND} ] || exit $code; done"
    return f"{search}; echo No python interpreters found >&2; exit {NOT_FOUND}"


def data(parameters: Mapping[str, Any], runner: bytes, workloads: bytes) -> bytes:
    """The bytes for the program's standard input: the runner, the parameters as JSON, the workloads."""
    return b"".join((f"{len(runner)}\n".encode(), runner, json.dumps(parameters).encode(), b"\n", workloads))


def answer(code: int, output: str, errors: str, interpreter: str = "") -> dict[str, Any]:
    """The program's answer, in the form of an Ansible module's result; ``failed`` with its output if it gave none.
    `code`: exit code; `output`, `errors`: what it printed; `interpreter`: as for `command`."""
    if len(output) > MAX_ANSWER_CHARACTERS:
        return {"failed": True, "msg": f"the node's answer has {len(output):,} characters: no launch prints so much"}
    for line in reversed(output.splitlines()):
        _before, mark, text = line.partition(ANSWER)
        if mark:
            with contextlib.suppress(ValueError, RecursionError):
                result = json.loads(text)
                if isinstance(result, dict):
                    return result
            break
    detail = (errors.strip() or output.strip())[-OUTPUT_CHARACTERS:] or "no output"
    if code == NOT_FOUND and interpreter:
        return {"failed": True, "msg": f"the module interpreter '{interpreter}' was not found on the node: {detail}"}
    return {"failed": True, "msg": f"the launch ended with exit code {code} on the node: {detail}"}
