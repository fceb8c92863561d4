"""The final scan of a delivery: no known secret, address or worker name in its bytes, in any encoding.

It reads the written bytes and shares no code with the redaction, so it finds the redaction's bugs.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote

from ...module_utils.redaction import SHORTEST_SECRET
from ...module_utils.word_pattern import any_of
from .conversion import NOT_OF_NUMA, DeliveryConverter

PIECE_BYTES = 4 << 20
#: A match across the end of a piece is found with the next one.
OVERLAP = 8192
MAX_FOUND = 20
_TOKEN = re.compile(r"[a-z0-9]+(?:[_-][a-z0-9]+)*", re.ASCII)
_PART = re.compile(r"[a-z0-9]+", re.ASCII)
_WORD = re.compile(r"[A-Za-z_-]+")
_KINDS = frozenset({".py", ".json", ".yml", ".yaml", ".j2", ".js", ".css", ".html", ".md", ".txt"})


class Scan:
    """Searches for the converter's secrets, addresses of nodes, and names of workers that are no id.

    Secrets among ``own_terms`` are skipped: gpuval's own text contains them.
    """

    def __init__(self, converter: DeliveryConverter, own_terms: Collection[str] = ()) -> None:
        known = converter.known
        given = {identity.lower() for identity in known.names.values()}
        secrets = [secret for secret in known.secrets if len(secret) >= SHORTEST_SECRET and secret not in own_terms]
        self._secrets = sorted({form for secret in secrets for form in (secret, *_in_json(secret))})
        shown = {*known.addresses} - set(known.names.values())
        self._addresses = re.compile(rf"(?<![0-9A-Za-z:.])(?:{any_of(shown)})(?![0-9A-Za-z]|:[0-9A-Fa-f]*:)(?!\.\d)")
        names = {name for name in converter.literal if name.lower() not in given}
        certain = any_of(names - known.claimed)
        self._names = re.compile(rf"{NOT_OF_NUMA}(?<![A-Za-z0-9_-])(?<![A-Za-z0-9]\.)(?:{certain})(?![A-Za-z0-9_-])")
        #: A name within a longer word is counted, and is no error: spare-node-1 may be another machine than node-1.
        #: So is a name that only its node gave: it could be chosen to stop the delivery.
        self._within = re.compile(rf"{NOT_OF_NUMA}(?<![A-Za-z0-9])(?:{any_of(names)})(?![A-Za-z0-9])")
        self._encoded = re.compile(any_of({form for text in (*self._secrets, *shown) for form in _in_base64(text)}))
        self.within: dict[str, int] = {}

    def file(self, path: Path) -> list[str]:
        """Kinds of finding in a file: `a secret`, `the address of a node`, `the name of a worker`, without the text."""
        found: dict[str, None] = {}
        for text in _pieces(path):
            found.update(dict.fromkeys(self.text(text)))
        return list(found)

    def text(self, text: str) -> Iterator[str]:
        yield from self._plain(text)
        if "%" in text:
            plain = _unquoted(text)
            if plain != text:
                yield from (f"{what}, URL-encoded" for what in self._plain(plain))
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


def _in_base64(text: str) -> set[str]:
    """What base64 of any text with this one in it must contain, at each offset and in both alphabets."""
    forms = set()
    for offset, first in enumerate((0, 2, 3)):
        encoded = base64.b64encode(b"\0" * offset + text.encode()).decode().rstrip("=")
        last = len(encoded) - ((offset + len(text.encode())) % 3 > 0)  # the last character has bits of what follows
        forms |= {encoded[first:last], encoded[first:last].replace("+", "-").replace("/", "_")}
    return forms


def _in_json(text: str) -> set[str]:
    return {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def _unquoted(text: str) -> str:
    """URL-encoded text decoded, at most three times."""
    for _time in range(3):
        text = unquote(text, errors="replace")
    return text


def _pieces(path: Path) -> Iterator[str]:
    with path.open("rb") as stream:
        before = b""
        while piece := stream.read(PIECE_BYTES):
            yield (before + piece).decode("utf-8", "replace")
            before = piece[-OVERLAP:]


def problems(scan: Scan, folder: Path, names: Iterable[str]) -> list[str]:
    """``<file>: <kind of finding>`` for the first files with findings."""
    found: list[str] = []
    for name in names:
        found += [f"{name}: {what}" for what in scan.file(folder / name)]
        if len(found) >= MAX_FOUND:
            break
    return found


def own_terms(secrets: Iterable[str], collection: Path) -> frozenset[str]:
    """The secrets that are a single word and occur in a file of the collection: every delivery contains them."""
    words = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET and _WORD.fullmatch(secret)}
    found: set[str] = set()
    if not words:
        return frozenset()
    for path in sorted(collection.rglob("*")):
        if path.suffix in _KINDS and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            found |= {word for word in words - found if word in text}
    return frozenset(found)


def own_words(collection: Path) -> frozenset[str]:
    """The words, in lower case, of the files whose texts a delivery shows."""
    found: set[str] = set()
    for folder in ("schemas", "skus", "failures", "plugins/plugin_utils"):
        for path in sorted((collection / folder).rglob("*")):
            if path.suffix in _KINDS and path.is_file():
                text = path.read_text(encoding="utf-8", errors="replace").lower()
                found.update(_TOKEN.findall(text))
                found.update(_PART.findall(text))
    return frozenset(found)
