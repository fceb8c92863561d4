"""How people are told of many things in few words."""

from __future__ import annotations

from collections.abc import Iterable


def some_of(things: Iterable[object], most: int = 8, between: str = ", ") -> str:
    """The first ``most``, and how many more there are: ``a, b and 3 more``."""
    words = [str(thing) for thing in things]
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return between.join(words[:most]) + more
