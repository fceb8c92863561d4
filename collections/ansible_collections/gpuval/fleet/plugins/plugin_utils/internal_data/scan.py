"""The final scan of a delivery: searches its bytes for known secrets, addresses and node names, in several encodings.
It takes these from inventory, settings, run.json and what the conversion knows. It shares no code with the redactor and
the conversion, so that it finds their bugs."""

import base64
import contextlib
import ipaddress
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ansible.errors import AnsibleError

from .ordinary_names import is_ordinary

PIECE_BYTES = 4 << 20
#: Characters by which pieces of a file overlap, so that matches across the end of a piece are found.
OVERLAP = 8192
MAX_FINDINGS = 20
#: Minimum length of a secret to search for: shorter text may occur by chance.
SHORTEST_SECRET = 8
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:pass(?:word|wd|phrase)?|secrets?|token|cookie|credentials?|(?:secret|access|api|private)_key)$", re.I
)
#: Variables with addresses or names of nodes; variables that are mappings whose entries may be secret.
_HOST_VARIABLES = ("ansible_host", "ansible_ssh_host")
_MAPPINGS = ("gpuval_environment",)
#: Excludes numbers of NUMA nodes: node0 of a CPU is not a machine that is called node0.
_NO_NUMA_NODE = r"(?<!NUMA )(?<!numa )(?<!/system/node/)"
_TOKEN = re.compile(r"[a-z0-9]+(?:[_-][a-z0-9]+)*", re.ASCII)
_PART = re.compile(r"[a-z0-9]+", re.ASCII)
_WORD = re.compile(r"[A-Za-z_-]+")
_KINDS = frozenset({".py", ".json", ".yml", ".yaml", ".j2", ".js", ".css", ".html", ".md", ".sql", ".txt"})


@dataclass
class ScanTargets:
    """Texts that must not be in a delivery. ``claimed``: names that only nodes reported; to find one is no error."""

    names: set[str] = field(default_factory=set)
    secrets: set[str] = field(default_factory=set)
    addresses: set[str] = field(default_factory=set)
    claimed: set[str] = field(default_factory=set)


def read_targets(
    run: Mapping[str, Any], inventory: Mapping[str, Mapping[str, Any]], *settings: Mapping[str, Any]
) -> ScanTargets:
    """Texts to search for: from ``run`` (run.json), ``inventory`` ({node: variables}), and ``settings``: options and
    the controller's environment variables."""
    targets = ScanTargets(names=set(run["nodes"]))
    for variables in inventory.values():
        for name in variables:
            is_secret = bool(_SECRET_NAME.search(name))
            if not is_secret and name not in (*_HOST_VARIABLES, *_MAPPINGS):
                continue
            with contextlib.suppress(AnsibleError):  # a template that cannot be rendered
                value = variables[name]
                if name in _HOST_VARIABLES:
                    (targets.addresses if _address(str(value)) else targets.names).add(str(value))
                else:
                    targets.secrets |= _secrets(value, is_secret)
    for mapping in settings:
        targets.secrets |= _secrets(mapping, False)
    return targets


def _secrets(value: Any, is_secret: bool) -> set[str]:
    """Texts whose keys sound secret, or all if ``is_secret``; without names of users, which occur in any text."""
    if isinstance(value, Mapping):
        entries = ((str(name), entry) for name, entry in value.items())
        return set().union(
            *(_secrets(entry, is_secret or bool(_SECRET_NAME.search(name))) for name, entry in entries
              if not name.endswith("_USERNAME"))
        )  # fmt: skip
    if isinstance(value, (list, tuple)):
        return set().union(*(_secrets(entry, is_secret) for entry in value))
    return {str(value)} if is_secret and isinstance(value, str) else set()


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0].strip("[]"))
    except ValueError:
        return None


class InternalDataScan:
    """Searches files for secrets, addresses of nodes, and names of nodes that are not in ``ids`` (unique ids). Secrets
    in ``own_terms`` are skipped, since gpuval's own texts contain them."""

    def __init__(self, targets: ScanTargets, ids: Collection[str], own_terms: Collection[str] = ()) -> None:
        ids_lower = {identity.lower() for identity in ids}
        secrets = [secret for secret in targets.secrets if len(secret) >= SHORTEST_SECRET and secret not in own_terms]
        self._secrets = sorted({form for secret in secrets for form in _forms_of(secret)})
        parsed = {address for address in map(_address, targets.addresses | targets.names) if address}
        hosts = {str(address) for address in parsed
                 if not (address.is_loopback or address.is_unspecified or address.is_multicast)} - set(ids)  # fmt: skip
        self._addresses = re.compile(rf"(?<![0-9A-Za-z:.])(?:{_any_of(hosts)})(?![0-9A-Za-z]|:[0-9A-Fa-f]*:)(?!\.\d)")
        names = {name for name in targets.names | targets.claimed
                 if not is_ordinary(name) and not _address(name) and name.lower() not in ids_lower}  # fmt: skip
        certain = _any_of(names & targets.names)
        self._names = re.compile(rf"{_NO_NUMA_NODE}(?<![A-Za-z0-9_-])(?<![A-Za-z0-9]\.)(?:{certain})(?![A-Za-z0-9_-])")
        #: A name within a longer word is counted, and is no error: spare-node-1 may be another machine than node-1.
        #: Nor is a name that only its node reported: a node could choose a name to stop the delivery.
        self._within = re.compile(rf"{_NO_NUMA_NODE}(?<![A-Za-z0-9])(?:{_any_of(names)})(?![A-Za-z0-9])")
        self._encoded = re.compile(_any_of({form for text in (*self._secrets, *hosts) for form in _in_base64(text)}))
        self.within: dict[str, int] = {}

    def file(self, path: Path) -> list[str]:
        """Kinds of finding in a file: `a secret`, `the address of a node`, `the name of a worker`, without the text."""
        kinds: dict[str, None] = {}
        with path.open("rb") as stream:
            before = b""
            while piece := stream.read(PIECE_BYTES):
                kinds |= dict.fromkeys(self.text((before + piece).decode("utf-8", "replace")))
                before = piece[-OVERLAP:]
        return list(kinds)

    def text(self, text: str) -> Iterator[str]:
        yield from self._plain(text)
        for plain in _unquotings(text):
            yield from (f"{kind}, URL-encoded" for kind in self._plain(plain))
        if self._encoded.search(text):
            yield "a secret or an address in base64"
        for name in self._within.findall(text):
            self.within[name] = self.within.get(name, 0) + 1

    def _plain(self, text: str) -> Iterator[str]:
        if any(secret in text for secret in self._secrets):
            yield "a secret"
        if self._addresses.search(text):
            yield "the address of a node"
        if self._names.search(text):
            yield "the name of a worker"


def _any_of(words: Iterable[str], levels: int = 2) -> str:
    """A pattern that matches any of these literal words, longest first, grouped by first characters for speed."""
    if not levels:
        return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    groups: dict[str, list[str]] = {}
    for word in words:
        groups.setdefault(word[:1], []).append(word[1:])
    branches = [f"{re.escape(first)}(?:{_any_of(rest, levels - 1)})" for first, rest in sorted(groups.items())[::-1]]
    return "|".join(branches) or "(?!)"


def _in_base64(text: str) -> set[str]:
    """Base64 of `text` at each offset, in both alphabets: base64 of a longer text with it contains one of these."""
    forms = set()
    for offset, first in enumerate((0, 2, 3)):
        encoded = base64.b64encode(b"\0" * offset + text.encode()).decode().rstrip("=")
        last = len(encoded) - ((offset + len(text.encode())) % 3 > 0)  # the last character may have bits of later text
        forms |= {encoded[first:last], encoded[first:last].replace("+", "-").replace("/", "_")}
    return forms


def _forms_of(text: str) -> tuple[str, ...]:
    """The forms in which a text may occur: unchanged, escaped for JSON, in hexadecimal."""
    hexadecimal = text.encode().hex()
    in_json = (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    return (text, *in_json, hexadecimal, hexadecimal.upper())


def _unquotings(text: str) -> Iterator[str]:
    """The results of decoding a URL-encoded text once, twice and three times, while decoding changes it."""
    for _time in range(3):
        plain = unquote(text, errors="replace") if "%" in text else text
        if plain == text:
            return
        yield plain
        text = plain


def problems(scan: InternalDataScan, folder: Path, names: Sequence[str]) -> list[str]:
    """``<file>: <kind of finding>`` for the first findings in contents or paths of the files ``names``."""
    findings = (f"{name}: {kind}" for name in names for kind in scan.file(folder / name))
    of_paths = (f"the path {name}: {kind}" for name in names for kind in scan.text(name))
    return list(itertools.islice(itertools.chain(findings, of_paths), MAX_FINDINGS))


def own_terms(secrets: Iterable[str], collection: Path) -> frozenset[str]:
    """The secrets that are a single word of the collection's own files, so that any delivery may contain them."""
    words = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET and _WORD.fullmatch(secret)}
    occurring: set[str] = set()
    for text in _texts_below(collection) if words else ():
        occurring |= {word for word in words - occurring if word in text}
    return frozenset(occurring)


def own_words(collection: Path) -> frozenset[str]:
    """All words, in lower case, of the collection's files whose texts a delivery may show."""
    words: set[str] = set()
    for folder in ("schemas", "skus", "failures", "plugins/plugin_utils"):
        for text in _texts_below(collection / folder):
            words.update(_TOKEN.findall(text.lower()))
            words.update(_PART.findall(text.lower()))
    return frozenset(words)


def _texts_below(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.suffix in _KINDS and path.is_file():
            yield path.read_text(encoding="utf-8", errors="replace")
