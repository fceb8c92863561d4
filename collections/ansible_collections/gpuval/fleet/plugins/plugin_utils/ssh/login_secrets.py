"""Passwords and private keys in variables, as ssh takes them: by files in memory, and by a program that reads those."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import findings
from .findings import ProbeFinding, Where
from .openssh import run_ssh

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
