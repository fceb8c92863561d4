"""Errors of a node's network."""

from __future__ import annotations


class HostNetworkError(Exception):
    """The network cannot be configured or measured as declared; the message says what to change."""
