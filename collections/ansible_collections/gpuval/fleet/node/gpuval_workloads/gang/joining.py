"""How a member joins its gang and leaves it: control channel, keys, a free port, SSH server for ranks of others."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ..common import processes
from ..common.result import WorkloadFailure
from .absent import MemberRecords
from .control_channel import CAUSE, Beats, ChannelLimits, ControlChannel, GangStop, StoppedError, show
from .launching import PATH_VARIABLE, check_blanks
from .members import Gang
from .ssh_server import SshServer, passed

TOKEN_VARIABLE = "GPUVAL_GANG_TOKEN"  # noqa: S105 - the variable's name, no secret
KEYS_VARIABLE = "GPUVAL_GANG_KEYS"
KEY_FILE = "id_ed25519"
OUTSIDE = "was ended from outside: time limit, or the run was cancelled"
FAREWELL_SECONDS = 60.0
#: For the last message of a member that a signal ends: KILL follows after 10 s.
OUTSIDE_SECONDS = 7.0


def introduce(gang: Gang, kind: str = "") -> None:
    """Print which member this is."""
    print(
        f"member {gang.index + 1} of {len(gang.members)} of gang {gang.name}: {gang.own.node}, {gang.own.slots} "
        f"processes{kind}; {gang.leader.node} leads",
        flush=True,
    )


def open_channel(
    gang: Gang, limits: ChannelLimits, beats: Beats, on_stop: Callable[[GangStop], None], bring: Mapping[str, Any]
) -> ControlChannel:
    """This member's end of the control channel, to be entered. Raises ``WorkloadFailure`` without the gang's token."""
    token, path = os.environ.get(TOKEN_VARIABLE), keys_folder(os.environ) / "token"
    try:
        token = token or path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise WorkloadFailure(f"the gang's token {path} cannot be read: {error.strerror}") from None
    return ControlChannel(gang, token, limits, beats, on_stop, bring, MemberRecords.of().ended)


def join(channel: ControlChannel, gang: Gang) -> list[Any]:
    """What all members bring, in order, once they have joined. Raises ``StoppedError``."""
    brought = channel.join()
    show(f"all {len(gang.members)} members have joined")
    return brought


def end_from_outside(channel: ControlChannel) -> None:
    """Report that a signal ends this member, for no fault of a node."""
    with suppress(StoppedError):
        channel.end(OUTSIDE, OUTSIDE_SECONDS, weight=CAUSE, node=None)


def check_port(gang: Gang, port: int, setting: str) -> None:
    """Raise ``WorkloadFailure`` if the port of the rendezvous is occupied: the ranks would fail unclearly."""
    if not gang.is_leader:
        return
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))  # as PyTorch does
    except OSError as error:
        raise WorkloadFailure(
            f"port {port} of {gang.own.node}, the rendezvous of the ranks, cannot be used: {error.strerror}; "
            f"find the process (ss -ltnp), or set {setting}"
        ) from None


def keys_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get(KEYS_VARIABLE) or "/opt/gpuval/ssh")


def serve_ssh(gang: Gang, folder: Path, keys: Path, stack: ExitStack) -> SshServer:
    """Start the member's SSH server until ``stack`` is left, which ends all that it started.

    Raises ``WorkloadFailure`` for what is missing.
    """
    check_blanks(folder, keys, sys.executable)
    processes.adopt_orphans()
    os.environ[PATH_VARIABLE] = os.environ.get("PYTHONPATH", "")
    public = keys / f"{KEY_FILE}.pub"
    try:
        key = public.read_text(encoding="utf-8")
    except OSError as error:
        raise WorkloadFailure(
            f"the run's key {public} cannot be read ({error.strerror}): gpuval.fleet.keys brings it"
        ) from None
    variables, kept_back = passed(os.environ, TOKEN_VARIABLE)
    if kept_back:
        print(f"not passed to ranks over SSH because of quotes or line ends: {', '.join(kept_back)}", flush=True)
    server = SshServer(gang, folder / "ssh", key, variables)
    stack.callback(processes.end_below)
    return stack.enter_context(server)
