"""Groups nodes that are not accepted by verdict and failure class, or by equal reasons. Pure functions."""

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

#: Matches a hexadecimal digest, which the page shortens to twelve digits; the node's card has all digits.
DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b")


class NodesCause:
    """Nodes of one verdict and failure class. ``example``: the first one's reason; ``racks``: {rack: number}."""

    def __init__(self, verdict: str, failure_class: str, nodes: Sequence[Mapping[str, Any]]) -> None:
        self.verdict, self.word = verdict, failure_class
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
        """A text about the first node as one about all of the group: NODE in place of the node's name."""
        return text if len(self.names) == 1 else without(self.names[0], text).replace("{node}", "NODE")


@dataclass(frozen=True)
class WarnedPart:
    """Either the warnings of all checks about one part of a node, or those of one check about several whole nodes."""

    part: str
    checks: dict[str, None]
    nodes: dict[str, None]
    reason: str


def warned_parts(report: Mapping[str, Any]) -> list[WarnedPart]:
    """Group a report's warnings and missing advice: those about parts first, then those about whole nodes."""
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
    """Group nodes whose verdict, decisive checks and action are equal apart from the node's name, in order of nodes."""
    groups: dict[Any, Failure] = {}
    for node in bad:
        name = node["name"]
        checks = [(check["name"], part_of(node, check), without(name, check["reason"])) for check in decisive(node)]
        groups.setdefault((node["verdict"], action_text(node), *checks), Failure(node, [])).names.append(name)
    return list(groups.values())
