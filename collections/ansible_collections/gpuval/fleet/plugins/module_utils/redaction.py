"""The redactor: hides secrets in text: known secrets in every usual encoding, and text that looks like a secret. Also
packed into the runner, and run on nodes whose Python is too old for the runner."""

from __future__ import annotations

import base64
import codecs
import configparser
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

from .visible_text import visible

HIDDEN = "***"
#: Files of a run that hold secrets. The redactor reads them; they never leave the node.
PRIVATE_FILES = ("store.json", "rclone.conf", "environment.json")
SHORTEST_SECRET = 8
#: Minimum characters of a secret's line, and of a part of its base64, that are hidden alone.
SHORTEST_PART = 8
BASE64_LINE = 76
MAX_FILE_BYTES = 4 << 20
#: Doubled characters of a secret up to which all combinations of overprinting are searched; beyond, only all at once.
MAX_DOUBLED = 6
#: Start of an escape sequence, and the length of a line from which a stream waits no longer for the line's end.
_ESCAPE = re.compile("[\x1b\x90\x98\x9b\x9d-\x9f]|[^\n\r\x08]\x08")
MAX_LINE = 1 << 16

_NAMES = (
    r"(?:pass(?:word|wd|phrase)|secret|secret_?(?:access_?)?key|token|api[_-]?key|access_?key(?:_?id)?|(?:private|signing)[_-]?key"
    r"|credentials?|signature|cookie)"
)
# Each pattern has a fixed start and bounded repetitions: its work is linear in the length of a line.
_URL = re.compile(r"https?://[^\s\"'<>]{1,16384}", re.I)
_SIGNED = re.compile(r"(?:signature|credential|token|sig)=", re.I)
_KEY = r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
_PATTERNS = (
    (_URL, lambda found: _unsigned(found.group())),
    (re.compile(r"(://)[^\s/@\"'<>]{1,512}@"), r"\1***@"),  # user and password in a URL
    (re.compile(_KEY, re.S), HIDDEN),
    (re.compile(r"(authorization[\"']?\s{0,8}[=:]\s{0,8})[^\n\"']{1,4096}", re.I), r"\1***"),
    (re.compile(r"\b(Bearer\s{1,8})[^\s\"']{6,}", re.I), r"\1***"),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), HIDDEN),
    (re.compile(r"\b(?:hf_[A-Za-z0-9]{20}|gh[pousr]_[A-Za-z0-9]{30})[A-Za-z0-9]*"), HIDDEN),
    (re.compile("(" + _NAMES + r"[\"']?\s{0,8}[=:]\s{0,8})([\"'])(?:(?!\2)[^\n]){0,4096}\2", re.I), r"\1\2***\2"),
    (re.compile("(" + _NAMES + r"\s{0,8}[=:]\s{0,8})[^\s,;&{}\[\]\"'*][^\s,;&{}\"']{0,4096}", re.I), r"\1***"),
)
#: Each match of a pattern has one of these texts, in lower case, near its start: only lines around them are searched.
#: Each has an expression of its own, since a fixed start is found ten times as fast as an alternative.
_TRIGGERS = (
    *map(re.compile, ("://", "authorization", "bearer", "akia", "asia", "hf_", "gh[pousr]_")),
    *(
        re.compile(name + r"[\"']?\s{0,8}[=:]")
        for name in ("pass(?:word|wd|phrase)", "secret", "key(?:_?id)?", "token", "credentials?", "signature", "cookie")
    ),
)
#: Maximum characters between a word such as `password` and its value, which may be on the next line.
_GAP = 20
_SIGNATURE = re.compile(r"X-Amz-(?:Signature|Credential|Security-Token)=([^&\s\"'<>]{8,})", re.I)
#: Parts of a signature's value; the first is the signature or the key's id, and dates are shorter.
_SIGNATURE_PART = re.compile(r"[A-Za-z0-9]{8,}")
SHORTEST_SIGNATURE_PART = 16


def is_secret(name: str) -> bool:
    """Whether a variable may hold a secret, by its name."""
    return bool(re.search(_NAMES, name, re.I))


def secret_forms(secret: str) -> set[bytes]:
    """Return all forms of a secret in text: plain, lines, escaped, quoted for URLs (twice) and shells, base64, hex."""
    text = secret.strip()
    raw = text.encode("utf-8", "surrogateescape")
    quoted = {quote(raw), quote(raw, safe=""), quote_plus(raw)}
    quoted |= {quote(form, safe="") for form in quoted}
    quoted |= {re.sub("%[0-9A-F]{2}", lambda match: match.group().lower(), form) for form in quoted}
    forms = {raw, raw.replace(b"'", b"'\\''"), *(form.encode() for form in quoted)}
    forms |= {json.dumps(text, ensure_ascii=ascii)[1:-1].encode("utf-8", "surrogateescape") for ascii in (True, False)}
    forms |= {repr(text)[1:-1].encode("utf-8", "surrogateescape"), raw.hex().encode(), raw.hex().upper().encode()}
    parts = {line.strip() for line in raw.splitlines()} | base64_forms(raw)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(raw)
        forms |= {encoded, encoded.rstrip(b"=")}
        parts |= {encoded[start : start + BASE64_LINE] for start in range(0, len(encoded), BASE64_LINE)}
    return forms | {part for part in parts if len(part) >= SHORTEST_PART}


def overprinted_forms(form: bytes) -> set[bytes]:
    """Return what a reader sees of a secret's form when doubled characters are printed over each other, as in bold."""
    doubled = [index for index in range(1, len(form)) if form[index] == form[index - 1]]
    numbers = range(1, len(doubled) + 1) if len(doubled) <= MAX_DOUBLED else [len(doubled)]
    visible_forms = (
        bytes(byte for index, byte in enumerate(form) if index not in gone)
        for number in numbers
        for gone in map(set, combinations(doubled, number))
    )
    return {form for form in visible_forms if len(form) >= SHORTEST_PART}


def base64_forms(raw: bytes) -> set[bytes]:
    """Return the texts that base64 of any data with these bytes contains: for each offset, in both alphabets."""
    forms = set()
    for offset in range(3):  # in bytes; characters at both ends also depend on the neighbouring bytes
        first, last = -(-offset * 8 // 6), (offset + len(raw)) * 8 // 6
        encoded = base64.b64encode(b"\0" * offset + raw)[first:last]
        forms |= {encoded, encoded.translate(bytes.maketrans(b"+/", b"-_"))}
    return forms


def any_of(words: Iterable[str]) -> str:
    """Return a pattern that matches the longest of the words at a position, as fast for a thousand words as for a few:
    it is a tree of common prefixes, since Python would try flat alternatives one by one. No words: matches nothing."""
    tree: dict[str, Any] = {}
    for word in words:
        branch = tree
        for character in word:
            branch = branch.setdefault(character, {})
        branch[""] = {}
    return _word_pattern(tree) if tree else r"(?!)"


def _word_pattern(tree: dict[str, Any]) -> str:
    run = ""
    while len(tree) == 1 and "" not in tree:  # without recursion: words may be long
        character, tree = next(iter(tree.items()))
        run += re.escape(character)
    if set(tree) <= {""}:
        return run
    branches = [re.escape(character) + _word_pattern(below) for character, below in sorted(tree.items()) if character]
    return f"{run}(?:{'|'.join(branches)}){'?' if '' in tree else ''}"


@lru_cache(maxsize=8)
def _pattern_of(forms: frozenset[bytes]) -> re.Pattern[bytes]:
    """Return the pattern that matches any form of a secret, cached: all stages of a run hide the same signatures."""
    return re.compile(any_of(form.decode("latin-1") for form in forms).encode("latin-1"))


class SecretMatcher:
    """Replaces byte strings by ``***`` in a stream of pieces; holds back a piece's end that may begin such a string."""

    def __init__(self, forms: set[bytes]) -> None:
        self._pattern = _pattern_of(frozenset(forms))
        self._longest, self._has_lines = max(map(len, forms), default=0), any(b"\n" in form for form in forms)
        self._held = b""
        self._by_first: defaultdict[int, list[bytes]] = defaultdict(list)
        for form in forms:
            self._by_first[form[0]].append(form)

    def feed(self, data: bytes) -> bytes:
        """Add a piece of a stream; return the redacted data that can be shown now."""
        text, self._held = self._held + data, b""
        parts, start, hold = [], 0, self._first_held(text, 0)
        while True:
            match = self._pattern.search(text, start)
            if match is None or match.start() >= hold:
                break
            parts += [text[start : match.start()], HIDDEN.encode()]
            start = match.end()
            hold = hold if start <= hold else self._first_held(text, start)
        parts.append(text[start:hold])
        self._held = text[hold:]
        return b"".join(parts)

    def end(self) -> bytes:
        """Return the redacted data that was held back until the end of the stream."""
        tail, self._held = self._held, b""
        return self.whole(tail)

    def whole(self, data: bytes) -> bytes:
        return self._pattern.sub(HIDDEN.encode(), data)

    def _first_held(self, text: bytes, start: int) -> int:
        """Return the position in a stream's text from which a secret may begin that the next piece continues."""
        start = max(start, len(text) - self._longest + 1, 0 if self._has_lines else text.rfind(b"\n") + 1)
        for position in range(start, len(text)):
            if any(form.startswith(text[position:]) for form in self._by_first.get(text[position], ())):
                return position
        return len(text)


class VisibleStream:
    """Removes from a stream what a terminal does not show, as escape sequences; holds back a line from its first."""

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


class SecretRedactor:
    """Replaces secrets by ``***``: known secrets (even between escapes), and matches of the patterns. ``signatures``
    are those of signed URLs, which occur in no other form. ``shortest`` is the minimum length in characters."""

    def __init__(
        self, secrets: Iterable[str] = (), signatures: Iterable[str] = (), shortest: int = SHORTEST_SECRET
    ) -> None:
        secrets = [secret.strip() for secret in secrets if len(secret.strip()) >= shortest]
        forms = {form for secret in secrets for form in secret_forms(secret)}
        forms |= {signature.encode() for signature in signatures if len(signature) >= SHORTEST_PART}
        self._has_known = bool(forms)
        printed = {form for secret in secrets for form in overprinted_forms(secret.encode("utf-8", "surrogateescape"))}
        self._as_printed, self._as_read = SecretMatcher(forms), SecretMatcher(forms | printed)
        self._visible = VisibleStream()

    def __call__(self, text: str) -> str:
        """Return a text without known secrets and without text that looks like a secret."""
        text = self.known(text)
        signatures = _signature_parts(_SIGNATURE.findall(text))
        if signatures:  # also a signature outside of a URL
            text = _SIGNATURE_PART.sub(lambda match: HIDDEN if match.group() in signatures else match.group(), text)
        if "-----BEGIN " in text:
            return _hide_patterns(text)
        parts, end = [], 0
        for first, last in _suspicious_lines(text):
            parts += [text[end:first], _hide_patterns(text[first:last])]
            end = last
        return "".join([*parts, text[end:]])

    def data(self, data: bytes) -> bytes:
        """Return the content of a file without secrets."""
        return self(data.decode("utf-8", "replace")).encode("utf-8", "replace")

    def known(self, text: str) -> str:
        """Return a text without known secrets."""
        if not self._has_known:
            return text
        text = self._as_printed.whole(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
        printed = "".join(map(visible, text.splitlines(keepends=True)))
        if printed == text:
            return text
        return self._as_read.whole(printed.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def document(self, value: Any) -> Any:
        """Return a JSON value with known secrets hidden in its names and texts."""
        if isinstance(value, str):
            return self.known(value)
        if isinstance(value, dict):
            return {self.document(key): self.document(item) for key, item in value.items()}
        return [self.document(item) for item in value] if isinstance(value, list) else value

    def feed(self, data: bytes) -> bytes:
        """Add a piece of a stream; return the data that can be shown now, without known secrets."""
        return self._as_read.feed(self._visible.feed(self._as_printed.feed(data))) if self._has_known else data

    def end(self) -> bytes:
        """Return the redacted data that was held back until the end of the stream."""
        tail = self._visible.feed(self._as_printed.end(), final=True)
        return self._as_read.feed(tail) + self._as_read.end() if self._has_known else b""


def _suspicious_lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each group of lines in which a pattern may match."""
    lower, first, last = text.replace("\u0130", "i").lower(), 0, 0  # its lower case would be two characters
    spans = sorted(match.span() for trigger in _TRIGGERS for match in trigger.finditer(lower))
    for trigger_start, trigger_end in spans:
        if trigger_end + _GAP <= last:
            continue
        start = text.rfind("\n", 0, trigger_start) + 1
        if start > last:
            if last:
                yield first, last
            first = start
        end = text.find("\n", trigger_end + _GAP)
        last = end if end >= 0 else len(text)
    if last:
        yield first, last


def _hide_patterns(text: str) -> str:
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def _unsigned(url: str) -> str:
    """Return a URL, cut off after its path if it is signed."""
    path, _mark, query = url.partition("?")
    return f"{path}?{HIDDEN}" if _SIGNED.search(query) else url


def _signature_parts(values: Iterable[str]) -> set[str]:
    """Return the secret parts of signatures, as a set for fast lookup."""
    secret_parts = set()
    for value in values:
        parts = _SIGNATURE_PART.findall(value)
        secret_parts |= {*parts[:1], *(part for part in parts if len(part) >= SHORTEST_SIGNATURE_PART)}
    return secret_parts


def secrets_of_run(directory: Path | str) -> set[str]:
    """Return the secrets in a run's folder on a node: signatures of URLs, keys, jobs' secrets, where readable."""
    secrets: set[str] = set()
    folder = Path(directory)
    for path in (*(folder / name for name in PRIVATE_FILES), *folder.glob("secrets/*.json")):
        text = ""
        with suppress(OSError):
            text = path.read_text(encoding="utf-8", errors="replace") if path.stat().st_size <= MAX_FILE_BYTES else ""
        secrets |= _of_ini(text) if path.suffix == ".conf" else _of_json(text, secrets_only=path.parent != folder)
    return secrets


def _of_ini(text: str) -> set[str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error:
        return set()
    return {value for section in parser.sections() for key, value in parser[section].items() if is_secret(key)}


def _of_json(text: str, secrets_only: bool) -> set[str]:
    """Return the signatures in URLs of a JSON text; with `secrets_only`, all texts in it."""
    try:
        document = json.loads(text)
    except ValueError:
        return set()
    if secrets_only and isinstance(document, dict):  # user names are common words
        document = {name: value for name, value in document.items() if not name.endswith("_USERNAME")}
    secrets: set[str] = set()
    waiting: list[object] = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and secrets_only:
            secrets.add(value)
        elif isinstance(value, str) and "://" in value and "?" in value:
            query = urlsplit(value).query
            secrets |= {
                part.partition("=")[2] for part in query.split("&") if re.match(r"X-Amz-(Sig|Cred|Sec)", part, re.I)
            }
    return secrets
