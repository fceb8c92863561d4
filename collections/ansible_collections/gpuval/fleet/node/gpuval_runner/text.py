"""Makes text from outside safe for one line of a record or a terminal."""

from __future__ import annotations

from gpuval_node.visible_text import one_line

__all__ = ["encodable", "one_line", "seconds"]


def encodable(text: str) -> str:
    """Return a text with lone surrogates, which UTF-8 cannot encode, replaced by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def seconds(value: float) -> str:
    """Return a duration for people: 0.25 s, 12 s, 3600 s."""
    return f"{value:.3g} s" if abs(value) < 10 else f"{value:.0f} s"
