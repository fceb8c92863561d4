"""The arguments that make Ansible's own SSH connections check host keys against the pins of the inventory."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable
from pathlib import Path

from .known_hosts import inventory_name

FOLDER = "known_hosts"


def pin_file(state_dir: Path, sources: Iterable[str]) -> Path:
    """The pins of an inventory. The state folder stands beside the project's inventories."""
    return state_dir / FOLDER / inventory_name(sources, state_dir.parent)


def kex_file(pins: Path) -> Path:
    """The options for a fast key exchange that the last probe found."""
    return pins.with_name(f".{pins.name}.kex")


def ssh_arguments(pins: Path, own: str) -> str:
    """ssh_args of a connection: host key options before the operator's, since the first value of an option counts.

    Before the first probe there are no pins, and ssh uses the operator's own known_hosts. It always checks.
    """
    words = ["-o", "StrictHostKeyChecking=yes"]
    if pins.is_file():
        words += ["-o", 'UserKnownHostsFile="' + str(pins).replace("%", "%%") + '"']
        words += ["-o", "GlobalKnownHostsFile=none", "-o", "UpdateHostKeys=no", "-o", "VerifyHostKeyDNS=no"]
        words += ["-o", "NoHostAuthenticationForLocalhost=no"]
        with contextlib.suppress(OSError):
            words += shlex.split(kex_file(pins).read_text())
    return f"{shlex.join(words)} {own}".strip()
