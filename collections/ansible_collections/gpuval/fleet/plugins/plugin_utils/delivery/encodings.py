"""Encodings that can hide a text: URL encoding, base64, JSON."""

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
    """The substrings that base64 of any text with this one in it must contain, at each offset and in both alphabets.

    Texts of six characters and more give six or more fixed characters; shorter ones match by chance.
    """
    raw, found = text.encode(), set()
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        complete = len(encoded) - ((before + len(raw)) % 3 > 0)  # the last character has bits of what follows
        form = encoded[(0, 2, 3)[before] : complete]
        found |= {form, form.translate(_TO_URL_SAFE)}
    return found


def in_json(text: str) -> set[str]:
    """The text as it is escaped within a JSON string, with and without ``ensure_ascii``."""
    return {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def decodings(text: str) -> Iterator[str]:
    """URL-encoded text decoded once, then again while that changes it."""
    for _time in range(MAX_UNQUOTED):
        plain = unquote(text, errors="replace")
        if plain == text:
            break
        yield plain
        text = plain


def unquoted(text: str) -> str:
    """URL-encoded text decoded completely."""
    for plain in decodings(text):
        text = plain
    return text
