"""The lines on gangs in FINAL ACCEPTANCE, from the report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.text import some_of

MAX_LINES = 4


def lines(section: Mapping[str, Any], verdicts: Mapping[str, str]) -> list[str]:
    """A few lines. ``section``: the report's part on gangs; ``verdicts``: by node, as a FAIL has a line of its own."""
    found = []
    if not section["formed"]:
        found.append("Gangs: none was formed")
    # a node that failed its own stages has its own line
    left_out = {one["node"]: one["reason"] for one in section["left_out"] if verdicts.get(one["node"]) != "FAIL"}
    for reason, nodes in grouped(left_out)[:MAX_LINES]:
        found.append(f"Left out of the gangs: {some_of(nodes)}: {reason}")
    if section["formed"] and section["ended_at"] is None:
        found.append("Gangs: interrupted before their end")
    for one in section["findings"]:
        counts = ", ".join(f"{count} {word}" for word, count in one["counts"].items() if count)
        rounds = f"{one['rounds']} round{'' if one['rounds'] == 1 else 's'}"
        found.append(f"Gang {one['gang']} searched in {rounds}: {counts}")
        # `node-3 is bad: ...` has its own line above if that node fails
        others = [line for line in one["sentences"] if verdicts.get(line.partition(" is ")[0]) != "FAIL"]
        found += others[:MAX_LINES]
        if len(others) > MAX_LINES:
            found.append(f"... and {len(others) - MAX_LINES} more of gang {one['gang']}: see report.html")
    return found


def grouped(reasons: Mapping[str, str]) -> list[tuple[str, Sequence[str]]]:
    """Nodes by reason, the most common first."""
    groups: dict[str, list[str]] = {}
    for node, reason in reasons.items():
        groups.setdefault(reason, []).append(node)
    return sorted(groups.items(), key=lambda group: -len(group[1]))
