"""Secrets that are ordinary words of gpuval's own files, and so part of every delivery."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ...module_utils.redaction import SHORTEST_SECRET

_WORD = re.compile(r"[A-Za-z_-]+")
_KINDS = frozenset({".py", ".json", ".yml", ".yaml", ".j2", ".js", ".css", ".html", ".md"})


def own_terms(secrets: Iterable[str], collection: Path) -> frozenset[str]:
    """The secrets that are a single word and occur in a file of the collection."""
    words = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET and _WORD.fullmatch(secret)}
    found: set[str] = set()
    if not words:
        return frozenset()
    for path in sorted(collection.rglob("*")):
        if path.suffix in _KINDS and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            found |= {word for word in words - found if word in text}
    return frozenset(found)
