"""One failure for one cause: what all parts of a node share is the node's, and a part that waits is fine. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..records import environment, launch_errors
from ..records.documents import Record
from .check import Check
from .entries import Entry
from .implicated_parts import PartLayout, suspect_parts
from .subject import Subject


def of_the_node(check: Check, subject: Subject, entries: list[Entry]) -> list[Entry]:
    """The entries of a check; where every GPU of several fails it alike, one that names the node."""
    far = [one for one in entries if one["verdict"] in ("fail", "warn") and one["part"].startswith("gpu:")]
    if check.scope != "gpu" or len(far) < 2 or len({one["part"] for one in far}) != subject.gpus:
        return entries
    if len(far) < len(entries):  # something is missing too
        return entries
    return [{**far[0], "part": "node", "reason": f"all {len(far)} GPUs, {far[0]['part']}: {far[0]['reason']}"}]


def beside_other_work(check: Check, record: Record | None, entries: list[Entry]) -> list[Entry]:
    """The entries of a check; a speed below its limit proves nothing beside other work, or where the stage gave way."""
    if not check.retry or record is None or all(one["verdict"] not in ("fail", "warn") for one in entries):
        return entries
    gave_way = record["state"] == "cancelled" and launch_errors.classify("", record["message"]).name == "foreign_work"
    if not (gave_way or environment.accelerator_users(record["environment"])):
        return entries
    return [
        {**one, "verdict": "missing", "reason": f"measured beside other work; {one['reason']}"}
        if one["verdict"] in ("fail", "warn")
        else one
        for one in entries
    ]


def follow_the_fleet(checks: list[Entry], criteria: Iterable[Check]) -> list[Entry]:
    """The checks of a node: a part that is an outlier in it, but none beside the parts of all nodes, is a warning.

    Eight parts show less of how healthy ones differ than the parts of eight nodes or more.
    """
    outliers = [check for check in criteria if check.kind == "outlier"]
    fleet_checks = {check.metric: check.name for check in outliers if check.peers == "fleet" and check.relative_to}
    in_node = {check.name for check in outliers if check.peers == "node"}
    for entry in checks:
        if entry["name"] not in in_node or entry["verdict"] != "fail":
            continue
        of_fleet = [one["verdict"] for one in checks if one["name"] == fleet_checks.get(entry["metric"])]
        if "pass" in of_fleet and set(of_fleet) <= {"pass", "warn"}:  # fewer nodes than a comparison needs have no pass
            reason = f"{entry['reason']}; parts of other nodes differ as much"
            entry.update(verdict="warn", severity="advisory", reason=reason)
    return checks


def name_the_cause(checks: Sequence[Entry], subject: Subject) -> list[Entry]:
    """The checks of a node, each with its ``cause``: the part that explains it, where that is another one.

    A figure for which all GPUs wait is a warning, once by its name, where the part itself failed in the same stage.
    """
    causes = {
        number: suspect.part
        for suspect in suspect_parts(checks, PartLayout.of_subject(subject))
        for number in suspect.explains
        if checks[number]["part"] != suspect.part
    }
    named: list[Entry] = []
    for number, check in enumerate(checks):
        entry = _explained(check, causes[number], checks) if number in causes else check
        excused = entry["severity"] != check["severity"]
        if not excused or all(other["name"] != entry["name"] or other["verdict"] != "warn" for other in named):
            named.append(entry)
    return named


def _explained(check: Entry, cause: str, checks: Sequence[Entry]) -> Entry:
    """The check with the part that explains it."""
    entry, stage = {**check, "cause": cause}, check["stage"]
    proofs = [rival for rival in checks if rival["part"] == cause and rival["verdict"] in ("fail", "warn")]
    proof = min(proofs, key=lambda rival: (rival["stage"] != stage, rival["verdict"] != "fail"), default=None)
    if entry["part"] != "node" or proof is None:
        return entry
    entry["reason"] = f"all GPUs wait for {cause} ({proof['name']}); {entry['reason']}"
    if proof["verdict"] == "fail" and proof["stage"] == stage:
        entry |= {"verdict": "warn", "severity": "advisory"}
    return entry
