"""Joining and leaving a gang: a member's address, control channel, keys, port check, SSH server.

Each member runs its own SSH server, at its own port, with the run's key and known host keys. The server runs as the
workload's user, in its container if there is one, and ends with the workload. gloo and NCCL would use the first network
interface, which is not always the interface with the member's address.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import pwd
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from gpuval_node.network.routes import addresses, is_ip, route_to
from gpuval_node.process_stat import adopt_orphans

from ..common import processes
from ..common.result import WorkloadCrash, WorkloadFailure
from .config import template
from .control_channel import CAUSE, Beats, ChannelLimits, ControlChannel, GangStop, StoppedError, Waiting, show
from .launching import PATH_VARIABLE, check_blanks
from .members import FILE_VARIABLE, Gang

START_SECONDS = 15.0
LOGIN_SECONDS, END_SECONDS = 15, 5.0
#: Start of a locked user's password in /etc/shadow (Linux).
LOCKED = "!"
#: Variables that sshd and the shell set at login.
OF_THE_LOGIN = ("USER", "LOGNAME", "SHELL", "MAIL", "TERM", "_", "PWD", "OLDPWD", "SHLVL")


class SshServer:
    """A member's SSH server, whose sessions get ``environment``; enter it to start. ``host_key`` is for known_hosts."""

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
        if os.geteuid() == 0:  # required by sshd as root
            Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
        # One line for all variables: of several lines, sshd uses only the first.
        words = " ".join(f'"{name}={value}"' for name, value in sorted(self._environment.items()))
        configuration = self._folder / "sshd_config"
        configuration.write_text(
            template(configuration.name).substitute(
                port=self._gang.ssh_port,
                listen=f"ListenAddress {member.address}\n" if is_ip(member.address) else "",  # a name: all
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
            processes.end_group(self._process, END_SECONDS, None)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self._gang.own.address, self._gang.ssh_port), timeout=1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False


def user() -> str:
    """Return the name of this process's user, which SSH needs. Raises ``WorkloadFailure`` for a user without a name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise WorkloadFailure(
            f"user {os.geteuid()} has no line in /etc/passwd here, which SSH requires: use an image that has "
            "one, or launcher torchrun, which needs none"
        ) from None


def check_not_locked(name: str, shadow: Path = Path("/etc/shadow")) -> None:
    """Raise ``WorkloadFailure`` for a user locked in `shadow`, if sshd may read it: without PAM it refuses their
    keys."""
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
    """Return the variables of ``environ`` that sshd can pass to ranks, and the names of the others, with quotes,
    backslashes or unprintable characters: versions of sshd read these differently. ``secret``: a variable to omit."""
    candidates = {n: v for n, v in environ.items() if n not in (secret, *OF_THE_LOGIN) and not n.startswith("SSH_")}
    able = {n: v for n, v in candidates.items() if (n + v).isprintable() and not set(n + v) & set('"\\')}
    return able, sorted(candidates.keys() - able.keys())


def client(gang: Gang, folder: Path, private_key: Path, host_keys: Sequence[str]) -> list[str]:
    """Return options of ssh for exactly this key and the members' host keys, without prompts. ``folder`` gets a copy of
    the file ``private_key`` that only this user can read. Raises ``WorkloadFailure`` if the file cannot be read."""
    key, known_hosts = folder / private_key.name, folder / "known_hosts"
    try:
        key.touch(mode=0o600)
        key.write_bytes(private_key.read_bytes())
    except OSError as error:
        raise WorkloadFailure(f"the gang's key {private_key} cannot be read: {error.strerror}") from None
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


TOKEN_VARIABLE = "GPUVAL_GANG_TOKEN"  # noqa: S105 - the variable's name, no secret
KEYS_VARIABLE = "GPUVAL_GANG_KEYS"
KEY_FILE = "id_ed25519"
OUTSIDE = "was ended from outside: time limit, or the run was cancelled"
FAREWELL_SECONDS = 60.0
POLL_SECONDS = 0.2
#: Seconds for the last message of a member that a signal ends: KILL follows after 10 s.
OUTSIDE_SECONDS = 7.0


def introduce(gang: Gang, kind: str = "") -> None:
    """Print which member of the gang this node is; ``kind``: words on its accelerator."""
    print(
        f"member {gang.index + 1} of {len(gang.members)} of gang {gang.name}: {gang.own.node}, {gang.own.slots} "
        f"processes{kind}; {gang.leader.node} leads",
        flush=True,
    )


@contextmanager
def taking_part(
    gang: Gang,
    described: dict[str, Any],
    limits: ChannelLimits,
    bring: Mapping[str, Any],
    beats: Beats = dict,
    on_stop: Callable[[GangStop], None] = lambda _stop: None,
) -> Iterator[ControlChannel]:
    """Context in which this node is a member of the gang; yields its end of the control channel. If a signal ends this
    node, all members hear of it. If another member ends the gang, ``described`` (``environment.gang`` of the result)
    gets its name. Raises ``WorkloadFailure`` without a token."""
    token, path = os.environ.get(TOKEN_VARIABLE), keys_folder(os.environ) / "token"
    try:
        token = token or path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise WorkloadFailure(f"the gang's token {path} cannot be read: {error.strerror}") from None
    with ControlChannel(gang, token, limits, beats, on_stop, bring, find_ended) as channel:
        try:
            yield channel
        except StoppedError as error:
            described.update({"stopped_by": error.stop.node}, **({"lost": error.stop.node} if error.stop.lost else {}))
            raise
        except SystemExit:
            with suppress(StoppedError):
                channel.end(OUTSIDE, OUTSIDE_SECONDS, weight=CAUSE, node=None)
            raise


def join(channel: ControlChannel, gang: Gang) -> list[Any]:
    """Wait until all members have joined; return the data of their greetings, in order. Raises ``StoppedError``."""
    brought = channel.join()
    show(f"all {len(gang.members)} members have joined")
    return brought


def meet(channel: ControlChannel, name: str, word: str, check: Callable[[], object] = lambda: None) -> list[str]:
    """Wait until all members reach the meeting point ``name``; return the ``word`` that each sent. ``check``, called
    repeatedly until then, may raise to end the wait. Raises ``StoppedError`` if the gang ends."""
    channel.arrive(name, word)
    begun, waiting = time.monotonic(), Waiting(lambda text: print(text, flush=True))
    while True:
        words = channel.met(name)
        check()
        if words is not None:
            return words
        waiting.say(f"waiting for the other nodes at the {name} for {time.monotonic() - begun:.0f} s")
        time.sleep(POLL_SECONDS)


def check_port(gang: Gang, port: int, setting: str) -> None:
    """Raise ``WorkloadFailure`` if the ranks' rendezvous port on the leader is occupied; ``setting``: its option."""
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
    """Start the member's SSH server, until ``stack`` closes. Raises ``WorkloadFailure`` without a program or key."""
    check_blanks(folder, keys, sys.executable)
    adopt_orphans()
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


#: File beside the gang's JSON document: signed URLs of nodes' records, and the store's certificate authority.
RECORDS_FILE = "gang_records.json"
#: States of a node's stage after which the node cannot join the gang any more.
ENDED = ("failure", "crash", "timeout")
ANSWER_SECONDS = 5.0
MAX_BYTES = 8 << 20
MAX_MESSAGE = 500


def find_ended(nodes: Sequence[str], environ: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """Return the first of ``nodes`` whose record in the store tells that this stage and attempt ended there without
    success, and why: so the leader learns why a node does not join. None without signed URLs. Takes seconds."""
    try:
        document = json.loads(Path(environ[FILE_VARIABLE]).with_name(RECORDS_FILE).read_text(encoding="utf-8"))
        stage, attempt = environ["GPUVAL_STAGE"], int(environ["GPUVAL_ATTEMPT"])
    except (KeyError, OSError, ValueError):
        return None
    context = ssl.create_default_context(cadata=document["ca"] or None)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
    for node in (node for node in nodes if f"{stage}/{node}" in document["urls"]):
        try:
            with opener.open(document["urls"][f"{stage}/{node}"], timeout=ANSWER_SECONDS) as answer:
                record = json.loads(answer.read(MAX_BYTES))
        except (urllib.error.HTTPError, ValueError, RecursionError):  # no record yet, or none that can be read
            continue
        except (OSError, http.client.HTTPException):  # the store is unreachable: the next check may reach it
            return None
        if isinstance(record, dict) and record.get("attempt") == attempt and record.get("state") in ENDED:
            return node, " ".join(str(record.get("message")).split())[:MAX_MESSAGE]
    return None


#: The shortest prefix to which a network is widened: a wider network would include other interfaces of the hosts.
WIDEST_PREFIX = 16
LOOK_UP_SECONDS = 1.0


def resolved(address: str, seconds: float) -> str:
    """Return the IP address of a host name (or IP address). A pod's name is known only some time after its start:
    raises ``WorkloadCrash`` if the name is unknown for ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            if time.monotonic() >= deadline:
                raise WorkloadCrash(
                    f"{address}, by which the others reach this node, is not known here after {seconds:g} s "
                    f"({error.strerror}): see whether the name server of the cluster answers"
                ) from None
        time.sleep(LOOK_UP_SECONDS)


def own_address(gang: Gang, seconds: float) -> str:
    """Return this node's IP address: if its name means 127.0.1.1, the source address of packets to another member.
    Raises ``WorkloadCrash`` if the name is unknown for ``seconds``."""
    address = resolved(gang.own.address, seconds)
    other_addresses = [member.address for member in gang.members if member is not gang.own]
    if address != gang.own.address and other_addresses and ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        with suppress(OSError, ValueError, WorkloadCrash):
            return route_to(resolved(other_addresses[0], 0)).source or address
    return address


def interface_of(address: str) -> str | None:
    """Return the name of this host's network interface that has an IP address; None if none has, or for a name."""
    interface = _interface_with(address)
    return interface[0] if interface else None


def interface_environment(gang: Gang, address: str, *, with_nccl: bool) -> dict[str, str]:
    """Return variables that bind gloo, and NCCL if ``with_nccl``, to the interface with this node's IP ``address``."""
    interface = interface_of(address)
    is_own_name = address != gang.own.address  # a host's own name often is 127.0.1.1, unreachable for others
    if not interface or (is_own_name and interface == "lo"):
        return {}
    return {"GLOO_SOCKET_IFNAME": interface, **({"NCCL_SOCKET_IFNAME": f"={interface}"} if with_nccl else {})}


def network_of(address: str, addresses_of_others: Iterable[str]) -> str | None:
    """Return the network of an address of this host, as ``10.0.0.0/24``, widened until it contains the others'
    addresses. None for names, IPv6, the loopback interface, an address that no interface has, or a network wider than
    /16."""
    interface = _interface_with(address)
    try:
        ip_addresses = [ipaddress.IPv4Address(member_address) for member_address in addresses_of_others]
    except ValueError:
        return None
    if not interface or interface[1].version == 6 or interface[1].is_loopback:
        return None
    network = interface[1].network
    widest = min(WIDEST_PREFIX, network.prefixlen)
    while any(member_address not in network for member_address in ip_addresses):
        network = network.supernet()
    return str(network) if network.prefixlen >= widest else None


def _interface_with(address: str) -> tuple[str, ipaddress.IPv4Interface | ipaddress.IPv6Interface] | None:
    """Return the name of this host's interface with an IP address, and the address with its network; None without."""
    with suppress(OSError, ValueError):
        ip_address = ipaddress.ip_address(address.partition("%")[0])
        for number, interface in addresses():
            if interface.ip == ip_address:
                return socket.if_indextoname(number), interface
    return None
