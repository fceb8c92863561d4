"""The lines on gangs in FINAL ACCEPTANCE, from the report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.text import some_of

MAX_LINES = 4


def lines(section: Mapping[str, Any], verdicts: Mapping[str, str]) -> list[str]:
    """A few lines. ``section``: the report's part on gangs; ``verdicts``: by node, as a FAIL has a line of its own."""
    texts = []
    if not section["formed"]:
        texts.append("Gangs: none was formed")
    # a node that failed its own stages has its own line
    left_out = {row["node"]: row["reason"] for row in section["left_out"] if verdicts.get(row["node"]) != "FAIL"}
    for reason, nodes in grouped(left_out)[:MAX_LINES]:
        texts.append(f"Left out of the gangs: {some_of(nodes)}: {reason}")
    if section["formed"] and section["ended_at"] is None:
        texts.append("Gangs: interrupted before their end")
    for row in section["findings"]:
        counts = ", ".join(f"{count} {word}" for word, count in row["counts"].items() if count)
        rounds = f"{row['rounds']} round{'' if row['rounds'] == 1 else 's'}"
        texts.append(f"Gang {row['gang']} searched in {rounds}: {counts}")
        # `node-3 is bad: ...` has its own line above if that node fails
        sentences = [line for line in row["sentences"] if verdicts.get(line.partition(" is ")[0]) != "FAIL"]
        texts += sentences[:MAX_LINES]
        if len(sentences) > MAX_LINES:
            texts.append(f"... and {len(sentences) - MAX_LINES} more of gang {row['gang']}: see report.html")
    return texts


def grouped(reasons: Mapping[str, str]) -> list[tuple[str, Sequence[str]]]:
    """Nodes by reason, the most common first."""
    groups: dict[str, list[str]] = {}
    for node, reason in reasons.items():
        groups.setdefault(reason, []).append(node)
    return sorted(groups.items(), key=lambda group: -len(group[1]))
