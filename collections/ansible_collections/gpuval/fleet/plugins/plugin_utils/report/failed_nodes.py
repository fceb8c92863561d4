"""The names of the nodes that are not PASS, for ``--limit @failed_nodes.txt``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def failed_nodes_text(report: Mapping[str, Any]) -> str:
    """One name a line; empty when every node passed."""
    return "".join(f"{node['name']}\n" for node in report["nodes"] if node["verdict"] != "PASS")
