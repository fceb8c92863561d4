"""The private keys with which a probe logs in, in the order of ssh."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import paramiko

from ..core.paths import expand_user
from . import findings
from .findings import ProbeError, ProbeFinding, Where

#: Public keys to offer; servers disconnect after six.
OFFERED = 5


def given_key(text: str, passphrase: str, at: Where) -> paramiko.PKey:
    """The key in a variable of the node. Raises ProbeError."""
    reasons = []
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key(io.StringIO(f"{text}\n"), password=passphrase or None)
        except paramiko.PasswordRequiredException:
            reasons = ["it has a passphrase, and ansible_ssh_private_key_passphrase is empty"]
            break
        except (paramiko.SSHException, ValueError, TypeError, IndexError) as error:
            reasons.append(findings.one_line(str(error), 100))
    message = f"{at.user}@{at.address}: the key in ansible_ssh_private_key cannot be used: {'; '.join(reasons)}"
    remedy = "correct ansible_ssh_private_key and ansible_ssh_private_key_passphrase"
    raise ProbeError(ProbeFinding("login_denied", message, remedy))


def offered_keys(at: Where) -> Iterator[paramiko.PKey]:
    """Keys in the order of ssh: named files, the agent, the files that are there by default."""
    disabled = at.settings.get("pubkeyauthentication", ("yes",))[0] in ("no", "false")
    if not (disabled or any(at.settings.get("certificatefile", ()))):
        yield from itertools.islice(itertools.chain(_files(at), _agent(at)), OFFERED)


def _files(at: Where) -> Iterator[paramiko.PKey]:
    for name in at.settings.get("identityfile", ()):
        path = expand_user(name)
        if "%" in name or not path.is_file() or Path(f"{path}-cert.pub").exists():
            continue
        with contextlib.suppress(paramiko.SSHException, OSError, ValueError, TypeError):
            if not findings.is_ignored(path.stat()):
                yield paramiko.PKey.from_path(path)


def _agent(at: Where) -> Iterator[paramiko.PKey]:
    named = at.settings.get("identityagent", ("SSH_AUTH_SOCK",))[0]
    is_usual = named in ("SSH_AUTH_SOCK", os.environ.get("SSH_AUTH_SOCK", ""))
    if at.settings.get("identitiesonly", ("no",))[0] == "yes" or not is_usual:
        return
    with contextlib.suppress(paramiko.SSHException, OSError):
        agent = paramiko.Agent()
        with contextlib.closing(agent):
            yield from agent.get_keys()
