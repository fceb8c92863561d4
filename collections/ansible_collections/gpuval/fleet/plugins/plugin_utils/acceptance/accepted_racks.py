"""Decides which NVLink racks are accepted: by their trays' acceptance and the last run with all trays. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from ..core.grouping import values_by_key
from ..core.text import natural_order, some_of
from ..judge.racks import NOT_WHOLE, open_checks
from ..judge.repairs import ReportedRun
from ..records.documents import Document
from ..runs.failed_checks import FAIL, INCOMPLETE, PASS

#: Checks of a rack on which trays a run had, and on their verdicts: an acceptance judges trays over several runs.
_OF_TRAYS = NOT_WHOLE | {"rack_nodes"}
#: Versions that all trays of a rack must share: {key in the report: word in messages}.
_VERSIONS = {"driver": "driver", "vbios": "VBIOS"}
AGAIN = '`make validate ARGS="--limit {chosen}"`, and name that run in RUNS, too'


def decide_racks(runs: Sequence[ReportedRun], nodes: Sequence[Document]) -> list[dict[str, Any]]:
    """Racks for acceptance.json. ``runs``: judged runs of the inventory; ``nodes``: those of acceptance.json."""
    trays = values_by_key((node["rack"], node) for node in nodes if "rack" in node)
    ordered = sorted(runs, key=lambda run: (str(run.head["finished_at"]), run.run_id))
    seen = values_by_key((rack["name"], (run, rack)) for run in ordered for rack in run.report.get("racks", ()))
    return [_decide_rack(name, trays[name], seen.get(name, ())) for name in sorted(trays, key=natural_order)]


def _decide_rack(name: str, trays: Sequence[Document], seen: Sequence[tuple[ReportedRun, Document]]) -> dict[str, Any]:
    whole = [number for number, (_, rack) in enumerate(seen) if _is_whole(rack)]
    since = seen[whole[-1] :] if whole else ()
    verdict, reason = next(_reasons(trays, since), (PASS, ""))
    chosen = ",".join(tray["name"] for tray in trays)
    return {
        "name": name, "verdict": verdict, "reason": reason, "run_id": since[0][0].run_id if since else None,
        "next": AGAIN.format(chosen=chosen) if verdict != PASS else "", "nodes": [tray["name"] for tray in trays],
    }  # fmt: skip


def _reasons(trays: Sequence[Document], since: Sequence[tuple[ReportedRun, Document]]) -> Iterator[tuple[str, str]]:
    """(verdict, reason) of each rule that applies to a rack, the decisive one first. ``since``: (run, rack in its
    report) of the last run with the whole rack, and of later runs with a part of it."""
    words = values_by_key((tray["verdict"], tray["name"]) for tray in trays)
    checks = values_by_key(
        (check["verdict"], f"{check['reason']} (run {run.run_id})")
        for run, rack in since
        for check in open_checks(rack)
        if check["name"] not in _OF_TRAYS
    )
    if FAIL in words:
        yield FAIL, f"FAIL of {some_of(words[FAIL])}"
    if "fail" in checks:
        yield FAIL, some_of(checks["fail"], 3, "; ")
    if INCOMPLETE in words:
        yield INCOMPLETE, f"INCOMPLETE of {some_of(words[INCOMPLETE])}"
    if not since:
        yield INCOMPLETE, "no run had all of its trays"
    if "missing" in checks:
        yield INCOMPLETE, some_of(checks["missing"], 3, "; ")
    (last, rack_then), *partial_runs = since
    last_whole = f"run {last.run_id}, the last one of the whole rack"
    unlike = {str(tray["node"]) for tray in rack_then["trays"]} ^ {str(tray["name"]) for tray in trays}
    if names := sorted(unlike, key=natural_order):
        yield INCOMPLETE, f"other trays than in {last_whole}: {some_of(names)}"
    for run, rack in partial_runs:
        if changed := sorted(_shared_values(run, rack) - _shared_values(last, rack_then)):
            values = some_of(f"{word} {value}" for word, value in changed)
            yield INCOMPLETE, f"run {run.run_id} reports {values}, unlike run {last.run_id} of the whole rack"
    ended = str(last.head["finished_at"])
    if repaired := [tray["name"] for tray in trays if tray["repaired"] and (tray["tested_at"] or "") > ended]:
        yield INCOMPLETE, f"{some_of(repaired)} repaired after {last_whole}"


def _shared_values(run: ReportedRun, rack: Document) -> set[tuple[str, str]]:
    """(word, value) of what the trays of a rack share in a run: driver, VBIOS, clique, ClusterUUID."""
    trays = {tray["node"] for tray in rack["trays"]}
    versions = [node.get("versions", {}) for node in run.report["nodes"] if node["name"] in trays]
    shared = {(word, of_node[key]) for key, word in _VERSIONS.items() for of_node in versions if key in of_node}
    shared |= {("clique", clique) for clique in rack["cliques"]}
    return shared | ({("ClusterUUID", rack["domain_uuid"])} if rack["domain_uuid"] else set())


def _is_whole(rack: Document) -> bool:
    """Whether a run had all trays of the rack, and each tray's own hardware names the rack."""
    return not {check["name"] for check in open_checks(rack)} & NOT_WHOLE and all(
        tray["by"] in ("cluster_uuid", "chassis_serial") for tray in rack["trays"]
    )
