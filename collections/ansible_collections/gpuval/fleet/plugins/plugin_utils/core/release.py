"""The version of the collection."""

from __future__ import annotations

import functools
import re

from .paths import COLLECTION


@functools.cache
def version() -> str:
    """From MANIFEST.json of an installed collection, else from galaxy.yml."""
    file = next(path for name in ("MANIFEST.json", "galaxy.yml") if (path := COLLECTION / name).exists())
    text = re.search(r'^\s*"?version"?: "?([^\s",]+)', file.read_text(encoding="utf-8"), re.MULTILINE)
    return text[1] if text else "unknown"
