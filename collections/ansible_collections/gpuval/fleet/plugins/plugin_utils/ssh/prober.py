"""Probes nodes over SSH: TCP, banner, host key, login, the command `true`.

paramiko handles nodes that are reached directly: a hundred logins cost seconds, and passwords work. OpenSSH handles
what paramiko lacks: proxies, host certificates, and any login that paramiko cannot decide.

Nothing outlives `probe_all`: every connection is closed, and every ssh ends with its children.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import paramiko

from . import findings, known_hosts
from .findings import REACHABLE, Policy, ProbeError, ProbeFinding, Where
from .known_hosts import CA, HostKey, KnownHost, Pins
from .login_keys import given_key, offered_keys
from .openssh import SshEnd, run_ssh

#: Concurrent connections; of these, concurrent logins, and concurrent ssh processes.
AT_ONCE, LOGINS, CLIENTS = 128, 16, 8
#: Each step after the TCP connection may take this multiple of the connect timeout.
PATIENCE = 3
#: Time limit of `true` after the login; a busy node starts a shell slowly.
COMMAND_SECONDS = 30
RSA = ("rsa-sha2-512", "rsa-sha2-256")
#: Fast key exchange first: a probe transfers nothing that needs protection against later decryption.
QUICK_KEX = ("curve25519-sha256@libssh.org",)

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


@dataclass(frozen=True)
class SshTarget:
    """A node and Ansible's own settings of its connection."""

    node: str
    #: False: no SSH connection (local, docker, ...), so nothing to probe.
    ssh: bool = True
    connection: str = "ssh"
    host: str = ""
    executable: str = "ssh"
    #: What Ansible puts on ssh's command line, in its order.
    options: tuple[str, ...] = ()
    password: str = field(default="", repr=False)
    #: ansible_ssh_private_key and its passphrase: the key itself, for which Ansible runs an agent.
    private_key: str = field(default="", repr=False)
    passphrase: str = field(default="", repr=False)
    declared: tuple[str, ...] = ()


class UndecidedError(Exception):
    """paramiko cannot tell; OpenSSH decides."""


class Prober:
    """Probes nodes against the pins of an inventory."""

    def __init__(self, pins: Pins, timeout: float, accept_new: bool):
        self.pins = pins
        self.timeout = timeout
        self.accept_new = accept_new
        self._pinned = pins.entries()
        #: Effective settings of each node that was probed.
        self.settings: list[Mapping[str, tuple[str, ...]]] = []
        self._own: dict[tuple[Path, ...], list[known_hosts.KnownHostsEntry]] = {}
        self._lock = threading.Lock()
        self._logins = threading.BoundedSemaphore(LOGINS)
        self._clients = threading.BoundedSemaphore(CLIENTS)

    def probe_all(self, targets: Iterable[SshTarget]) -> dict[str, ProbeFinding]:
        targets = list(targets)
        if not targets:
            return {}
        with ThreadPoolExecutor(min(AT_ONCE, len(targets)), thread_name_prefix="gpuval-probe") as pool:
            return dict(zip((target.node for target in targets), pool.map(self.probe, targets)))

    def probe(self, target: SshTarget) -> ProbeFinding:
        began = time.monotonic()
        if not target.ssh:
            return ProbeFinding(REACHABLE, f"not probed: connection {target.connection}")
        try:
            finding = self._probe(target)
        except ProbeError as failed:
            finding = failed.finding
        except Exception as error:  # one failing probe must not end the others
            text = f"the probe itself failed: {type(error).__name__}: {error}"
            finding = ProbeFinding("ssh_error", text, f"try it by hand: ansible -m ping -i INVENTORY {target.node}")
        return replace(finding, seconds=time.monotonic() - began)

    def _probe(self, target: SshTarget) -> ProbeFinding:
        at = self._effective(target)
        policy = self._policy(at, target)
        if at.proxy or policy.by_authority or self._needs_openssh(at, policy):
            with self._clients:
                return self._by_openssh(target, at, policy)
        connection = self._connect(at)
        with contextlib.closing(connection):
            await_banner(connection, at, self.timeout * PATIENCE)
            with self._logins:
                try:
                    return self._by_paramiko(connection, target, at, policy)
                except UndecidedError:
                    pass
        with self._clients:
            return self._by_openssh(target, at, policy)

    # --- what is known before ---

    def _effective(self, target: SshTarget) -> Where:
        with self._clients:
            done = run_ssh([target.executable, "-G", *target.options, target.host], 10)
        if done.code != 0:
            detail = findings.one_line(done.stderr.strip() or "no output", 300)
            remedy = "fix ssh_config, or the ansible_ssh_*_args of this node"
            raise ProbeError(ProbeFinding("ssh_error", f"ssh rejects its settings: {detail}", remedy))
        settings = findings.effective(done.stdout)
        self.settings.append(settings)
        return findings.where(target.node, settings)

    def _policy(self, at: Where, target: SshTarget) -> Policy:
        own = self._own_entries(at)
        exact = known_hosts.lookup(own, at.host, at.port, at.alias)
        plain = KnownHost() if exact else known_hosts.lookup_with_plain_name(own, at.host, at.port, at.alias)
        return Policy(
            pinned=known_hosts.lookup(self._pinned, at.host, at.port, at.alias),
            own=exact,
            plain=plain,
            declared=target.declared,
            accept_new=self.accept_new,
        )

    def _own_entries(self, at: Where) -> list[known_hosts.KnownHostsEntry]:
        """The operator's own known_hosts files for this node."""
        names = ("userknownhostsfile", "globalknownhostsfile")
        files = tuple(path for name in names for path in findings.key_files(at.settings, name))
        with self._lock:
            if files not in self._own:
                self._own[files] = known_hosts.read(file for file in files if file != self.pins.path)
            return self._own[files]

    @staticmethod
    def _needs_openssh(at: Where, policy: Policy) -> bool:
        """Whether the connection needs a feature that paramiko lacks."""
        for setting in ("bindaddress", "bindinterface"):
            if at.settings.get(setting, ("none",))[0] not in ("none", ""):
                return True
        kinds = {name for kind in policy.kinds for name in (RSA if kind == "ssh-rsa" else (kind,))}
        return bool(kinds) and not kinds & set(paramiko.Transport._preferred_keys)

    # --- directly ---

    def _connect(self, at: Where) -> socket.socket:
        deadline = time.monotonic() + self.timeout
        error: OSError = TimeoutError()
        for family, kind, protocol, _, address in self._resolve(at):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(left)
                connection.connect(address)
            except OSError as failure:
                connection.close()
                error = failure
                continue
            return connection
        raise ProbeError(findings.of_socket_error(error, at, self.timeout))

    def _resolve(self, at: Where) -> list[tuple]:
        """The addresses of a name, within the connect timeout."""
        family = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(
            at.settings.get("addressfamily", ("any",))[0], 0
        )
        found: list = []

        def resolve() -> None:
            try:
                found.append(socket.getaddrinfo(at.host, at.port, family, socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:
                found.append(error if isinstance(error, OSError) else socket.gaierror(0, str(error)))

        resolver = threading.Thread(target=resolve, daemon=True, name="gpuval-resolve")  # getaddrinfo has no deadline
        resolver.start()
        resolver.join(self.timeout)
        if not found:
            found.append(socket.gaierror(0, f"the name service did not answer within {self.timeout:g} s"))
        if isinstance(found[0], OSError):
            raise ProbeError(findings.of_socket_error(found[0], at, self.timeout))
        return found[0]

    def _by_paramiko(self, connection: socket.socket, target: SshTarget, at: Where, policy: Policy) -> ProbeFinding:
        with transport(connection) as line:
            options = line.get_security_options()
            options.kex = _first(QUICK_KEX, options.kex)
            wanted = [name for kind in policy.kinds for name in (RSA if kind == "ssh-rsa" else (kind,))]
            options.key_types = _first(wanted, options.key_types)
            line.banner_timeout = line.handshake_timeout = line.auth_timeout = self.timeout * PATIENCE
            try:
                line.start_client(timeout=self.timeout * PATIENCE)
                shown = line.get_remote_server_key()
            except EOFError:
                raise ProbeError(findings.closed(at)) from None
            except (paramiko.SSHException, OSError) as error:
                if not line.is_active() and "negotiation" not in str(error).lower():
                    raise UndecidedError from error
                raise ProbeError(findings.hung(at, self.timeout * PATIENCE, "completes no key exchange")) from None
            finding = findings.trust(HostKey(shown.get_name(), shown.asbytes()), policy, at)
            if finding.state != REACHABLE:
                if target.declared and finding.state == "wrong_host_key":
                    raise UndecidedError  # a declared fingerprint may be that of another of its keys
                return finding
            try:
                self._login(line, target, at)
            except ProbeError as failed:
                return _with_pins(failed.finding, finding)
            return replace(finding, message=f"{at.user}@{at.address}")

    def _login(self, line: paramiko.Transport, target: SshTarget, at: Where) -> None:
        """Log in and run `true`. Raises UndecidedError for anything but success or a refused password."""
        try:
            for key in (
                [given_key(target.private_key, target.passphrase, at)] if target.private_key else offered_keys(at)
            ):
                with contextlib.suppress(paramiko.AuthenticationException):
                    line.auth_publickey(at.user, key)
                if line.is_authenticated():
                    return self._command(line, at)
            if target.password:
                line.auth_password(at.user, target.password)
                if line.is_authenticated():
                    return self._command(line, at)
        except paramiko.AuthenticationException as error:
            raise ProbeError(findings.denied(at, f"password and keys were refused ({error})")) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise UndecidedError from error
        if target.password:
            raise ProbeError(findings.denied(at, "the password alone is not enough"))
        if target.private_key:
            raise ProbeError(findings.denied(at, "the key in ansible_ssh_private_key was refused"))
        raise UndecidedError

    def _command(self, line: paramiko.Transport, at: Where) -> None:
        try:
            channel = line.open_session(timeout=COMMAND_SECONDS)
            channel.settimeout(COMMAND_SECONDS)
            channel.exec_command("true")
            if not channel.status_event.wait(COMMAND_SECONDS):
                raise ProbeError(findings.hung(at, COMMAND_SECONDS, "runs no command after the login"))
            code = channel.recv_exit_status()
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise UndecidedError from error
        if code != 0:
            raise UndecidedError

    # --- by OpenSSH ---

    def _by_openssh(self, target: SshTarget, at: Where, policy: Policy) -> ProbeFinding:
        """Probe by ssh itself, which writes the presented key into a file of its own."""
        with tempfile.TemporaryDirectory(prefix="gpuval-probe-") as folder:
            file = Path(folder) / "known_hosts"
            if not policy.declared and policy.by_authority:
                return self._with_authority(target, at, policy, file)
            # first the key without a login: credentials go only to a verified host
            first = self._ssh(target, file, "accept-new", login=False, kinds=policy.kinds)
            shown = [entry.key for entry in known_hosts.read([file])]
            if not shown and first.code is None:
                return findings.hung(at, self.timeout * (PATIENCE + 1), "presents no host key")
            if not shown:
                return findings.of_ssh_output(first.stderr, at, self.timeout)
            finding = findings.trust(shown[0], policy, at)
            if finding.state == "wrong_host_key" and policy.declared:
                finding = self._other_kinds(target, at, policy, file, finding)
            if finding.state != REACHABLE:
                return finding
            if target.password or target.private_key:
                return replace(finding, message=f"{at.address} has the right host key; the login was not tried")
            done = self._ssh(target, file, "yes", kinds=[entry.key.kind for entry in known_hosts.read([file])])
            if done.code == 0:
                return replace(finding, message=f"{at.user}@{at.address}")
            return self._refused(done, at, finding)

    def _other_kinds(
        self, target: SshTarget, at: Where, policy: Policy, file: Path, finding: ProbeFinding
    ) -> ProbeFinding:
        """The finding for another key of the node, if one of those is declared."""
        tried = {entry.key.kind for entry in known_hosts.read([file])}
        for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa"):
            if kind in tried:
                continue
            file.unlink(missing_ok=True)
            self._ssh(target, file, "accept-new", login=False, kinds=[kind], only=True)
            for entry in known_hosts.read([file]):
                other = findings.trust(entry.key, policy, at)
                if other.state == REACHABLE:
                    return other
        return finding

    def _with_authority(self, target: SshTarget, at: Where, policy: Policy, file: Path) -> ProbeFinding:
        known = policy.pinned or policy.own or policy.plain
        lines = [(CA, at.name, entry.key) for entry in known.authorities]
        file.write_text("".join(f"{marker} {name} {key}\n" for marker, name, key in lines))
        done = self._ssh(target, file, "yes", login=not (target.password or target.private_key))
        pins = tuple((name, marker, key) for marker, name, key in lines) if not policy.pinned else ()
        if done.code == 0:
            return ProbeFinding(REACHABLE, f"{at.user}@{at.address}, known by a certificate authority", pins=pins)
        return self._refused(done, at, ProbeFinding(REACHABLE, ""))

    def _refused(self, done: SshEnd, at: Where, finding: ProbeFinding) -> ProbeFinding:
        if done.code is None:
            refused = findings.hung(at, self.timeout * PATIENCE, "completes no login")
        elif done.code != 255:
            words = findings.one_line(f"{done.stdout} {done.stderr}".strip(), 200) or "no reason given"
            refused = findings.denied(at, f"the login works, but a command exits with status {done.code}: {words}")
        else:
            refused = findings.of_ssh_output(done.stderr, at, self.timeout)
        return _with_pins(refused, finding)

    def _ssh(self, target, file, strict, login=True, kinds=(), only=False) -> SshEnd:
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": strict,
            "UserKnownHostsFile": f'"{str(file).replace("%", "%%")}"',
            "GlobalKnownHostsFile": "none",
            "HashKnownHosts": "no",
            "UpdateHostKeys": "no",
            "VerifyHostKeyDNS": "no",
            "CheckHostIP": "no",
            "ControlMaster": "no",
            "ControlPath": "none",
            "ClearAllForwardings": "yes",
            "ForwardAgent": "no",
            "PermitLocalCommand": "no",
            "RequestTTY": "no",
            "ConnectTimeout": str(max(1, round(self.timeout))),
            "ConnectionAttempts": "1",
            "NumberOfPasswordPrompts": "0",
            "LogLevel": "INFO",
        }
        if not login:
            options["PreferredAuthentications"] = "none"
        names = [name for kind in kinds for name in ((*RSA, kind) if kind == "ssh-rsa" else (kind,))]
        if names:
            options["HostKeyAlgorithms"] = ("" if only else "^") + ",".join(dict.fromkeys(names))
        words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        command = [target.executable, "-n", "-T", *words, *target.options, target.host, "true"]
        return run_ssh(command, self.timeout * (PATIENCE + 1) + (COMMAND_SECONDS if login else 0))


def await_banner(connection: socket.socket, at: Where, seconds: float) -> None:
    """Wait until the server's SSH banner is readable, without reading it. Raises ProbeError."""
    deadline = time.monotonic() + seconds
    received = b""
    while True:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            peeked = connection.recv(512, socket.MSG_PEEK)
        except TimeoutError:
            if received:
                raise ProbeError(findings.no_ssh(at, received)) from None
            raise ProbeError(findings.hung(at, seconds, "sends no SSH banner")) from None
        except OSError:
            raise ProbeError(findings.closed(at)) from None
        if not peeked:
            raise ProbeError(findings.closed(at))
        if any(line.startswith(b"SSH-") for line in peeked.splitlines()):
            return
        grown, received = len(peeked) > len(received), peeked
        if len(peeked) >= 512 or (received.startswith((b"HTTP/", b"220", b"\x15\x03", b"RFB "))):
            raise ProbeError(findings.no_ssh(at, received))
        if not grown:  # other lines may precede a banner
            if time.monotonic() > deadline - 0.5:
                raise ProbeError(findings.no_ssh(at, received))
            time.sleep(0.1)


@contextlib.contextmanager
def transport(connection: socket.socket) -> Iterator[paramiko.Transport]:
    line = paramiko.Transport(connection)
    try:
        yield line
    finally:
        line.close()
        line.join(5)


def _with_pins(refused: ProbeFinding, trusted: ProbeFinding) -> ProbeFinding:
    """The host key was verified although the login failed: it is pinned too."""
    return replace(
        refused, fingerprint=trusted.fingerprint, pins=trusted.pins, new=trusted.new, replaced=trusted.replaced
    )


def _first(wanted: Iterable[str], offered: Iterable[str]) -> tuple[str, ...]:
    offered = tuple(offered)
    chosen = tuple(dict.fromkeys(name for name in wanted if name in offered))
    return chosen + tuple(name for name in offered if name not in chosen)
