"""Decides when a cluster node loses its mark FAIL: after a later run in which it passed all that it failed or lacked.
Pure.

A training proves nothing on a node's links, a test of pairs nothing on its memory. So each failed node's annotation
lists its open checks: `stage/check` for one that failed, `stage/` for a stage of which required evidence was missing,
`?` where that is unknown.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..records.failure_classes import traits_of

ANNOTATION = "gpuval.io/failed-checks"
UNKNOWN = "?"
#: Entry of a node that passed after a fault without a repair (``judge.repairs``).
REPAIR = "repair/"
#: Max entries and characters of an annotation; with more entries it names stages instead of checks.
MAX_ENTRIES, MAX_CHARACTERS = 200, 32_768
FAIL, PASS, INCOMPLETE = "FAIL", "PASS", "INCOMPLETE"
#: Checks that compare nodes, here two names for one machine: only a run with both nodes settles them.
BETWEEN_NODES = ("identity",)


@dataclass(frozen=True)
class Decision:
    """Whether a node keeps its mark FAIL (`stays`), and the checks or stages that it has yet to pass (`open`)."""

    stays: bool
    open: frozenset[str]


def decide(open_before: frozenset[str] | None, node: Mapping[str, Any], *, failed: bool, full: bool) -> Decision:
    """Decide whether a node, an entry of a report, keeps its mark FAIL after the run. `failed`: it has the mark;
    `open_before`: checks open until now, None if unknown; `full`: the run has all nodes and work of an acceptance."""
    before = frozenset() if not failed else open_before or frozenset((UNKNOWN,))
    unsettled = frozenset(entry for entry in before if not _settled(entry, node, full))
    if node["verdict"] == FAIL:
        return Decision(False, _bounded(unsettled | of_node(node)))
    if not failed:
        return Decision(False, frozenset())
    lacks_repair = frozenset([REPAIR] if node.get("unrepaired") else ())
    open_now = (unsettled or lacks_repair) if node["verdict"] == PASS else before
    return Decision(bool(open_now), open_now)


def verdict_after(node: Mapping[str, Any], run: Mapping[str, Any], before: str | None, *, failed: bool) -> str | None:
    """The verdict to mark a node with after a run, unless `decide` keeps FAIL; None: the mark `before` stays. Only a
    verdict about the node itself removes its PASS. A run of some stages removes FAIL, but accepts no node."""
    if before == PASS and not is_about(node):
        return None
    if node["verdict"] != PASS or accepts(run, node):
        return str(node["verdict"])
    return INCOMPLETE if failed else None


def is_about(node: Mapping[str, Any]) -> bool:
    """Whether the verdict on a node of a report is about the node itself."""
    return node["verdict"] in (FAIL, PASS) or traits_of(node.get("class")).also_incomplete


def of_node(node: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(
        f"{check['stage']}/{check['name'] if check['verdict'] == 'fail' or not check['stage'] else ''}"
        for check in node["checks"]
        if check["severity"] == "required" and check["verdict"] in ("fail", "missing")
    )


def is_whole(run: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether a run had all nodes, and proves all that an acceptance of this node needs."""
    return not run["narrowed_by"] and accepts(run, node)


def accepts(run: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether a PASS of the node in this run accepts it: no stages were left out, nothing is unproven
    (``judge.acceptance``), and no fault of earlier runs is unrepaired (``judge.repairs``)."""
    return set(run["narrowed_by"]) <= {"limit", "busy"} and not (node.get("unproven") or node.get("unrepaired"))


def parse(text: str | None) -> frozenset[str] | None:
    """Parse the open checks in the text of a node's annotation; None if it is missing or too long."""
    if not text or len(text) > MAX_CHARACTERS:
        return None
    return frozenset(filter(None, text.split(",")))


def text_of(entries: Collection[str]) -> str | None:
    """The text of the annotation for these open checks; None removes the annotation."""
    return ",".join(sorted(_bounded(entries))) or None


def _bounded(entries: Collection[str]) -> frozenset[str]:
    if len(entries) <= MAX_ENTRIES:
        return frozenset(entries)
    return frozenset(entry if entry == UNKNOWN else f"{entry.partition('/')[0]}/" for entry in entries)


def _settled(entry: str, node: Mapping[str, Any], full: bool) -> bool:
    if entry == UNKNOWN:
        return full and node["verdict"] == PASS
    if entry == REPAIR:
        return node["verdict"] == PASS and not node.get("unrepaired")
    stage, _, name = entry.partition("/")
    if name in BETWEEN_NODES and not full:
        return False
    checks = [check for check in node["checks"] if check["stage"] == stage and (not name or check["name"] == name)]
    if any(check["verdict"] in ("fail", "missing") for check in checks if check["severity"] == "required"):
        return False
    ended_well = any(one["name"] == stage and one["state"] == "success" for one in node["stages"])
    if not name:
        return ended_well if stage else full
    if any(check["verdict"] == "pass" for check in checks):
        return True
    return full and (ended_well or not stage)  # no criterion of this run has the check any more
