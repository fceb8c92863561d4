"""Host keys: reading known_hosts files as OpenSSH does, and the pins of an inventory."""

from __future__ import annotations

import base64
import binascii
import contextlib
import fnmatch
import hashlib
import hmac
import ipaddress
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core import files
from ..core.errors import GpuvalError, reason_of

CA, REVOKED = "@cert-authority", "@revoked"
DEFAULT_PORT = 22
LOCK_SECONDS = 15
#: Generic names of inventory files; their folder's name is used instead.
PLAIN_NAMES = frozenset({"hosts", "hosts.yml", "hosts.yaml", "hosts.ini", "hosts.json", "nodes.yml", "inventory.yml"})


class HostKeyError(GpuvalError):
    """A host key, or a file of them, cannot be read or written; the message says what to do."""


@dataclass(frozen=True)
class HostKey:
    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def __str__(self) -> str:
        return f"{self.kind} {base64.b64encode(self.blob).decode()}"


@dataclass(frozen=True)
class KnownHostsEntry:
    """A line of a known_hosts file."""

    file: Path
    line: int
    marker: str
    patterns: str
    key: HostKey

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def host_id(host: str, port: int) -> str:
    """How known_hosts names a host."""
    host = host.lower()
    return host if port == DEFAULT_PORT else f"[{host}]:{port}"


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def parse_key(text: str) -> HostKey:
    """A key as in a .pub file: type and base64; a comment may follow."""
    kind, _, rest = text.strip().partition(" ")
    try:
        blob = base64.b64decode((rest.split() or [""])[0], validate=True)
    except binascii.Error:
        blob = b""
    size = int.from_bytes(blob[:4], "big")
    if not blob or blob[4 : 4 + size].decode(errors="replace") != kind:
        raise HostKeyError(f"{text[:60]!r} is not a public key: write it as in a .pub file (type and base64)")
    return HostKey(kind, blob)


def parse(text: str, file: Path) -> list[KnownHostsEntry]:
    """The entries of a file; like OpenSSH, lines that make no sense are passed over."""
    entries = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        marker, _, rest = line.partition(" ") if line.startswith("@") else ("", "", line)
        patterns, _, key = rest.strip().partition(" ")
        if line and not line.startswith("#") and marker in ("", CA, REVOKED):
            with contextlib.suppress(HostKeyError):
                entries.append(KnownHostsEntry(file, number, marker, patterns, parse_key(key)))
    return entries


def read(files: Iterable[Path]) -> list[KnownHostsEntry]:
    """Entries of all files that are there and can be read."""
    entries: list[KnownHostsEntry] = []
    for file in files:
        with contextlib.suppress(OSError):
            entries += parse(file.read_text(errors="replace"), file)
    return entries


def matches(patterns: str, name: str) -> bool:
    """Whether a host field names `name` (as made by host_id)."""
    if patterns.startswith("|"):
        return _matches_hash(patterns, name)
    # only * and ? are wildcards; fnmatch's brackets stand for themselves in `[host]:port`
    matching = [
        pattern
        for pattern in patterns.lower().split(",")
        if fnmatch.fnmatchcase(name, pattern.removeprefix("!").replace("[", "[[]"))
    ]
    return bool(matching) and not any(pattern.startswith("!") for pattern in matching)


def _matches_hash(field: str, name: str) -> bool:
    try:
        _, version, salt, digest = field.split("|")
        if version != "1":
            return False
        made = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()  # what OpenSSH hashes names with
        return hmac.compare_digest(made, base64.b64decode(digest))
    except (ValueError, binascii.Error):
        return False


@dataclass(frozen=True)
class KnownHost:
    """What files say of one host."""

    keys: tuple[KnownHostsEntry, ...] = ()
    authorities: tuple[KnownHostsEntry, ...] = ()
    revoked: tuple[KnownHostsEntry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.keys or self.authorities)


def lookup(entries: Iterable[KnownHostsEntry], host: str, port: int, alias: str = "") -> KnownHost:
    """What the entries say of a host. An alias (HostKeyAlias) is used as it is, without a port."""
    name = alias.lower() if alias else host_id(host, port)
    found: dict[str, list[KnownHostsEntry]] = {"": [], CA: [], REVOKED: []}
    for entry in entries:
        if matches(entry.patterns, name) or (entry.marker == REVOKED and entry.patterns == "*"):
            found[entry.marker].append(entry)
    return KnownHost(tuple(found[""]), tuple(found[CA]), tuple(found[REVOKED]))


def inventory_name(sources: Iterable[str], project: Path) -> str:
    """The file name for the pins of an inventory: the same from run to run, another one for another inventory."""
    names = (_source_name(source, project) for source in sources)
    name = re.sub(r"[^A-Za-z0-9._+-]+", "_", "+".join(names)).strip("._") or "inventory"
    if len(name) > 100:
        name = f"{name[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return name


def _source_name(source: str, project: Path) -> str:
    if "," in source:
        return f"list-{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    path = Path(source).expanduser().absolute()
    if path.name in PLAIN_NAMES:
        path = path.parent
    for base in (project / "inventories", project):
        if path != base and path.is_relative_to(base):
            return str(path.relative_to(base))
    return str(path)


class Pins:
    """The known_hosts file of an inventory. It is the controller's own: mode 0600, changed under a lock, atomically."""

    def __init__(self, path: Path):
        self.path = path

    def entries(self) -> list[KnownHostsEntry]:
        try:
            return parse(self.path.read_text(), self.path)
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            why = reason_of(error)
            raise HostKeyError(f"{self.path} cannot be read: {why}. It holds the pinned host keys.") from None

    def make(self) -> None:
        """See that the file is there and readable by this user alone."""
        with self._locked():
            if not self.path.exists():
                files.replace(self.path, b"", files.PRIVATE)
            elif self.path.stat().st_mode & 0o077:
                self.path.chmod(0o600)

    def add(self, new: Iterable[tuple[str, str, HostKey]], replaced: Iterable[str] = ()) -> int:
        """Add (name, marker, key) and drop other lines of the names `replaced`. Returns how many were added."""
        lines = dict.fromkeys(" ".join(filter(None, (marker, name, str(key)))) for name, marker, key in new)
        gone = set(replaced)
        with self._locked():
            there = self.path.read_text().splitlines() if self.path.exists() else []
            kept = [line for line in there if line in lines or line.partition(" ")[0] not in gone]
            added = [line for line in lines if line not in set(there)]
            if kept + added != there:
                files.replace(self.path, "".join(f"{line}\n" for line in kept + added).encode(), files.PRIVATE)
        return len(added)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self.path.parent / ".lock"
        late = HostKeyError(f"another gpuval has held {lock} for {LOCK_SECONDS} s: end it")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with files.locked(lock, LOCK_SECONDS, late):
                yield
        except OSError as error:
            raise HostKeyError(f"{self.path} cannot be written: {error.strerror}. Set gpuval_state_dir.") from None


def pin_file(state_dir: Path, sources: Iterable[str]) -> Path:
    """The pins of an inventory. The state folder stands beside the project's inventories."""
    return state_dir / "known_hosts" / inventory_name(sources, state_dir.parent)


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
