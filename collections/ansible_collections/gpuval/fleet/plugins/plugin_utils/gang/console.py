"""What the console's block says of a run's gangs, from the report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.text import some_of

MAX_LINES = 4


def lines(told: Mapping[str, Any], verdicts: Mapping[str, str]) -> list[str]:
    """For the console's block, a few lines; ``verdicts``: by node, since one that fails has a line of its own."""
    found = []
    if not told["formed"]:
        found.append("Gangs: none was formed")
    # a node that its own stages decided against has its line already
    left_out = {one["node"]: one["reason"] for one in told["left_out"] if verdicts.get(one["node"]) != "FAIL"}
    for reason, nodes in _grouped(left_out)[:MAX_LINES]:
        found.append(f"Left out of the gangs: {some_of(nodes)}: {reason}")
    if told["formed"] and told["ended_at"] is None:
        found.append("Gangs: not ended: their work was broken off")
    for one in told["findings"]:
        counts = ", ".join(f"{count} {word}" for word, count in one["counts"].items() if count)
        rounds = f"{one['rounds']} round{'' if one['rounds'] == 1 else 's'}"
        found.append(f"Gang {one['gang']} searched in {rounds}: {counts}")
        about = [line for line in one["sentences"] if not _of_a_node(line, verdicts)]
        found += about[:MAX_LINES]
        if len(about) > MAX_LINES:
            found.append(f"... and {len(about) - MAX_LINES} more of gang {one['gang']}: see report.html")
    return found


def _of_a_node(line: str, verdicts: Mapping[str, str]) -> bool:
    """``node-3 is bad: ...`` is told with the node, whose line is among the first. Others may be one of a hundred."""
    return verdicts.get(line.partition(" is ")[0]) == "FAIL"


def _grouped(reasons: Mapping[str, str]) -> list[tuple[str, Sequence[str]]]:
    """Nodes by reason, the most common first."""
    groups: dict[str, list[str]] = {}
    for node, reason in reasons.items():
        groups.setdefault(reason, []).append(node)
    return sorted(groups.items(), key=lambda group: -len(group[1]))
