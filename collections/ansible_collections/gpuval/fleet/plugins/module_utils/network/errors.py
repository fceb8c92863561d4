"""Errors of a node's network."""

from __future__ import annotations

from ..node_directory import NodeError


class HostNetworkError(NodeError):
    """The network cannot be configured or measured as declared; the message says what to change."""
