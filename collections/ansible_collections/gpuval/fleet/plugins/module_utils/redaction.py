"""Take secrets out of text that leaves a node: those that are known, and what looks like one.

Also runs on nodes whose Python is too old for the runner.
"""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, urlsplit

HIDDEN = "***"
#: Files of a run that hold secrets. They are read for what to hide, and never leave the node.
PRIVATE_FILES = ("store.json", "rclone.conf", "environment.json")
SHORTEST_SECRET = 8
MAX_FILE_BYTES = 4 << 20

_NAMES = (
    r"(?:pass(?:word|wd|phrase)|secret|secret_?(?:access_?)?key|token|api[_-]?key|access_?key(?:_?id)?|private[_-]?key"
    r"|credentials?|signature|cookie)"
)
# Each has a fixed beginning and bounded repetitions: a long line costs no more than its length.
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


def is_secret(name):
    """Whether a variable of that name may hold a secret."""
    return bool(re.search(_NAMES, name, re.I))


def _unsigned(url):
    """Nothing of a signed URL beyond its path."""
    path, _mark, query = url.partition("?")
    return f"{path}?{HIDDEN}" if _SIGNED.search(query) else url


class Redaction:
    """Hides secrets: `known` ones wherever they stand, also URL-encoded, and what the patterns find."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        wanted = {
            form for secret in known if len(secret) >= SHORTEST_SECRET for form in (secret, quote(secret, safe=""))
        }
        self._known = sorted(wanted, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, HIDDEN)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return text

    def log(self, text: str) -> str:
        """A long text: known secrets and signed URLs. All that looks like a secret would take minutes for a fleet."""
        for secret in self._known:
            text = text.replace(secret, HIDDEN)
        return _URL.sub(lambda found: _unsigned(found.group()), text)

    def data(self, data: bytes) -> bytes:
        """The content of a file, without secrets."""
        return self(data.decode("utf-8", "replace")).encode("utf-8", "replace")


def secrets_of_run(directory: Path | str) -> set[str]:
    """The secrets in a run's folder on a node: signatures of URLs, keys, jobs' own. What cannot be read hides none."""
    found: set[str] = set()
    folder = Path(directory)
    for path in (*(folder / name for name in PRIVATE_FILES), *folder.glob("secrets/*.json")):
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found |= _of_ini(text) if path.suffix == ".conf" else _of_json(text, whole=path.parent != folder)
    return found


def _of_ini(text: str) -> set[str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error:
        return set()
    names = re.compile(_NAMES, re.I)
    return {value for section in parser.sections() for key, value in parser[section].items() if names.search(key)}


def _of_json(text: str, whole: bool) -> set[str]:
    """Signatures in URLs; all texts of a file that holds nothing but secrets (`whole`)."""
    try:
        document = json.loads(text)
    except ValueError:
        return set()
    if whole and isinstance(document, dict):  # names of users are words of any text
        document = {name: value for name, value in document.items() if not name.endswith("_USERNAME")}
    found: set[str] = set()
    waiting: list[object] = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and whole:
            found.add(value)
        elif isinstance(value, str) and "://" in value and "?" in value:
            query = urlsplit(value).query
            found |= {
                part.partition("=")[2] for part in query.split("&") if re.match(r"X-Amz-(Sig|Cred|Sec)", part, re.I)
            }
    return found
