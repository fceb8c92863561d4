"""Secrets of a stage: where they come from, how its process gets them, and how they are hidden in all that it says."""

from __future__ import annotations

import base64
import codecs
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from gpuval_node.visible_text import visible

from gpuval_runner.errors import StoreError
from gpuval_runner.files import read_object, write_atomically
from gpuval_runner.layout import NodeDirectory
from gpuval_runner.plan import Plan, Stage

HIDDEN = b"***"
#: In the working folder: what the steps' program reads and removes.
SECRETS_FILE = "secrets.json"
MAX_BYTES = 4 << 20
#: The controller refuses shorter secrets.
SHORTEST = 4
#: The end of variables whose values are shown: names of users are words of any text, and parts of nodes' names.
USERNAME = "_USERNAME"
#: Of a line of a value, and of a part of its base64.
SHORTEST_PART = 8
BASE64_LINE = 76
#: What begins an escape; a line of so many characters waits for its end no longer.
_ESCAPE = re.compile("[\x1b\x90\x98\x9b\x9d-\x9f]")
MAX_LINE = 1 << 16


def load(directory: NodeDirectory, plan: Plan, stage: Stage, environment: Mapping[str, str]) -> dict[str, str]:
    """The stage's secrets by their variables: from the launch, in a pod from its container. Raises ``StoreError``."""
    known = environment if plan.runtime == "pod" else read_object(directory.secrets(stage.name), MAX_BYTES)
    found = {name: known.get(name) for name in stage.secrets}
    missing = [name for name, value in found.items() if not isinstance(value, str) or not value]
    if missing:
        raise StoreError(f"secret {', '.join(missing)} is not on this node: validate again")
    return {name: str(value) for name, value in found.items()}


def write(work: Path, secrets: Mapping[str, str]) -> None:
    """Write what the steps' program reads, for this user alone. Raises ``OSError``."""
    if secrets:
        write_atomically(work / SECRETS_FILE, json.dumps(secrets).encode())


def forms(value: str) -> set[bytes]:
    """How a value may stand in text: as it is, by line, escaped, quoted for URLs and shells, as base64."""
    text = value.strip()
    raw = text.encode("utf-8", "surrogateescape")
    found = {raw, quote(raw).encode(), quote(raw, safe="").encode(), quote_plus(raw).encode()}
    found |= {json.dumps(text, ensure_ascii=ascii)[1:-1].encode("utf-8", "surrogateescape") for ascii in (True, False)}
    found.add(raw.replace(b"'", b"'\\''"))
    parts = {line.strip() for line in raw.splitlines()}
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(raw)
        found |= {whole, whole.rstrip(b"=")}
        parts |= {whole[place : place + BASE64_LINE] for place in range(0, len(whole), BASE64_LINE)}
        for before in range(3):  # behind a user's name, say: only characters that are the value's alone
            first, last = -(-before * 8 // 6), (before + len(raw)) * 8 // 6
            parts.add(encode(b"\0" * before + raw)[first:last])
    return {form for form in found if len(form) >= SHORTEST} | {part for part in parts if len(part) >= SHORTEST_PART}


def hidden(secrets: Mapping[str, str]) -> list[str]:
    """The values that no output may show."""
    return [value for name, value in secrets.items() if not name.endswith(USERNAME)]


class _Matcher:
    """Replaces byte strings by ``***`` in a stream of any pieces; what may begin one waits for the next piece."""

    def __init__(self, known: Collection[bytes]) -> None:
        forms = sorted(known, key=len, reverse=True)  # of two that begin at one place the longer
        self._pattern = re.compile(_alternatives(forms, 2))
        self._longest, self._has_lines = max(map(len, forms), default=0), any(b"\n" in form for form in forms)
        self._held = b""
        self._by_first: defaultdict[int, list[bytes]] = defaultdict(list)
        for form in forms:
            self._by_first[form[0]].append(form)

    def feed(self, data: bytes) -> bytes:
        """What of the stream so far can be shown now."""
        text, self._held = self._held + data, b""
        shown, place, hold = [], 0, self._hold(text, 0)
        while True:
            found = self._pattern.search(text, place)
            if found is None or found.start() >= hold:
                break
            shown += [text[place : found.start()], HIDDEN]
            place = found.end()
            hold = hold if place <= hold else self._hold(text, place)
        shown.append(text[place:hold])
        self._held = text[hold:]
        return b"".join(shown)

    def end(self) -> bytes:
        """What is left at the end of the stream."""
        left, self._held = self._held, b""
        return self.whole(left)

    def whole(self, text: bytes) -> bytes:
        return self._pattern.sub(HIDDEN, text)

    def _hold(self, text: bytes, place: int) -> int:
        """From where on the text may be the beginning of a secret that the next piece continues."""
        place = max(place, len(text) - self._longest + 1, 0 if self._has_lines else text.rfind(b"\n") + 1)
        for start in range(place, len(text)):
            if any(form.startswith(text[start:]) for form in self._by_first.get(text[start], ())):
                return start
        return len(text)


def _alternatives(forms: Sequence[bytes], levels: int) -> bytes:
    """A pattern of byte strings in their order, that share their first `levels` bytes: a pattern tries all of its
    alternatives at each byte of a text, and a leader has the signatures of hundreds of members."""
    if not levels:
        return b"|".join(map(re.escape, forms))
    rests: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for form in forms:
        rests[form[:1]].append(form[1:])
    return b"|".join(re.escape(head) + b"(?:" + _alternatives(rest, levels - 1) + b")" for head, rest in rests.items())


class _VisibleStream:
    """Takes out of a stream what no reader sees; a line waits from its first escape on."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._held = ""

    def feed(self, data: bytes, final: bool = False) -> bytes:
        text = self._held + self._decoder.decode(data, final)
        begins = _ESCAPE.search(text, max(text.rfind("\n"), text.rfind("\r")) + 1)
        waits = begins is not None and not final and len(text) - begins.start() < MAX_LINE
        cut = begins.start() if begins is not None and waits else len(text)
        self._held = text[cut:]
        return "".join(map(visible, text[:cut].splitlines(keepends=True))).encode("utf-8", "surrogateescape")


class Redactor:
    """Replaces secrets by ``***`` in a stream of any pieces.

    Escapes within a secret hide it, and the controller takes them out: so they go, and it is looked for once more.
    ``signatures``: of signed URLs, which stand in no other form.
    """

    def __init__(self, secrets: Iterable[str], signatures: Iterable[str] = ()) -> None:
        known = {form for secret in secrets if len(secret.strip()) >= SHORTEST for form in forms(secret)}
        known |= {signature.encode() for signature in signatures if len(signature) >= SHORTEST_PART}
        self._known = bool(known)
        self._as_printed, self._visible, self._as_read = _Matcher(known), _VisibleStream(), _Matcher(known)

    def feed(self, data: bytes) -> bytes:
        """What of the stream so far can be shown now."""
        return self._as_read.feed(self._visible.feed(self._as_printed.feed(data))) if self._known else data

    def end(self) -> bytes:
        """What is left at the end of the stream."""
        left = self._visible.feed(self._as_printed.end(), final=True)
        return self._as_read.feed(left) + self._as_read.end() if self._known else b""

    def text(self, text: str) -> str:
        """A whole text."""
        if not self._known:
            return text
        lines = self._as_printed.whole(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
        shown = "".join(map(visible, lines.splitlines(keepends=True)))
        return self._as_read.whole(shown.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def document(self, value: Any) -> Any:
        """What was read as JSON, with its names and texts hidden."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.document(key): self.document(item) for key, item in value.items()}
        return [self.document(item) for item in value] if isinstance(value, list) else value
