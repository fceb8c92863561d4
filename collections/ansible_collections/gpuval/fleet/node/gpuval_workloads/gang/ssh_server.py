"""The member's own SSH server, for DeepSpeed's launcher: a port of its own, the run's key, host keys known beforehand.

It runs as the user that the workload runs as, in the container where there is one, and ends with the workload.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..common.result import WorkloadFailure
from .host.routes import is_ip
from .members import Gang

START_SECONDS = 15.0
LOGIN_SECONDS = 15
#: With what the password of a locked user begins in /etc/shadow (Linux).
LOCKED = "!"
#: What sshd and the shell set for the user that logs in.
OF_THE_LOGIN = ("USER", "LOGNAME", "SHELL", "MAIL", "TERM", "_", "PWD", "OLDPWD", "SHLVL")

_CONFIGURATION = """\
Port {port}
{listen}HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
AllowUsers {user}
PermitRootLogin prohibit-password
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
AllowTcpForwarding no
X11Forwarding no
PermitTunnel no
PermitUserEnvironment no
MaxStartups 200
LogLevel INFO
{environment}"""


class SshServer:
    """Enter it to start it. ``host_key`` is its public key, as known_hosts has it."""

    def __init__(self, gang: Gang, folder: Path, authorized_key: str, environment: Mapping[str, str]) -> None:
        self._gang, self._folder, self._environment = gang, folder, dict(environment)
        self._process: subprocess.Popen | None = None
        self._program = _program("sshd")
        check_not_locked(user())
        folder.mkdir(mode=0o700, exist_ok=True)
        generate = [_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(folder / "host_key")]
        subprocess.run(generate, check=True, timeout=START_SECONDS, stdin=subprocess.DEVNULL)
        (folder / "authorized_keys").write_text(authorized_key.strip() + "\n", encoding="utf-8")
        self.host_key = " ".join((folder / "host_key.pub").read_text(encoding="utf-8").split()[:2])

    def __enter__(self) -> SshServer:
        member = self._gang.own
        if os.geteuid() == 0:  # what sshd as root insists on
            Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
        # One line for all: of several sshd takes the first only.
        words = " ".join(f'"{name}={value}"' for name, value in sorted(self._environment.items()))
        configuration = self._folder / "sshd_config"
        configuration.write_text(
            _CONFIGURATION.format(
                port=self._gang.ssh_port,
                listen=f"ListenAddress {member.address}\n" if is_ip(member.address) else "",  # of a name: everywhere
                folder=self._folder,
                user=user(),
                environment=f"SetEnv {words}\n" if words else "",
            ),
            encoding="utf-8",
        )
        self._process = subprocess.Popen(
            [self._program, "-D", "-e", "-f", str(configuration)], stdin=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                why = f"ended with exit code {code}" if code is not None else "does not answer"
                self.__exit__()
                raise WorkloadFailure(
                    f"the SSH server for DeepSpeed at {member.address} port {self._gang.ssh_port} {why}; see the log "
                    "above. Choose another port if it is in use, or launcher torchrun, which needs none"
                )
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self._gang.own.address, self._gang.ssh_port), timeout=1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False


def user() -> str:
    """The name of this process's user. Raises ``WorkloadFailure`` where it has none: SSH knows users by their names."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise WorkloadFailure(
            f"user {os.geteuid()} has no line in /etc/passwd here, which SSH requires: use an image that has "
            "one, or launcher torchrun, which needs none"
        ) from None


def check_not_locked(name: str, shadow: Path = Path("/etc/shadow")) -> None:
    """Raise ``WorkloadFailure`` where sshd takes no key of a user: without PAM it refuses one who is locked.

    A user that may not read the file runs an sshd that may not either, which locks no user out.
    """
    try:
        lines = shadow.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    password = next(
        (fields[1] for fields in (line.split(":") for line in lines) if fields[0] == name and fields[1:]), ""
    )
    if password.startswith(LOCKED):
        raise WorkloadFailure(
            f"user {name} is locked here ({shadow} has {LOCKED} as password), and sshd refuses even its key: usermod "
            f"-p '*' {name} (no password, and not locked), on the node or in the image; or choose launcher torchrun, "
            "which needs no SSH"
        )


def passed(environ: Mapping[str, str], secret: str) -> tuple[dict[str, str], list[str]]:
    """Return what of a member's environment its sshd can give to the ranks, and the names of what it cannot.

    The latter are values with quotes, backslashes and what is not printed, which versions of sshd read differently.
    """
    candidates = {n: v for n, v in environ.items() if n not in (secret, *OF_THE_LOGIN) and not n.startswith("SSH_")}
    able = {n: v for n, v in candidates.items() if (n + v).isprintable() and not set(n + v) & set('"\\')}
    return able, sorted(candidates.keys() - able.keys())


def client(gang: Gang, folder: Path, brought: Path, host_keys: Sequence[str]) -> list[str]:
    """Return the options of ssh for this key, these hosts and no others, no questions.

    The key is copied to a file of this user's alone: ssh takes no other, and it may be brought as one. Raises
    ``WorkloadFailure`` where it cannot be read.
    """
    key, known_hosts = folder / brought.name, folder / "known_hosts"
    try:
        key.touch(mode=0o600)
        key.write_bytes(brought.read_bytes())
    except OSError as error:
        raise WorkloadFailure(f"the gang's key {brought} cannot be read: {error.strerror}") from None
    lines = (f"[{m.address}]:{gang.ssh_port} {host_key}\n" for m, host_key in zip(gang.members, host_keys))
    known_hosts.write_text("".join(lines), encoding="utf-8")
    options = {
        "UserKnownHostsFile": str(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "IdentityFile": str(key),
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": str(LOGIN_SECONDS),
        "ServerAliveInterval": "10",
        "ServerAliveCountMax": "3",
    }
    return ["-F", "/dev/null", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]


def _program(name: str) -> str:
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if not path:
        raise WorkloadFailure(
            f"{name} is not there: install openssh-server, or choose launcher torchrun, which needs none"
        )
    return path
