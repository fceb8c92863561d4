"""Probes nodes over SSH: TCP, banner, host key, login, the command `true`.

OpenSSH logs in, as Ansible's own connections do: with every option of ssh_config, agents, certificates and hardware
keys. Before, TCP and banner of nodes without a proxy are tried without ssh, for many nodes at once.

Nothing outlives `probe_all`: every connection is closed, and every ssh ends with its children.
"""

import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.plugins.loader import connection_loader

from ...module_utils.network.parallel import in_parallel
from ..core.paths import project_path
from . import findings, known_hosts
from .findings import REACHABLE, Policy, ProbeError, ProbeFinding, Where
from .known_hosts import CA, DEFAULT_PORT, HostKeyError, KnownHost, Pins, pin_file
from .openssh import NO_SECRETS, LoginSecrets, SshEnd, ended_by_signals, kex_options, run_ssh, ssh_options

#: Maximum concurrent connections, and maximum concurrent ssh processes.
AT_ONCE, CLIENTS = 128, 16
#: Time limit of each step after the TCP connection, as a multiple of the connect timeout.
PATIENCE = 3
#: Seconds that the command `true` may take after the login; a busy node starts a shell slowly.
COMMAND_SECONDS = 30
#: Names of Ansible connections that use OpenSSH.
SSH = ("ssh", "ansible.builtin.ssh", "smart")
#: Options of ssh that a probe turns off.
OFF = (
    "HashKnownHosts",
    "UpdateHostKeys",
    "VerifyHostKeyDNS",
    "CheckHostIP",
    "ControlMaster",
    "ForwardAgent",
    "PermitLocalCommand",
    "RequestTTY",
    "AddKeysToAgent",
)
RSA = ("rsa-sha2-512", "rsa-sha2-256")


@dataclass(frozen=True)
class SshTarget:
    """A node to probe, with Ansible's settings of its connection."""

    node: str
    #: False for other connections (local, docker, ...), which are not probed.
    ssh: bool = True
    connection: str = "ssh"
    host: str = ""
    executable: str = "ssh"
    #: Options that Ansible puts on ssh's command line, in the same order.
    options: tuple[str, ...] = ()
    secrets: LoginSecrets = NO_SECRETS
    declared: tuple[str, ...] = ()


class Prober:
    """Probes nodes over SSH against the pinned host keys of an inventory. `timeout_seconds`: to connect; `accept_new`:
    whether an unknown host key is accepted at the first contact."""

    def __init__(self, pins: Pins, timeout_seconds: float, accept_new: bool):
        self.pins = pins
        self.timeout_seconds = timeout_seconds
        self.accept_new = accept_new
        self._pinned = pins.entries()
        #: The effective settings, by `ssh -G`, of each node that was probed.
        self.settings: list[Mapping[str, tuple[str, ...]]] = []
        self._own: dict[tuple[Path, ...], list[known_hosts.KnownHostsEntry]] = {}
        self._lock = threading.Lock()
        self._clients = threading.BoundedSemaphore(CLIENTS)

    def probe_all(self, targets: Iterable[SshTarget]) -> dict[str, ProbeFinding]:
        targets = list(targets)
        if not targets:
            return {}
        with (
            ended_by_signals(),
            ThreadPoolExecutor(min(AT_ONCE, len(targets)), thread_name_prefix="gpuval-probe") as pool,
        ):
            return dict(zip((target.node for target in targets), pool.map(self.probe, targets)))

    def probe(self, target: SshTarget) -> ProbeFinding:
        began = time.monotonic()
        if not target.ssh:
            return ProbeFinding(REACHABLE, f"not probed: connection {target.connection}")
        try:
            finding = self._probe(target)
        except ProbeError as failed:
            finding = failed.finding
        except Exception as error:  # a failed probe must not end other probes
            text = f"the probe itself failed: {type(error).__name__}: {error}"
            finding = ProbeFinding("ssh_error", text, f"try it by hand: ansible -m ping -i INVENTORY {target.node}")
        return replace(finding, seconds=time.monotonic() - began)

    def _probe(self, target: SshTarget) -> ProbeFinding:
        at = self._effective(target)
        if not (at.proxy or at.is_bound):
            with contextlib.closing(self._connect(at)) as connection:
                await_banner(connection, at, self.timeout_seconds * PATIENCE)
        with self._clients:
            return self._by_openssh(target, at, self._policy(at, target))

    # --- settings and known host keys ---

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
        names = ("userknownhostsfile", "globalknownhostsfile")  # the operator's own
        files = tuple(path for name in names for path in findings.key_files(at.settings, name))
        with self._lock:
            if files not in self._own:
                self._own[files] = known_hosts.read(file for file in files if file != self.pins.path)
        exact = known_hosts.lookup(self._own[files], at.host, at.port, at.alias)
        is_plain = not (exact or at.alias or at.port == DEFAULT_PORT)
        return Policy(
            pinned=known_hosts.lookup(self._pinned, at.host, at.port, at.alias),
            own=exact,
            plain=known_hosts.lookup(self._own[files], at.host, DEFAULT_PORT) if is_plain else KnownHost(),
            declared=target.declared,
            accept_new=self.accept_new,
        )

    # --- TCP connection without ssh ---

    def _connect(self, at: Where) -> socket.socket:
        """Connect to the first address of the node that accepts a TCP connection within the timeout."""
        deadline = time.monotonic() + self.timeout_seconds
        families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
        family = families.get(at.settings.get("addressfamily", ("any",))[0], 0)

        def resolve() -> Any:
            try:
                return socket.getaddrinfo(at.host, at.port, family, socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                return error if isinstance(error, OSError) else socket.gaierror(0, str(error))

        late = socket.gaierror(0, f"the name service did not answer within {self.timeout_seconds:g} s")
        answer = in_parallel({at.host: resolve}, self.timeout_seconds).get(at.host, late)
        error = answer if isinstance(answer, OSError) else TimeoutError()
        for address_family, kind, protocol, _, address in () if answer is error else answer:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                break
            connection = socket.socket(address_family, kind, protocol)
            try:
                connection.settimeout(seconds_left)
                connection.connect(address)
            except OSError as failure:
                connection.close()
                error = failure
            else:
                return connection
        raise ProbeError(findings.of_socket_error(error, at, self.timeout_seconds))

    # --- login by OpenSSH ---

    def _by_openssh(self, target: SshTarget, at: Where, policy: Policy) -> ProbeFinding:
        """Log in by ssh with a temporary known_hosts file. Only a trusted host gets credentials: if its keys are
        unknown and no new key is accepted, ssh first reads the key without a login. With the node's secrets no login
        through a proxy is tried, since the proxy would get them too."""
        with tempfile.TemporaryDirectory(prefix="gpuval-probe-") as folder:
            file = Path(folder) / "known_hosts"
            if policy.by_authority:
                return self._login_by_authority(target, at, policy, file)
            trusted_keys, has_login = policy.trusted_keys(at), not (at.proxy and target.secrets)
            if has_login and (trusted_keys or policy.is_first_contact):
                file.write_text("".join(f"{at.name} {key}\n" for key in trusted_keys))
                done = self._ssh(target, at, file, "yes" if trusted_keys else "accept-new")
                if findings.KEY_REFUSED not in done.stderr:
                    return self._result(done, target, at, self._shown(done, file, policy, at))
                file.unlink(missing_ok=True)
            look = self._ssh(target, at, file, "accept-new", login=False, kinds=policy.kinds)
            finding = self._shown(look, file, policy, at)
            if finding is None:
                return self._result(look, target, at, None)
            if finding.state == "wrong_host_key" and policy.declared:
                finding = self._other_kinds(target, at, policy, file, finding)
            if finding.state != REACHABLE:
                return finding
            if not has_login:
                return replace(finding, message=f"{at.address} has the right host key; the login was not tried")
            return self._result(self._ssh(target, at, file, "yes"), target, at, finding)

    @staticmethod
    def _shown(done: SshEnd, file: Path, policy: Policy, at: Where) -> ProbeFinding | None:
        """The finding on the host key that the node presented, which ssh wrote into `file`; None if it wrote none."""
        keys, log = [entry.key for entry in known_hosts.read([file])], done.log.splitlines()
        shown = [key for key in keys if any(findings.shows(line, key) for line in log)]
        return findings.trust(shown[0], policy, at) if shown else None

    def _other_kinds(
        self, target: SshTarget, at: Where, policy: Policy, file: Path, finding: ProbeFinding
    ) -> ProbeFinding:
        """Try the node's other types of host keys: the finding of the first that can be trusted, else `finding`."""
        tried = {entry.key.kind for entry in known_hosts.read([file])}
        for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa"):
            if kind in tried:
                continue
            file.unlink(missing_ok=True)
            self._ssh(target, at, file, "accept-new", login=False, kinds=[kind], only=True)
            for entry in known_hosts.read([file]):
                other = findings.trust(entry.key, policy, at)
                if other.state == REACHABLE:
                    return other
        return finding

    def _login_by_authority(self, target: SshTarget, at: Where, policy: Policy, file: Path) -> ProbeFinding:
        """Log in to a node whose host key a trusted authority signed; `file`: the known_hosts file to write for it."""
        pins = tuple((at.name, CA, entry.key) for entry in policy.known.authorities)
        file.write_text("".join(f"{marker} {name} {key}\n" for name, marker, key in pins))
        done = self._ssh(target, at, file, "yes", login=not (at.proxy and target.secrets))
        finding = self._result(done, target, at, None)
        if finding.state != REACHABLE:
            return finding
        pins = () if policy.pinned else pins
        return replace(finding, message=f"{finding.message}, known by a certificate authority", pins=pins)

    def _result(self, done: SshEnd, target: SshTarget, at: Where, trusted: ProbeFinding | None) -> ProbeFinding:
        """The finding of an ended ssh call. `trusted`: the finding on the host key, None if it was not verified."""
        if done.code == 0:
            finding = ProbeFinding(REACHABLE, f"{at.user}@{at.address}")
        elif done.code is None:
            finding = findings.hung(at, done.seconds, findings.unfinished_step(done.log))
        elif done.code != 255:
            words = findings.one_line(f"{done.stdout} {done.stderr}".strip(), 200) or "no reason given"
            finding = findings.denied(at, f"the login works, but a command exits with status {done.code}: {words}")
        else:
            finding = findings.of_ssh_output(done.stderr, at, self.timeout_seconds)
            if finding.state == "ssh_error" and not (at.proxy or trusted) and findings.CLOSED.search(done.stderr):
                finding = findings.closed(at)
            if finding.state == "login_denied" and target.secrets:
                finding = target.secrets.explained(finding, at, done.log)
        if trusted is None:
            return finding
        # Pin the verified host key even if the login failed.
        return replace(
            finding, fingerprint=trusted.fingerprint, pins=trusted.pins, new=trusted.new, replaced=trusted.replaced
        )

    def _ssh(self, target, at, file, strict, login=True, kinds=None, only=False) -> SshEnd:
        """Run ssh on the node with the known_hosts `file`. `strict`: its StrictHostKeyChecking; `login`: whether to log
        in. `kinds`: types of host keys to request first, by default those in the file; `only`: request no others."""
        if kinds is None:
            kinds = [entry.key.kind for entry in known_hosts.read([file]) if not entry.marker]
        options = {
            "StrictHostKeyChecking": strict,
            "UserKnownHostsFile": f'"{str(file).replace("%", "%%")}"',
            "GlobalKnownHostsFile": "none",
            "ControlPath": "none",
            "ClearAllForwardings": "yes",
            **dict.fromkeys(OFF, "no"),
            # ssh's timeout to connect includes the wait for the banner
            "ConnectTimeout": str(max(1, round(self.timeout_seconds if at.proxy else self.timeout_seconds * PATIENCE))),
            "ConnectionAttempts": "1",
            "LogLevel": "DEBUG1",
            "FingerprintHash": "sha256",
        }
        if not login:
            options["PreferredAuthentications"] = "none"
        if "knownhostscommand" in at.settings:  # older versions of ssh do not know this option
            options["KnownHostsCommand"] = "none"
        names = [name for kind in kinds for name in ((*RSA, kind) if kind == "ssh-rsa" else (kind,))]
        if names:
            options["HostKeyAlgorithms"] = ("" if only else "^") + ",".join(dict.fromkeys(names))
        with (target.secrets if login else NO_SECRETS).offered() as (secret_options, environment):
            words = [word for key, value in (options | secret_options).items() for word in ("-o", f"{key}={value}")]
            with self._lock:  # the first call of kex_options runs ssh
                words += kex_options([at.settings])
            words += target.options
            seconds = self.timeout_seconds * (PATIENCE + 1) + (COMMAND_SECONDS if login else 0)
            words.append("-v")  # overrides a -q in Ansible's options
            return run_ssh([target.executable, "-n", "-T", *words, target.host, "true"], seconds, environment)


def await_banner(connection: socket.socket, at: Where, seconds: float) -> None:
    """Wait up to `seconds` until the server's SSH banner is readable, without reading it. Raises ProbeError."""
    deadline = time.monotonic() + seconds
    received = b""
    while True:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            peeked = connection.recv(512, socket.MSG_PEEK)
        except TimeoutError:
            late = findings.no_ssh(at, received) if received else findings.hung(at, seconds, "sends no SSH banner")
            raise ProbeError(late) from None
        except OSError:
            peeked = b""
        if not peeked:
            raise ProbeError(findings.closed(at))
        if any(line.startswith(b"SSH-") for line in peeked.splitlines()):
            return
        grown, received = len(peeked) > len(received), peeked
        if len(peeked) >= 512 or (received.startswith((b"HTTP/", b"220", b"\x15\x03", b"RFB "))):
            raise ProbeError(findings.no_ssh(at, received))
        if not grown:  # other lines may come before the banner
            if time.monotonic() > deadline - 0.5:
                raise ProbeError(findings.no_ssh(at, received))
            time.sleep(0.1)


def from_variables(name: str, variables: Mapping[str, Any], default_connection: str | None) -> SshTarget:
    """The target to probe for a host with these variables. `default_connection`: the connection plugin by play, command
    line and configuration."""
    connection = str(variables.get("ansible_connection") or default_connection or "ssh")
    if connection not in SSH:
        return SshTarget(node=name, ssh=False, connection=connection)
    connection_loader.get("ssh", class_only=True)  # loads the definitions of its options
    known = constants.config.get_plugin_vars("connection", "ssh")
    given = {key: variables[key] for key in known if "[" not in key and key in variables}
    chosen = constants.config.get_plugin_options("connection", "ssh", variables=given)
    declared = variables.get("gpuval_host_keys") or []
    try:
        checked = findings.check_declared([declared] if isinstance(declared, str) else declared)
    except HostKeyError as error:
        raise HostKeyError(f"gpuval_host_keys of {name}: {error}") from None
    return SshTarget(
        node=name,
        host=str(chosen.get("host") or name),
        executable=str(chosen.get("ssh_executable") or "ssh"),
        options=ssh_options(chosen.get),
        secrets=LoginSecrets(
            password=str(chosen.get("password") or ""),
            private_key=str(chosen.get("private_key") or ""),
            passphrase=str(chosen.get("private_key_passphrase") or ""),
        ),
        declared=checked,
    )


def pin(pins: Pins, probed: Mapping[str, ProbeFinding]) -> bool:
    """Pin the host keys that a probe accepted. Returns whether any of them is new."""
    pins.make()
    new = [key for finding in probed.values() for key in finding.pins]
    replaced = [name for finding in probed.values() for name in finding.replaced]
    return bool(pins.add(new, replaced)) if new else False


def probe_again(
    target: SshTarget, state_dir: str, sources: Iterable[str], *, timeout: float, accept_new: bool
) -> ProbeFinding:
    """Probe a node again that was unreachable; its host key may still be unknown. `timeout`: seconds to connect. Raises
    ``HostKeyError``."""
    pins = Pins(pin_file(project_path(state_dir), sources))
    finding = Prober(pins, timeout, accept_new).probe(target)
    if target.ssh:
        pin(pins, {target.node: finding})
    return finding
