"""Runs OpenSSH for probes: options as those of Ansible, a time limit for each call, passwords and keys of variables.

Passwords and private keys reach ssh by files in memory, and by a program (SSH_ASKPASS) that reads these files.
"""

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
    """The result of an ssh call. `code`: None if killed at its time limit `seconds`. `log`: lines added by LogLevel."""

    code: int | None
    stdout: str
    stderr: str
    log: str
    seconds: float


#: PIDs of the running ssh processes.
_running: set[int] = set()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within the context, Ctrl-C and SIGTERM first end all running ssh, which have sessions of their own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(signal_number: int, frame: FrameType | None) -> None:
        for pid in tuple(_running):
            _kill_group(pid)
        handler = before[signal.Signals(signal_number)]
        if callable(handler):
            handler(signal_number, frame)

    is_main = threading.current_thread() is threading.main_thread()  # only the main thread may set signal handlers
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
    """Run ssh in a session of its own, so that ssh cannot prompt on the terminal, and its proxies end with it.

    ssh is killed after `seconds`. `environment` is added to this process's environment.
    """
    # Files instead of pipes: a ControlPersist master of a jump host keeps stderr open after ssh has ended.
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never", **(environment or {})},
            )
        except OSError as error:
            remedy = "install the OpenSSH client on the controller, or set ansible_ssh_executable"
            finding = ProbeFinding("ssh_error", f"{command[0]} cannot be run: {error.strerror}", remedy)
            raise ProbeError(finding) from None
        code = None
        _running.add(process.pid)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(seconds)
        finally:
            _kill_group(process.pid)
            _running.discard(process.pid)
            process.wait()
        for file in (out, err):
            file.seek(0)
        stdout, stderr = out.read(), err.read()
    return SshEnd(code, stdout, _LOG_LINE.sub("", stderr), "".join(_LOG_LINE.findall(stderr)), seconds)


@cache
def _plain_settings() -> Mapping[str, tuple[str, ...]]:
    """ssh's default settings, without any configuration file."""
    return findings.effective(run_ssh(["ssh", "-F", "none", "-G", "localhost"], 10).stdout)


def kex_options(settings: Iterable[Mapping[str, tuple[str, ...]]]) -> list[str]:
    """ssh options for a fast key exchange; none if the operator's `settings` choose the key exchange.

    OpenSSH's default costs 75 ms of CPU for each connection, curve25519 12 ms. Other algorithms remain as fallback.
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
    """The ssh options of an Ansible connection, without options for host keys. `get`: returns an option of Ansible's
    ssh connection by name."""
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


#: Script that prints the password or passphrase for which ssh asks.
ASKPASS = Path(__file__).with_name("askpass.sh")
#: Whether the system has files in memory, which macOS lacks.
IN_MEMORY = hasattr(os, "memfd_create")
#: Time limit in seconds to read a key, which is slow with a strong passphrase.
READ_SECONDS = 30


@dataclass(frozen=True)
class LoginSecrets:
    """The secrets in a node's variables with which to log in; each is empty if the variables have none."""

    password: str = field(default="", repr=False)
    #: Content of the private key (ansible_ssh_private_key), for which Ansible runs an agent, and its passphrase.
    private_key: str = field(default="", repr=False)
    passphrase: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.password or self.private_key)

    @contextlib.contextmanager
    def offered(self) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
        """Options and environment variables by which ssh uses the secrets, valid within the context."""
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
        """The finding of a refused login (`denied`), with what is wrong with the secrets in the node's variables."""
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
    """Path of a temporary file with this text, in memory if the system can; valid within the context."""
    with os.fdopen(os.memfd_create("gpuval"), "w") if IN_MEMORY else tempfile.NamedTemporaryFile("w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}" if IN_MEMORY else str(file.name)
