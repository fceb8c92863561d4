"""SSH host keys: reads known_hosts files as OpenSSH does, and keeps the pinned host keys of an inventory."""

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
#: Generic names of inventory files: an inventory with such a name is called after its folder.
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
    file: Path
    line: int
    marker: str
    patterns: str
    key: HostKey

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def host_id(host: str, port: int) -> str:
    """The name of a host in known_hosts: `host`, or `[host]:port` for another port than 22."""
    host = host.lower()
    return host if port == DEFAULT_PORT else f"[{host}]:{port}"


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def parse_key(text: str) -> HostKey:
    """The key in a line of a .pub file: type and base64, perhaps with a comment. Raises HostKeyError."""
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
    """The entries of a known_hosts file; invalid lines are ignored, as by OpenSSH."""
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
    entries: list[KnownHostsEntry] = []
    for file in files:
        with contextlib.suppress(OSError):
            entries += parse(file.read_text(errors="replace"), file)
    return entries


def matches(patterns: str, name: str) -> bool:
    """Whether the host field of an entry (`patterns`) matches `name`, which is from host_id."""
    if patterns.startswith("|"):
        return _matches_hash(patterns, name)
    # Only * and ? are wildcards: brackets, as in `[host]:port`, are escaped for fnmatch.
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
        made = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()  # as OpenSSH hashes host names
        return hmac.compare_digest(made, base64.b64decode(digest))
    except (ValueError, binascii.Error):
        return False


@dataclass(frozen=True)
class KnownHost:
    """The entries of known_hosts files about one host: keys, certificate authorities, revoked keys."""

    keys: tuple[KnownHostsEntry, ...] = ()
    authorities: tuple[KnownHostsEntry, ...] = ()
    revoked: tuple[KnownHostsEntry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.keys or self.authorities)


def lookup(entries: Iterable[KnownHostsEntry], host: str, port: int, alias: str = "") -> KnownHost:
    """The entries of known_hosts files that match a host; `alias` (HostKeyAlias) is looked up instead of host and
    port."""
    name = alias.lower() if alias else host_id(host, port)
    found: dict[str, list[KnownHostsEntry]] = {"": [], CA: [], REVOKED: []}
    for entry in entries:
        if matches(entry.patterns, name) or (entry.marker == REVOKED and entry.patterns == "*"):
            found[entry.marker].append(entry)
    return KnownHost(tuple(found[""]), tuple(found[CA]), tuple(found[REVOKED]))


def inventory_name(sources: Iterable[str], project: Path) -> str:
    """The name of an inventory's file of pinned host keys: stable from run to run, different for each inventory."""
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
    """The pinned host keys of an inventory, in a known_hosts file (mode 0600) that changes atomically, under a lock."""

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
        """Create the file of pinned host keys if it is missing, and let only this user read it."""
        with self._locked():
            if not self.path.exists():
                files.replace(self.path, b"", files.PRIVATE)
            elif self.path.stat().st_mode & 0o077:
                self.path.chmod(0o600)

    def add(self, new: Iterable[tuple[str, str, HostKey]], replaced: Iterable[str] = ()) -> int:
        """Pin host keys (name, marker, key); remove other keys of the names `replaced`. Returns how many are new."""
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
    """Path of the pinned host keys of an inventory, which is named after its `sources` below the state folder's
    parent."""
    return state_dir / "known_hosts" / inventory_name(sources, state_dir.parent)


def kex_file(pins: Path) -> Path:
    """Path of the file with the options for a fast key exchange, which the last probe wrote."""
    return pins.with_name(f".{pins.name}.kex")


def ssh_arguments(pins: Path, own: str) -> str:
    """ssh_args of a connection: host key options, then the operator's (`own`), since ssh uses an option's first value.

    Before the first probe there are no pins, and ssh uses the operator's known_hosts. ssh always checks host keys.
    """
    words = ["-o", "StrictHostKeyChecking=yes"]
    if pins.is_file():
        words += ["-o", 'UserKnownHostsFile="' + str(pins).replace("%", "%%") + '"']
        words += ["-o", "GlobalKnownHostsFile=none", "-o", "UpdateHostKeys=no", "-o", "VerifyHostKeyDNS=no"]
        words += ["-o", "NoHostAuthenticationForLocalhost=no"]
        with contextlib.suppress(OSError):
            words += shlex.split(kex_file(pins).read_text())
    return f"{shlex.join(words)} {own}".strip()
