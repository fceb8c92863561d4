"""Wall time as records carry it."""

from __future__ import annotations

from datetime import datetime, timezone


def now() -> str:
    """Return the present as RFC 3339 in UTC with milliseconds and Z."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def parse(text: str) -> datetime:
    """Read an RFC 3339 time in UTC with Z. Raises ``ValueError``."""
    if not text.endswith("Z"):
        raise ValueError(f"{text!r} is not a time in UTC ending in Z")
    return datetime.fromisoformat(text[:-1]).replace(tzinfo=timezone.utc)
