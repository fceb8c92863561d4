"""What takes the mark FAIL off a node of a cluster: a later run in which it passed all that it had failed, or lacked.
Pure.

`training` of a node does not speak for its links, nor rounds of pairs for its memory. So each node that failed bears
the checks that are open: `stage/check` for one that failed, `stage/` for a stage of which required evidence was
missing, `?` where that is unknown.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..records.failure_classes import traits_of

ANNOTATION = "gpuval.io/failed-checks"
UNKNOWN = "?"
#: Open while the PASS of a node follows a fault that nothing repaired (``judge.repairs``).
REPAIR = "repair/"
#: Beyond these the list names stages.
MAX_ENTRIES, MAX_CHARACTERS = 200, 32_768
FAIL, PASS, INCOMPLETE = "FAIL", "PASS", "INCOMPLETE"
#: Two names for one machine: only the run that has both shows it.
BETWEEN_NODES = ("identity",)


@dataclass(frozen=True)
class Decision:
    """Whether a node keeps its mark FAIL (`stays`), and the checks or stages that it has yet to pass (`open`)."""

    stays: bool
    open: frozenset[str]


def decide(open_before: frozenset[str] | None, node: Mapping[str, Any], *, failed: bool, full: bool) -> Decision:
    """Decide whether a node of a report keeps its mark FAIL (`failed`: it has one). `open_before`: checks open until
    now, None if unknown; `full`: the run was not narrowed and had all stages of its profile."""
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
    """The verdict that a node bears after a run where `decide` does not keep FAIL on it; None: the one `before` stays.
    What is not about the node takes no PASS off it. A run of some stages accepts no node, but removes its FAIL."""
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
    """Whether the run of a report left out no node, and has all that an acceptance of this one needs."""
    return not run["narrowed_by"] and accepts(run, node)


def accepts(run: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether a PASS of the node in this run accepts it: no stages were left out, nothing is unproven
    (``judge.acceptance``), and no fault of earlier runs is unrepaired (``judge.repairs``)."""
    return set(run["narrowed_by"]) <= {"limit", "busy"} and not (node.get("unproven") or node.get("unrepaired"))


def parse(text: str | None) -> frozenset[str] | None:
    """Parse the open checks in a node's annotation; None if it is missing or invalid."""
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
    return full and (ended_well or not stage)  # the check is no more, or held by nothing in this run
