"""The block that a run ends with on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.escape import one_line


def final_block(report: Mapping[str, Any], width: int = 50) -> str:
    """The FINAL ACCEPTANCE block between two lines of ``width`` equals signs; no terminal escape can be in it."""
    rule = "=" * width
    lines = [f"- {one_line(line, 700)}" for line in report["summary"]]
    return "\n".join([rule, f"FINAL ACCEPTANCE: {one_line(report['verdict'])}", *lines, rule])
