"""Reduces a text to what a terminal shows, in which secrets are searched. Also packed into the runner."""

from __future__ import annotations

import re
import unicodedata

_ANSI = re.compile(
    r"""
    (?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]                               # CSI: colours, cursor
    | (?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f]).*?(?:\x07|\x1b\\|\x9c|\Z) # OSC, DCS and other strings up to their terminator
    | \x1b[ -/]*[0-~]                                              # two-character and charset sequences
    | (?P<bold>[^\n\r\x08])\x08(?=(?P=bold)) | _\x08               # printed over: bold and underlined text
    """,
    re.VERBOSE | re.DOTALL,
)
#: Controls, invisible and bidirectional format characters, non-characters, separators of lines and paragraphs.
_UNSAFE_CATEGORIES = ("Cc", "Cf", "Cn", "Zl", "Zp")
_SUSPECT = re.compile(r"[^\n\r\t\x20-\x7e]")
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?")
_SPACES = re.compile(r"\s+")


def visible(text: str) -> str:
    """Return text without terminal escapes and control, invisible or bidirectional characters; line ends, tabs stay."""
    if not _SUSPECT.search(text):
        return text
    text = _ANSI.sub("", text)
    # looks up each distinct character once: a hostile log has millions of characters
    suspects = (character for character in set(text) if _SUSPECT.match(character))
    return text.translate({ord(one): None for one in suspects if unicodedata.category(one) in _UNSAFE_CATEGORIES})


def one_line(text: str, limit: int) -> str:
    """Return a text on one line of at most `limit` characters, without escape sequences and control characters."""
    text = _ESCAPES.sub("", text[: 16 * limit])
    text = "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else c for c in text)
    text = _SPACES.sub(" ", text).strip()
    return text if len(text) <= limit else text[: limit - 3] + "..."
