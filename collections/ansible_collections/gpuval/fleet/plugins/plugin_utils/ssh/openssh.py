"""OpenSSH as a probe uses it: its options from those of Ansible, and one call with a deadline."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import FrameType

from ..core.paths import expand_user
from . import findings
from .findings import ProbeError, ProbeFinding


@dataclass(frozen=True)
class SshEnd:
    """A finished ssh; `code` is None if it was killed at its limit of `seconds`. `log`: what LogLevel adds."""

    code: int | None
    stdout: str
    stderr: str
    log: str
    seconds: float


#: The ssh processes at work.
_running: set[int] = set()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM reach no ssh, which has its own session: they end each before they end this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, frame: FrameType | None) -> None:
        for pid in tuple(_running):
            _kill_group(pid)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    is_main = threading.current_thread() is threading.main_thread()  # no other thread may have a handler
    replaced = [number for number, handler in before.items() if is_main and callable(handler)]
    for number in replaced:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, before[number])


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


_LOG_LINE = re.compile(r"^(?:debug\d: |Authenticated |Transferred: |Bytes per second: ).*\n?", re.MULTILINE)


def run_ssh(command: list[str], seconds: float, environment: Mapping[str, str] | None = None) -> SshEnd:
    """Run ssh in its own session, so that it cannot prompt on the terminal and its proxies end with it.

    After `seconds` it is killed. `environment` is added to that of this process.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never", **(environment or {})},
        )
    except OSError as error:
        remedy = "install the OpenSSH client on the controller, or set ansible_ssh_executable"
        raise ProbeError(ProbeFinding("ssh_error", f"{command[0]} cannot be run: {error.strerror}", remedy)) from None
    code = None
    _running.add(process.pid)
    try:
        process.communicate(timeout=seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        pass
    finally:
        _kill_group(process.pid)
        _running.discard(process.pid)
        stdout, stderr = process.communicate()
    return SshEnd(code, stdout, _LOG_LINE.sub("", stderr), "".join(_LOG_LINE.findall(stderr)), seconds)


@cache
def _plain_settings() -> Mapping[str, tuple[str, ...]]:
    """The settings of ssh that no configuration changes."""
    return findings.effective(run_ssh(["ssh", "-F", "none", "-G", "localhost"], 10).stdout)


def kex_options(settings: Iterable[Mapping[str, tuple[str, ...]]]) -> list[str]:
    """Options for a fast key exchange, where the operator has not chosen one.

    OpenSSH's default costs 75 ms of CPU for each connection, curve25519 12 ms; the others stay as fallback.
    """
    plain = _plain_settings()
    default = plain.get("kexalgorithms")
    if not default or "curve25519-sha256" not in default[0].split(","):
        return []
    if any(one.get("kexalgorithms") != default for one in settings):
        return []
    options = ["-o", "KexAlgorithms=^curve25519-sha256"]
    return [*options, "-o", "WarnWeakCrypto=no"] if "warnweakcrypto" in plain else options


def ssh_options(get: Callable[[str], object]) -> tuple[str, ...]:
    """The command line of Ansible's ssh connection from its options, without those for host keys."""
    words: list[str] = shlex.split(str(get("ssh_args") or ""))
    if get("port") is not None:
        words += ["-o", f"Port={get('port')}"]
    if get("private_key_file"):
        words += ["-o", f'IdentityFile="{expand_user(str(get("private_key_file")))}"']
    if get("remote_user"):
        words += ["-o", f'User="{get("remote_user")}"']
    for name in ("ssh_common_args", "ssh_extra_args"):
        words += shlex.split(str(get(name) or ""))
    return tuple(words)
