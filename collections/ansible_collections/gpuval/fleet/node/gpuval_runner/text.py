"""Text from outside made safe for one line of a record or a terminal."""

from __future__ import annotations

import re
import unicodedata

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?")
_SPACES = re.compile(r"\s+")
_ELLIPSIS = "..."


def one_line(text: str, limit: int) -> str:
    """Return text on one line of at most `limit` characters, without escape sequences and control characters."""
    text = _ESCAPES.sub("", text[: 16 * limit])
    text = "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else c for c in text)
    text = _SPACES.sub(" ", text).strip()
    return text if len(text) <= limit else text[: limit - len(_ELLIPSIS)] + _ELLIPSIS


def encodable(text: str) -> str:
    """Return text in which lone surrogates, which UTF-8 cannot carry, are question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def seconds(value: float) -> str:
    """Return a duration for people: 0.25 s, 12 s, 3600 s."""
    return f"{value:.3g} s" if abs(value) < 10 else f"{value:.0f} s"
