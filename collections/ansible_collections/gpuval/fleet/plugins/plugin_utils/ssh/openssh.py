"""OpenSSH as a probe uses it: its options from those of Ansible, one call with a deadline, and secrets to log in with.

Passwords and private keys in variables reach ssh by files in memory, and by a program that reads those.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import FrameType

from ..core.paths import expand_user
from . import findings
from .findings import ProbeError, ProbeFinding, Where


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
    if any(of_node.get("kexalgorithms") != default for of_node in settings):
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


#: Prints the password or passphrase that ssh asks for.
ASKPASS = Path(__file__).with_name("askpass.sh")
#: macOS has no files in memory.
IN_MEMORY = hasattr(os, "memfd_create")
#: Time limit of reading a key, which a strong passphrase makes slow.
READ_SECONDS = 30


@dataclass(frozen=True)
class LoginSecrets:
    """What a node's variables hold to log in with; each empty where ssh finds it by itself."""

    password: str = field(default="", repr=False)
    #: ansible_ssh_private_key and its passphrase: the key itself, for which Ansible runs an agent.
    private_key: str = field(default="", repr=False)
    passphrase: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.password or self.private_key)

    @contextlib.contextmanager
    def offered(self) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
        """Options and environment variables with which ssh uses them, while the context lasts."""
        if not self:
            yield {"BatchMode": "yes", "NumberOfPasswordPrompts": "0"}, {}
            return
        options = {"BatchMode": "no", "NumberOfPasswordPrompts": "1"}
        environment = {"SSH_ASKPASS": str(ASKPASS), "SSH_ASKPASS_REQUIRE": "force"}
        with contextlib.ExitStack() as files:
            environment["GPUVAL_PASSWORD_FILE"] = files.enter_context(_file_in_memory(self.password))
            environment["GPUVAL_PASSPHRASE_FILE"] = files.enter_context(_file_in_memory(self.passphrase))
            if self.private_key:
                key_file = files.enter_context(_file_in_memory(f"{self.private_key}\n"))
                options |= {"IdentityFile": key_file, "IdentitiesOnly": "yes"}
            yield options, environment

    def explained(self, denied: ProbeFinding, at: Where, stderr: str) -> ProbeFinding:
        """The finding of a refused login, in terms of these variables."""
        if not self.private_key:
            is_partial = "with partial success" in stderr
            detail = "the password alone is not enough" if is_partial else "password and keys were refused"
            return replace(denied, message=f"{denied.message} ({detail})")
        with self.offered() as (options, environment):
            read = run_ssh(["ssh-keygen", "-y", "-f", options["IdentityFile"]], READ_SECONDS, environment)
        if read.code == 0:
            return findings.denied(at, "the key in ansible_ssh_private_key was refused")
        problem = findings.one_line(read.stderr.rpartition(": ")[2].strip(), 100)
        if problem.startswith("incorrect passphrase") and not self.passphrase:
            problem = "it has a passphrase, and ansible_ssh_private_key_passphrase is empty"
        return ProbeFinding(
            "login_denied",
            f"{at.user}@{at.address}: the key in ansible_ssh_private_key cannot be used: {problem}",
            "correct ansible_ssh_private_key and ansible_ssh_private_key_passphrase",
        )


NO_SECRETS = LoginSecrets()


@contextlib.contextmanager
def _file_in_memory(text: str) -> Iterator[str]:
    """The name of a file with that text; where the system has files in memory, it ends with this process."""
    with os.fdopen(os.memfd_create("gpuval"), "w") if IN_MEMORY else tempfile.NamedTemporaryFile("w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}" if IN_MEMORY else str(file.name)
