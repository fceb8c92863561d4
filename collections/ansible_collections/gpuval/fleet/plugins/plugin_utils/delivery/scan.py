"""The last look at what was made: no known secret and no known address in any byte of it, in whatever form.

Made apart from what converts texts, on the bytes that were written, so that a mistake there is found here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from ansible_collections.gpuval.fleet.plugins.module_utils.redaction import SHORTEST_SECRET
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery.disguise import NOT_OF_NUMA, Disguise
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery.encodings import in_base64, in_json, unquoted
from ansible_collections.gpuval.fleet.plugins.plugin_utils.delivery.words import any_of

PIECE_BYTES = 4 << 20
#: What lies across the end of a piece is seen with the next one.
OVERLAP = 8192
MAX_FOUND = 20


class Scan:
    """Looks for what a disguise knows: secrets, addresses of nodes, and names of workers that are no one's id.

    Secrets that are ``own_words`` of gpuval are not looked for: they are in every delivery.
    """

    def __init__(self, disguise: Disguise, own_words: Collection[str] = ()) -> None:
        known = disguise.known
        given = {identity.lower() for identity in known.names.values()}
        secrets = [secret for secret in known.secrets if len(secret) >= SHORTEST_SECRET and secret not in own_words]
        self._secrets = sorted({form for secret in secrets for form in (secret, *in_json(secret))})
        shown = {*known.addresses} - set(known.names.values())
        self._addresses = re.compile(rf"(?<![0-9A-Za-z:.])(?:{any_of(shown)})(?![0-9A-Za-z]|:[0-9A-Fa-f]*:)(?!\.\d)")
        names = {name for name in disguise.literal if name.lower() not in given}
        self._names = re.compile(
            rf"{NOT_OF_NUMA}(?<![A-Za-z0-9_-])(?<![A-Za-z0-9]\.)(?:{any_of(names)})(?![A-Za-z0-9_-])"
        )
        #: Within other words a name is told, and no error: node-1 in spare-node-1 may be a machine of its own.
        self._within = re.compile(rf"{NOT_OF_NUMA}(?<![A-Za-z0-9])(?:{any_of(names)})(?![A-Za-z0-9])")
        self._encoded = re.compile(any_of({form for text in (*self._secrets, *shown) for form in in_base64(text)}))
        self.within: dict[str, int] = {}

    def file(self, path: Path) -> list[str]:
        """What was found in a file, without saying it: `a secret`, `the address of a node`, `the name of a worker`."""
        found: dict[str, None] = {}
        for text in _pieces(path):
            found.update(dict.fromkeys(self.text(text)))
        return list(found)

    def text(self, text: str) -> Iterator[str]:
        yield from self._plain(text)
        if "%" in text:
            plain = unquoted(text)
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


def _pieces(path: Path) -> Iterator[str]:
    with path.open("rb") as stream:
        before = b""
        while piece := stream.read(PIECE_BYTES):
            yield (before + piece).decode("utf-8", "replace")
            before = piece[-OVERLAP:]


def problems(scan: Scan, folder: Path, names: Iterable[str]) -> list[str]:
    """``<file>: <what was found>`` for the first files with something in them."""
    told = []
    for name in names:
        told += [f"{name}: {what}" for what in scan.file(folder / name)]
        if len(told) >= MAX_FOUND:
            break
    return told
