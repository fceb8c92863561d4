"""Text that hides in other text: URL-encoded and in base64."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from urllib.parse import unquote

BASE64 = re.compile(r"[A-Za-z0-9+/_-]{4,}={0,2}", re.ASCII)
PERCENT = re.compile(r"(?<![^\s\"'<>])[^\s\"'<>]*%[0-9A-Fa-f]{2}[^\s\"'<>]*")
_TO_URL_SAFE = str.maketrans("+/", "-_")
MAX_UNQUOTED = 3


def in_base64(text: str) -> set[str]:
    """What base64 of any text that holds this one has in it, whatever stands before and behind it; both alphabets.

    Six characters encode to six or more that no other text has; shorter texts come about by chance.
    """
    raw, found = text.encode(), set()
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        complete = len(encoded) - ((before + len(raw)) % 3 > 0)  # the last character has bits of what follows
        form = encoded[(0, 2, 3)[before] : complete]
        found |= {form, form.translate(_TO_URL_SAFE)}
    return found


def in_json(text: str) -> set[str]:
    """The text within a string of JSON, where quotes and backslashes are escaped; in ASCII alone, and not."""
    return {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def decodings(text: str) -> Iterator[str]:
    """URL-encoded text decoded once, and again as long as that changes it."""
    for _time in range(MAX_UNQUOTED):
        plain = unquote(text, errors="replace")
        if plain == text:
            break
        yield plain
        text = plain


def unquoted(text: str) -> str:
    """URL-encoded text as it is, also where it was encoded several times."""
    for plain in decodings(text):
        text = plain
    return text
