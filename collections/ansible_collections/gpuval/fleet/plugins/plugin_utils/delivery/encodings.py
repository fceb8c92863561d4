"""Text that hides in other text: URL-encoded and in base64."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from urllib.parse import unquote

#: Base64 of eight characters or more, in either alphabet.
BASE64 = re.compile(r"[A-Za-z0-9+/_-]{11,}={0,2}", re.ASCII)
PERCENT = re.compile(r"[^\s\"'<>]*%[0-9A-Fa-f]{2}[^\s\"'<>]*")
_TO_STANDARD = str.maketrans("-_", "+/")
MAX_UNQUOTED = 3


def decoded(run: str) -> Iterator[str]:
    """What a run of base64 may stand for, begun at each of its first four characters: it may follow other text."""
    run = run.rstrip("=").translate(_TO_STANDARD)
    for start in range(4):
        part = run[start:]
        part = part[: len(part) - (len(part) % 4 == 1)]
        try:
            yield base64.b64decode(part + "=" * (-len(part) % 4)).decode("latin-1")
        except binascii.Error:
            continue


def unquoted(text: str) -> str:
    """URL-encoded text as it is, also where it was encoded several times."""
    for _time in range(MAX_UNQUOTED):
        plain = unquote(text, errors="replace")
        if plain == text:
            break
        text = plain
    return text
