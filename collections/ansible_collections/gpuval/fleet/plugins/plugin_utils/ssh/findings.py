"""The result of probing a node: trust in its host key, the meaning of errors, the summary. Reads no file but keys."""

import errno
import os
import re
import shlex
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.escape import one_line
from ..core.grouping import values_by_key
from ..core.paths import expand_user
from ..core.text import some_of
from ..records.failure_classes import row_of
from ..records.launch_errors import NAMED, classify
from .known_hosts import HostKey, KnownHost, host_id, parse_key

REACHABLE = "reachable"
#: States of findings in the order of the summary; all other states come last.
STATES = (
    *(REACHABLE, "wrong_host_key", "unknown_host_key", "login_denied", "booting", "unknown_name", "refused"),
    "no_route",
    "timeout",
    "hung",
    "no_ssh",
    "jump_host",
    "ssh_error",
)
MESSAGE_CHARACTERS = 500
#: How many nodes, or new keys, a summary names before it counts the rest.
SHOWN = 12


@dataclass(frozen=True)
class ProbeFinding:
    """The result of probing one node."""

    state: str
    message: str
    remedy: str = ""
    seconds: float = 0.0
    #: Fingerprint of the host key that the node presented.
    fingerprint: str = ""
    #: Whether the host key was unknown before, and is pinned now.
    new: bool = False
    #: Lines of known_hosts to pin, as (name, marker, key); not part of the record.
    pins: tuple[tuple[str, str, HostKey], ...] = field(default=(), repr=False)
    #: Names in known_hosts whose other pins are removed.
    replaced: tuple[str, ...] = field(default=(), repr=False)

    @property
    def reason(self) -> dict[str, str]:
        """Failure class, message and remedy of the finding, as fields of the node's launch file."""
        return {"class": self.state, "message": self.message, "remedy": self.remedy}

    def document(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "message": one_line(self.message, MESSAGE_CHARACTERS),
            "remedy": self.remedy,
            "seconds": round(self.seconds, 3),
            "fingerprint": self.fingerprint,
        }


def class_finding(node: str, name: str, message: str) -> ProbeFinding:
    """The finding that tells why a scheduler cannot use a node. `name`: the failure class, which has the remedy."""
    return ProbeFinding(name, one_line(message, MESSAGE_CHARACTERS), row_of(name).remedy.replace("{node}", node))


class ProbeError(Exception):
    """The probe ended with this finding."""

    def __init__(self, finding: ProbeFinding):
        super().__init__(finding.message)
        self.finding = finding


#: Key files that ssh tries if none is configured.
_DEFAULT_KEY = re.compile(r"~/\.ssh/id_(?:rsa|dsa|ecdsa|ecdsa_sk|ed25519|ed25519_sk|xmss)")


@dataclass(frozen=True)
class Where:
    """How ssh reaches a node: the effective settings by `ssh -G`, with Ansible's options before them."""

    node: str
    host: str
    port: int
    user: str
    alias: str = ""
    proxy: str = ""
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The node's name in known_hosts files."""
        return self.alias.lower() or host_id(self.host, self.port)

    @property
    def address(self) -> str:
        return f"{self.host} port {self.port}"

    @property
    def is_bound(self) -> bool:
        """Whether the configuration sets the source address or interface of connections."""
        values = [self.settings.get(name, ("none",))[0] for name in ("bindaddress", "bindinterface")]
        return any(value not in ("none", "") for value in values)

    @property
    def own_keys(self) -> list[str]:
        """The configured key files, without those that ssh tries by default."""
        return [name for name in self.settings.get("identityfile", ()) if not _DEFAULT_KEY.fullmatch(name)]

    def login(self, *options: str) -> str:
        """The command that logs in as Ansible does: by its port, key and jump host."""
        keys = self.own_keys
        words = ["ssh", *options, "-p", str(self.port)]
        words += ["-i", keys[0]] if keys else []
        words += ["-J", jump] if (jump := self.settings.get("proxyjump", ("none",))[0]) != "none" else []
        return " ".join(_quoted(word) for word in [*words, f"{self.user}@{self.host}"])


def _quoted(word: str) -> str:
    """A word quoted for the shell, except a leading ~/, which the shell expands only without quotes."""
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)


def effective(text: str) -> dict[str, tuple[str, ...]]:
    """Parse the output of `ssh -G`: the values of each keyword, in order."""
    settings: dict[str, tuple[str, ...]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        key, _, value = line.partition(" ")
        settings[key.lower()] = (*settings.get(key.lower(), ()), value)
    return settings


def where(node: str, settings: Mapping[str, tuple[str, ...]]) -> Where:
    first = {key: "" if values[0] == "none" else values[0] for key, values in settings.items()}
    return Where(
        node=node,
        host=first.get("hostname", node),
        port=int(first.get("port", "22")),
        user=first.get("user", ""),
        alias=first.get("hostkeyalias", ""),
        proxy=first.get("proxyjump") or first.get("proxycommand", ""),
        settings=settings,
    )


def key_files(settings: Mapping[str, tuple[str, ...]], key: str) -> list[Path]:
    """The known_hosts files in ssh's `settings`. `key`: userknownhostsfile or globalknownhostsfile."""
    names = []
    for value in settings.get(key, ()):
        try:
            names += shlex.split(value)
        except ValueError:
            names += value.split()
    return [expand_user(name) for name in names if name not in ("none", "/dev/null")]


# --- trust in host keys ----------------------------------------------------------------------------------------------


NOTHING = KnownHost()
SHOW_KEY = "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
#: ssh's message about a host key that it does not accept.
KEY_REFUSED = "Host key verification failed"
CHANGED = (
    "another machine answers at this address, or the node was reinstalled. Only if the fingerprint is the node's own "
    f"({SHOW_KEY}) forget the old one"
)


@dataclass(frozen=True)
class Policy:
    """What is known of a node's host key before the probe, and whether a new key is accepted."""

    pinned: KnownHost = NOTHING
    #: Keys from the operator's own known_hosts files.
    own: KnownHost = NOTHING
    #: As `own`, for the host name without port. OpenSSH accepts these too: they can confirm a key, but never reject it.
    plain: KnownHost = NOTHING
    #: Keys declared in the inventory, as in a .pub file, or SHA256 fingerprints.
    declared: tuple[str, ...] = ()
    accept_new: bool = True

    @property
    def known(self) -> KnownHost:
        return self.pinned or self.own or self.plain

    @property
    def kinds(self) -> list[str]:
        """Types of the known keys, which ssh requests first."""
        if self.declared:
            return [text.split()[0] for text in self.declared if not text.startswith("SHA256:")]
        return [entry.key.kind for entry in self.pinned.keys or (*self.own.keys, *self.plain.keys)]

    def trusted_keys(self, at: Where) -> list[HostKey]:
        """The known host keys with which the node may answer: declared, pinned or of the operator's known_hosts."""
        declared = [parse_key(text) for text in self.declared if not text.startswith("SHA256:")]
        entries = (*self.pinned.keys, *self.own.keys, *self.plain.keys)
        keys = dict.fromkeys([*declared, *(entry.key for entry in entries)])
        return [key for key in keys if trust(key, self, at).state == REACHABLE]

    @property
    def is_first_contact(self) -> bool:
        """Whether any host key is accepted, since none is known, declared or revoked."""
        hosts = (self.pinned, self.own, self.plain)
        return self.accept_new and not self.declared and not any(host or host.revoked for host in hosts)

    @property
    def by_authority(self) -> bool:
        """Whether only a certificate can prove the host key."""
        return not self.declared and not self.known.keys and bool(self.known.authorities)


def check_declared(texts: Iterable[str]) -> tuple[str, ...]:
    """Check declared host keys and return them in normal form. Raises HostKeyError."""
    checked = []
    for text in texts:
        line = " ".join(str(text).split())
        if not re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}", line.rstrip("=")):
            line = str(parse_key(line))
        checked.append(line.rstrip("=") if line.startswith("SHA256:") else line)
    return tuple(checked)


def trust(shown: HostKey, policy: Policy, at: Where) -> ProbeFinding:
    """Whether the host key that a node presents can be trusted: the finding `reachable`, or the reason against it."""
    revoked = [entry for known in (policy.pinned, policy.own) for entry in known.revoked if entry.key == shown]
    if revoked:
        return _wrong(shown, at, f"that is revoked in {revoked[0].place}", "do not use the machine at this address")
    accepted = ProbeFinding(REACHABLE, "", fingerprint=shown.fingerprint, pins=((at.name, "", shown),))
    if {str(shown), shown.fingerprint} & set(policy.declared):
        return replace(accepted, replaced=(at.name,))
    if policy.declared:
        expected = ", ".join(
            text if text.startswith("SHA256:") else parse_key(text).fingerprint for text in policy.declared
        )
        problem = f"but the inventory declares {expected} (gpuval_host_keys)"
        return _wrong(shown, at, problem, f"{CHANGED} and change gpuval_host_keys in the inventory")
    for known in (policy.pinned, policy.own):
        if any(entry.key == shown for entry in known.keys):
            return replace(accepted, pins=() if known is policy.pinned else accepted.pins)
        if known.keys:
            old = next((entry for entry in known.keys if entry.key.kind == shown.kind), known.keys[0])
            forget = shlex.join(["ssh-keygen", "-R", at.name, "-f", str(old.file)])
            problem = f"but {old.key.fingerprint} ({old.key.kind}) is in {old.place}"
            return _wrong(shown, at, problem, f"{CHANGED} and accept the new key: {forget}")
    if policy.accept_new or any(entry.key == shown for entry in policy.plain.keys):
        return replace(accepted, new=all(entry.key != shown for entry in policy.plain.keys))
    return ProbeFinding(
        "unknown_host_key",
        f"{at.address} presents the unknown host key {shown.fingerprint} ({shown.kind})",
        f"compare the fingerprint on the node ({SHOW_KEY}) and declare it as "
        f"gpuval_host_keys of {at.node}, or log in once by hand ({at.login()}), or allow first contact with "
        "-e gpuval_accept_new_host_keys=true",
        fingerprint=shown.fingerprint,
    )


def _wrong(shown: HostKey, at: Where, against: str, remedy: str) -> ProbeFinding:
    return ProbeFinding(
        "wrong_host_key",
        f"{at.address} presents the host key {shown.fingerprint} ({shown.kind}), {against}",
        remedy,
        fingerprint=shown.fingerprint,
    )


# --- findings for failures -------------------------------------------------------------------------------------------


def _finding(state: str, message: str) -> ProbeFinding:
    """A finding with the remedy of the failure class `state`."""
    return ProbeFinding(state, message, NAMED[state].steps)


def of_socket_error(error: OSError, at: Where, seconds: float) -> ProbeFinding:
    """The finding that tells why a TCP connection failed. `seconds`: time limit of the connection."""
    if isinstance(error, socket.gaierror):
        return _finding("unknown_name", f"the name {at.host} cannot be resolved: {error.strerror}")
    if isinstance(error, ConnectionRefusedError):
        return _finding("refused", f"{at.address} refused the connection")
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return _finding("timeout", f"{at.address} did not answer within {seconds:g} s")
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN):
        return _finding("no_route", f"{at.address} is unreachable: {error.strerror}")
    return ProbeFinding("ssh_error", f"{at.address}: {error.strerror or error}", "fix the cause named above")


def hung(at: Where, seconds: float, doing: str) -> ProbeFinding:
    """The finding for a server that accepts TCP and then does not proceed; `doing`: such as "sends no SSH banner"."""
    return _finding("hung", f"{at.address} accepts TCP but {doing} within {seconds:g} s")


def no_ssh(at: Where, received: bytes) -> ProbeFinding:
    shown = one_line(received.decode(errors="replace"), 60)
    return _finding("no_ssh", f"{at.address} is no SSH server: it sends {shown!r}")


#: ssh's messages when the server closes the connection, also between banner and host key.
CLOSED = re.compile(r"Connection (?:closed|reset) by |: Broken pipe")


def closed(at: Where) -> ProbeFinding:
    return ProbeFinding(
        "refused",
        f"{at.address} closed the connection before an SSH banner",
        "check MaxStartups, hosts.deny and the log of sshd on the node",
    )


def shows(line: str, key: HostKey) -> bool:
    """Whether a line of ssh's log shows that the server presented this key, by itself or in a certificate."""
    match = re.match(r"debug1: Server host (?:key|certificate): \S+ (SHA256:[^\s,]+)", line)
    return match is not None and match[1] == key.fingerprint


def unfinished_step(log: str) -> str:
    """The step at which an ssh was killed at its time limit, from its log, such as `completes no key exchange`."""
    if not re.search(r"\ndebug1: Server host (?:key|certificate): ", log):
        return "completes no key exchange"
    return "runs no command after the login" if "\ndebug1: Sending command: " in log else "completes no login"


_PUBLIC_KEY = re.compile(rb"(?:sk-)?(?:ssh|ecdsa)-\S+ AAAA")


def key_file_problem(name: str) -> str:
    """Why ssh cannot use the file of a private key, and what to do; empty if nothing is wrong with the file."""
    path = expand_user(name)
    try:
        if not path.is_file():  # to open a FIFO would block
            return "" if path.exists() else f"no such file {name}: give the file of the private key"
        with path.open("rb") as file:
            begin = file.read(100)
            state = os.fstat(file.fileno())
    except OSError:
        return ""  # ssh reports such a file itself
    if _PUBLIC_KEY.match(begin):
        return f"{name} is the public key: give the private key, without .pub"
    is_open = state.st_uid == os.getuid() and bool(state.st_mode & 0o077)
    return f"others may read {name}, so ssh ignores it: chmod 600 {_quoted(name)}" if is_open else ""


def denied(at: Where, detail: str) -> ProbeFinding:
    problems = (key_file_problem(name) for name in at.own_keys if "%" not in name)
    return ProbeFinding(
        "login_denied",
        f"{at.user}@{at.address}: {detail}",
        next(filter(None, problems), "")
        or "check ansible_user, that the key (ansible_ssh_private_key_file, or one of your agent) is in the node's "
        f"authorized_keys, and that the account may log in: {at.login()}",
    )


_NOISE = re.compile(
    r"^(?:Warning: Permanently added .*|\*\* .*|debug\d: .*|@+|.*post-quantum.*|Connection closed by UNKNOWN port 65535"
    r"|.*stdio forwarding failed.*|Killed by signal \d+\.?)\s*$"
)


def of_ssh_output(stderr: str, at: Where, seconds: float) -> ProbeFinding:
    """The finding that tells why OpenSSH failed, by its stderr. `seconds`: time limit of the connection. A host key
    that ssh saw has been checked before."""
    lines = [line.strip() for line in stderr.replace("\r", "\n").splitlines() if line.strip()]
    errors = [line for line in lines if not _NOISE.match(line)] or lines
    last = one_line(errors[-1] if errors else "ssh exited without output", 300)
    through = f" (through {at.proxy})" if at.proxy else ""
    if at.proxy and "timed out during banner exchange" in stderr:
        return _finding("timeout", f"{at.address}{through}: no SSH banner within {seconds:g} s")
    if at.proxy and "UNKNOWN port 65535" in stderr and "open failed" not in stderr:
        return ProbeFinding(
            "jump_host",
            f"ssh failed at the jump host {at.proxy}: {last}",
            f"log in by hand ({at.login()}) to accept the host key of the jump host: only those of nodes are pinned",
        )
    if re.search(r"timed out during banner exchange|banner line contains invalid", stderr):
        return hung(at, seconds, "sends no SSH banner")
    state = classify("unreachable", stderr).name
    if state == "login_denied":
        reasons = [line for line in errors[:-1] if re.search(r"identity|UNPROTECTED|bad permissions|Load key", line)]
        last = one_line("; ".join([*reasons, last]), 400)
        return replace(denied(at, last), message=f"{at.user}@{at.address}{through}: {last}")
    message = f"{at.address}{through}: {last}"
    if state == "ssh_error" or state not in STATES:
        return ProbeFinding("ssh_error", message, f"try it by hand: {at.login('-v')}")
    return _finding(state, message)


# --- summary of a probe ----------------------------------------------------------------------------------------------


def summary(findings: Mapping[str, ProbeFinding], seconds: float, pin_file: Path) -> list[str]:
    """The summary of a probe over SSH: counts, then each state with its nodes, first messages and remedies."""
    reachable = sum(finding.state == REACHABLE for finding in findings.values())
    lines = [f"probe: {reachable} of {len(findings)} node(s) reachable, {seconds:.1f} s"]
    groups = values_by_key((finding.state, node) for node, finding in findings.items() if finding.state != REACHABLE)
    for state in sorted(groups, key=lambda state: STATES.index(state) if state in STATES else len(STATES)):
        nodes = groups[state]
        lines.append(f"  {state} ({len(nodes)}): {some_of(nodes, SHOWN)}")
        by_remedy = values_by_key((findings[node].remedy, node) for node in nodes)
        for remedy, (node, *_others) in list(by_remedy.items())[:3]:
            lines.append(f"    {node}: {one_line(findings[node].message, MESSAGE_CHARACTERS)}")
            lines.append(f"      -> {remedy}")
    new = [(node, finding.fingerprint) for node, finding in findings.items() if finding.new]
    if new:
        lines.append(f"  {len(new)} host key(s) seen for the first time, pinned in {pin_file}:")
        lines += [f"    {node} {fingerprint}" for node, fingerprint in new[:SHOWN]]
        if len(new) > SHOWN:
            lines.append(f"    and {len(new) - SHOWN} more: ssh-keygen -lf {shlex.quote(str(pin_file))}")
    return lines


def fewer_gpus(findings: Mapping[str, ProbeFinding]) -> list[str]:
    """The nodes that are reachable, but offer fewer GPUs than expected."""
    return [name for name, finding in findings.items() if finding.state == REACHABLE and finding.message]


def summary_of_cluster(findings: Mapping[str, ProbeFinding], seconds: float) -> list[str]:
    """The summary of a probe by a scheduler: counts, then each failure class with its nodes, messages and remedy."""
    ready = sum(finding.state == REACHABLE for finding in findings.values())
    rest = summary(findings, seconds, Path())[1:]
    lines = [f"cluster: {ready} of {len(findings)} node(s) can be worked on, {seconds:.1f} s", *rest]
    few = fewer_gpus(findings)
    if few:
        lines.append(f"  fewer GPUs than expected ({len(few)}): {some_of(few, SHOWN)}")
        lines.append(f"    {few[0]}: {findings[few[0]].message}")
        lines.append(f"      -> {findings[few[0]].remedy}")
    return lines
