"""What this package tells people."""

from __future__ import annotations


class NetworkError(Exception):
    """The network cannot be brought to what was declared; the message says what to change."""
