"""Nodes that are not accepted, together by what they have in common: verdict and class, or the same reasons. Pure."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.grouping import values_by_key
from ...judge.entries import headline
from ..problems import action_text, part_of, part_text, without
from ..summary import decisive
from .nodes import rack

#: Matches a digest, shortened to its first twelve digits; the node's card has all digits.
DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b")


class NodesCause:
    """Nodes of one verdict and failure class. ``example``: the first node's reason; ``racks``: their number by rack."""

    def __init__(self, verdict: str, word: str, nodes: Sequence[Mapping[str, Any]]) -> None:
        self.verdict, self.word = verdict, word
        self.names = [str(node["name"]) for node in nodes]
        self.racks = Counter(filter(None, map(rack, nodes)))
        actions = Counter(node["action"]["name"] for node in nodes if node.get("action"))
        self.actions = [action for action, _ in actions.most_common()]
        check = headline(nodes[0]) or {"reason": "no required check passed"}
        reason = without(self.names[0], check["reason"]).replace("{node}", "the node")
        self.example = DIGEST.sub(r"\1…", reason)


@dataclass(frozen=True)
class Failure:
    """Nodes that are not accepted for the same reasons; ``node`` is the first of them."""

    node: Mapping[str, Any]
    names: list[str]

    def own(self, text: str) -> str:
        """A text of the first node, made valid for all nodes."""
        return text if len(self.names) == 1 else without(self.names[0], text).replace("{node}", "NODE")


@dataclass(frozen=True)
class WarnedPart:
    """Warnings about one part of a node from all its checks; or about whole nodes from one check, with all nodes."""

    part: str
    checks: dict[str, None]
    nodes: dict[str, None]
    reason: str


def warned_parts(report: Mapping[str, Any]) -> list[WarnedPart]:
    """Warnings and missing advice: for parts in the order of nodes first, then for whole nodes."""
    rows: dict[tuple[str, str], WarnedPart] = {}
    for node in report["nodes"]:
        for check in node["checks"]:
            if check["verdict"] != "warn" and (check["verdict"] != "missing" or check["severity"] == "required"):
                continue
            part = part_text(node, check.get("cause") or check["part"])
            key = (node["name"], part) if part else ("", f"{check['stage']} {check['name']}")
            row = rows.setdefault(key, WarnedPart(part, {}, {}, check["reason"]))
            row.checks[check["name"]] = row.nodes[node["name"]] = None
    return sorted(rows.values(), key=lambda row: not row.part)


def causes(report: Mapping[str, Any]) -> list[NodesCause]:
    """Nodes grouped by verdict and failure class: at a hundred nodes the pattern matters more than names."""
    bad = (node for node in report["nodes"] if node["verdict"] != "PASS")
    by_cause = values_by_key(((node["verdict"], node.get("class") or "unknown"), node) for node in bad)
    rows = [NodesCause(verdict, word, nodes) for (verdict, word), nodes in by_cause.items()]
    return sorted(rows, key=lambda row: (row.verdict != "FAIL", -len(row.names), row.word))


def failures(bad: Sequence[Mapping[str, Any]]) -> list[Failure]:
    """Nodes grouped by decisive checks and action, without their own names, in the order of each group's first node."""
    groups: dict[Any, Failure] = {}
    for node in bad:
        name = node["name"]
        checks = [(check["name"], part_of(node, check), without(name, check["reason"])) for check in decisive(node)]
        groups.setdefault((node["verdict"], action_text(node), *checks), Failure(node, [])).names.append(name)
    return list(groups.values())
