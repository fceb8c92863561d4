"""Converts text for a customer: unique ids for nodes, placeholders for internal addresses, no secrets. One converter
serves a whole delivery, so that an address has the same placeholder throughout."""

import functools
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from ...module_utils.redaction import HIDDEN, SecretRedactor, any_of, base64_forms
from . import addresses
from .ordinary_names import is_ordinary

#: Minimum length of a secret to search for in base64: shorter text occurs there by chance.
SHORTEST_ENCODED = 6
#: Suffixes of file names, which are not domains.
_SUFFIXES = "log|json|txt|gz|tar|zip|py|sh|yml|yaml|csv|html|md|xml|conf|service|socket|pem|key|pub|sock|pid|lock"
_DOMAIN = rf"(?:\.(?!(?:{_SUFFIXES})\b)[A-Za-z0-9-]+)*\.(?!(?:{_SUFFIXES})\b)[A-Za-z][A-Za-z-]*[A-Za-z](?![\w-])"
_HOME = re.compile(r"(?<![\w.])/home/(?!user(?:[^\w.-]|$))[A-Za-z0-9_][\w.-]*")
#: Excludes numbers of NUMA nodes: node0 of a CPU is not a machine that is called node0.
NOT_OF_NUMA = r"(?<!NUMA )(?<!numa )(?<!/system/node/)"
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{4,}={0,2}", re.ASCII)
_PERCENT = re.compile(r"(?<![^\s\"'<>])[^\s\"'<>]*%[0-9A-Fa-f]{2}[^\s\"'<>]*")
MAX_UNQUOTED = 3
#: Maximum number of addresses with a placeholder each; a log may consist of addresses.
MAX_PLACEHOLDERS = 1 << 17


@dataclass
class InternalData:
    """Sensitive data of a run, which must not be in a delivery. names: {node: unique id}. aliases: {other name of a
    node (host name, DNS name): unique id}. ordinary: names that are common words besides those of `is_ordinary`. hosts:
    names of machines that are no nodes. racks: names of racks as nodes' hardware reports them. users: names of users.
    folders: {folder of the controller: replacement}."""

    names: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    ordinary: Container[str] = ()
    secrets: set[str] = field(default_factory=set)
    addresses: set[str] = field(default_factory=set)
    macs: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    racks: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    folders: dict[str, str] = field(default_factory=dict)
    run_id: str = ""


class InternalDataConverter:
    """Replaces internal data in texts and documents. ``placeholders``: {(kind, original): placeholder} of those used.
    ``placeholder_of``: makes a placeholder from kind and original; by default they are numbered by kind."""

    def __init__(self, data: InternalData, placeholder_of: Callable[[str, str], str] | None = None) -> None:
        self.known = data
        self.placeholders: dict[tuple[str, str], str] = {}
        self.ids = frozenset(data.names.values())
        self._placeholder_of = placeholder_of or self._numbered
        self._counts: dict[str, int] = {}
        self._names = {**data.aliases, **data.names}
        self._by_lower = {name.lower(): identity for name, identity in self._names.items()}
        self._address_names = {
            address: identity for name, identity in self._names.items() if (address := addresses.canonical(name))
        }
        self._addresses = addresses.Addresses(self._replacement, [*data.addresses, *self._address_names], data.macs)
        self.literal = {name: identity for name, identity in self._names.items()
                        if not self.is_word(name) and not addresses.canonical(name)}  # fmt: skip
        self._name_pattern = _names_pattern(self.literal, data.run_id)
        self._host_pattern = _tokens_pattern({name for name in data.hosts if not self.is_word(name)} - set(self._names))
        self._rack_pattern = _tokens_pattern(data.racks)
        self._user_pattern = _tokens_pattern({name for name in data.users if not self.is_word(name)} - set(self._names))
        self._folders = sorted(data.folders.items(), key=lambda entry: -len(entry[0]))
        self._redact = SecretRedactor(data.secrets)
        hidden = [text.encode() for text in {*self._addresses.known, *self.literal}]
        encoded = {form for raw in hidden if len(raw) >= SHORTEST_ENCODED for form in base64_forms(raw)}
        self._encoded = re.compile(any_of(form.decode() for form in encoded))
        #: `text` with a cache, for short texts that recur in documents.
        self.short = functools.lru_cache(maxsize=1 << 16)(self.text)

    def text(self, text: str) -> str:
        """Convert a text of any length. A second conversion does not change the result."""
        text = self._redact(text)
        if "%" in text:
            text = _PERCENT.sub(self._percent, text)
        return self._plain(text)

    def _plain(self, text: str) -> str:
        """Replace names and addresses in a text, without decoding URL-encoded text."""
        if self._encoded.search(text):
            text = _BASE64.sub(lambda match: HIDDEN if self._encoded.search(match.group()) else match.group(), text)
        for folder, replacement in self._folders:
            if folder in text:
                text = re.sub(re.escape(folder) + r"(?![\w.-])", replacement.replace("\\", r"\\"), text)
        if "/home/" in text:
            text = _HOME.sub("/home/user", text)
        text = self._addresses.hide(text)
        text = self._name_pattern.sub(self._identity, text)
        text = self._host_pattern.sub(lambda match: self.placeholder("host", match["word"].lower()), text)
        text = self._rack_pattern.sub(lambda match: self.placeholder("rack", match["word"].lower()), text)
        return self._user_pattern.sub(lambda _match: "user", text)

    def document(self, value: Any) -> Any:
        """Replace internal data in every text of a JSON document, keys included."""
        if isinstance(value, str):
            return self.short(value)
        if isinstance(value, Mapping):
            nodes = {key: value[key] for key in ("node", "worker") if isinstance(value.get(key), str)}
            # Below these keys a name of a node is replaced even if it is a common word.
            ids = {key: self.known.names[name] for key, name in nodes.items() if name in self.known.names}
            return {self.short(key): ids[key] if key in ids else self.document(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.document(item) for item in value]
        return value

    def _percent(self, match: re.Match[str]) -> str:
        """Convert URL-encoded text: the first decoding with internal data is converted. Text that could be decoded
        further is hidden completely, since its result would be decoded again."""
        for plain in _unquotings(match.group()):
            hidden = self._plain(self._redact(plain))
            if hidden != plain:
                return HIDDEN if "%" in plain else hidden
        return match.group()

    def _replacement(self, kind: str, address: str) -> str:
        identity = self._address_names.get(address) if kind == addresses.ADDRESS else None
        return identity or self.placeholder(kind, address)

    def _identity(self, match: re.Match[str]) -> str:
        name = match["name"] or match["inner"]
        return self.literal.get(name) or self._by_lower[name.lower()]

    def is_word(self, name: str) -> bool:
        """Whether the name of a machine is a common word, which is kept in running text."""
        return is_ordinary(name) or name in self.known.ordinary

    def placeholder(self, kind: str, original: str) -> str:
        """The placeholder for an original, always the same one. ``kind``: such as host, rack, address."""
        placeholder = self.placeholders.get((kind, original))
        if placeholder is None and len(self.placeholders) >= MAX_PLACEHOLDERS:
            return f"{kind}-other"
        if placeholder is None:
            placeholder = self.placeholders[kind, original] = self._placeholder_of(kind, original)
        return placeholder

    def _numbered(self, kind: str, _original: str) -> str:
        self._counts[kind] = number = self._counts.get(kind, 0) + 1
        return f"{kind}-{number}"


def _unquotings(text: str) -> Iterator[str]:
    """The results of decoding a URL-encoded text once, twice and so on, while decoding changes it."""
    for _time in range(MAX_UNQUOTED):
        plain = unquote(text, errors="replace")
        if plain == text:
            break
        yield plain
        text = plain


def _names_pattern(names: Iterable[str], run_id: str) -> re.Pattern[str]:
    """Pattern of names as whole words, with their domains, also within names that gpuval composes of run and node."""
    words = any_of(
        {form for name in names for form in (name, name.lower(), name.upper(), name.title(), name.capitalize())}
    )
    inner = rf"|(?<={re.escape(run_id)}-)(?P<inner>{words})(?![A-Za-z0-9])" if run_id else r"|(?P<inner>(?!))"
    return re.compile(
        rf"{NOT_OF_NUMA}(?<![A-Za-z0-9_-])(?<![A-Za-z0-9]\.)(?P<name>{words})(?![A-Za-z0-9])(?![_-]+[A-Za-z0-9])(?:{_DOMAIN})?{inner}"
    )


def _tokens_pattern(words: Iterable[str]) -> re.Pattern[str]:
    pattern = any_of({form for word in words for form in (word, word.lower(), word.upper())})
    return re.compile(rf"(?<![A-Za-z0-9_-])(?P<word>{pattern})(?![A-Za-z0-9])(?![_-]+[A-Za-z0-9])")
