"""The evidence of a run's gangs for the verdict: stages of each node, from its last round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..judge.judging import take_file
from ..records.documents import EvidenceProblem, Record
from ..records.evidence import RunEvidence
from ..runs import folder as run_folder
from ..runs.folder import RunFolder
from . import document as gang_document
from . import rounds

KINDS = ("records", "logs", "series")
NOT_FORMED = "no gang was formed before the run ended"
ONLY_ONE = "no other node of the inventory has its SKU: a multi-node test needs two"
JOINED_LATE = "in no gang: the node joined the run after gangs were formed"


def expected(run: Mapping[str, Any], document: Mapping[str, Any] | None) -> dict[str, Any]:
    """The run with its gangs' stages as stages of its nodes, and the stage `fabric` of every node that was searched.

    A node that is the only one with its SKU is exempt, with a reason by stage in ``exempt``. But if all nodes are the
    only ones with their SKU, none is exempt: such a run has tested no gang.
    """
    alone = set(document["alone"]) if document and document["gangs"] else set()
    searched = {node for found in (document or {}).get("findings", {}).values() for node in found["nodes"]}
    nodes = {}
    for name, node in run["nodes"].items():
        stages = [] if name in alone else node.get("gang_stages", ())
        gang_stages = [stage for stage in stages if stage != gang_document.FABRIC]
        fabric = [gang_document.FABRIC] if name in searched or gang_document.FABRIC in stages else []
        nodes[name] = {**node, "gang_stages": [*gang_stages, *fabric]}
        if name in alone:
            nodes[name]["exempt"] = dict.fromkeys(node.get("gang_stages", ()), ONLY_ONE)
        nodes[name]["stages"] = [*node["stages"], *gang_stages, *fabric]
    return {**run, "nodes": nodes}


def last_rounds(document: Mapping[str, Any]) -> dict[str, str]:
    """By node the round whose records count: its last one, searches apart."""
    return {node: places[-1] for node, places in _places(document).items()}


def _places(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """By node its rounds in order, without those of searches."""
    rounds_by_node: dict[str, list[str]] = {}
    for item in document["rounds"]:
        if item["kind"] != gang_document.SEARCH:
            for nodes in item["gangs"].values():
                for node in nodes:
                    rounds_by_node.setdefault(node, []).append(item["name"])
    return rounds_by_node


def _members(document: Mapping[str, Any], round_name: str, node: str) -> frozenset[str]:
    """All members of the node's gang in a round."""
    (item,) = (item for item in document["rounds"] if item["name"] == round_name)
    return next(frozenset(nodes) for nodes in item["gangs"].values() if node in nodes)


def _repeated(document: Mapping[str, Any], round_name: str, node: str) -> frozenset[str] | None:
    """The stages for which the gang of ``node`` ran again in ``round_name``; None where the round has no list."""
    (item,) = (item for item in document["rounds"] if item["name"] == round_name)
    gang = next(name for name, nodes in item["gangs"].items() if node in nodes)
    stages = item.get("repeats", {}).get(gang)
    return None if stages is None else frozenset(stages)


def take(evidence: RunEvidence, folder: RunFolder, run: Mapping[str, Any], document: Mapping[str, Any] | None) -> None:
    """Add the records of gangs to the evidence, and why records are missing. ``run``: as ``expected`` returns it."""
    if document is None:
        covered = {(problem["node"], problem["stage"]) for problem in evidence.problems}  # with a better reason
        for name, node in run["nodes"].items():
            for stage in node.get("gang_stages", ()):
                if (name, stage) not in covered:
                    evidence.add_problem(NOT_FORMED, node=name, stage=stage)
        return
    places = _places(document)
    members = {member["node"] for gang in document["gangs"].values() for member in gang}
    covered = members | document["left_out"].keys() | set(document["alone"])
    read: dict[str, _Round | None] = {}
    for name, node in run["nodes"].items():
        stages = [stage for stage in node.get("gang_stages", ()) if stage != gang_document.FABRIC]
        if name in document["left_out"]:
            reason = f"left out of the gangs: {document['left_out'][name]}"
            for stage in node.get("gang_stages", ()):
                evidence.add_problem(reason, node=name, stage=stage)
        elif name not in covered:
            for stage in stages:
                evidence.add_problem(JOINED_LATE, node=name, stage=stage)
        for round_name in places.get(name, ()):
            if round_name not in read:
                read[round_name] = _Round.read(gang_document.round_folder(folder, round_name))
        *earlier, last = places.get(name, (None,))
        if last is None:
            continue
        last_round = read[last]
        if last_round is None:
            for stage in stages:
                evidence.add_problem(
                    f"its round {last} never began, or its run.json is damaged", node=name, stage=stage
                )
            continue
        _take_round(evidence, last_round, name, stages)
        members_then = _members(document, last, name) if earlier else frozenset()
        for round_name in reversed(earlier):
            alike = _members(document, round_name, name) == members_then
            repeated = _repeated(document, last, name) if alike else frozenset()
            _take_earlier(evidence, read[round_name], round_name, name, stages, repeated)
    for findings in document["findings"].values():
        for name in findings["nodes"]:
            if name in run["nodes"]:
                record = rounds.fabric_record(run, name, findings, findings["ended_at"])
                evidence.records.setdefault(name, {})[gang_document.FABRIC] = record


@dataclass(frozen=True)
class _Round:
    """Read once for all members of a round; ``problems``: of its collection, by node."""

    folder: RunFolder
    run: Mapping[str, Any]
    problems: Mapping[str | None, list[EvidenceProblem]]

    @classmethod
    def read(cls, folder: RunFolder) -> _Round | None:
        """None for a round without run.json, as the controller ended before it was written, or with a damaged one."""
        try:
            run = folder.read_run() if folder.run_file.exists() else None
        except run_folder.RunError:
            return None
        if run is None:
            return None
        by_node: dict[str | None, list[EvidenceProblem]] = {}
        for problem in folder.read_problems():
            by_node.setdefault(problem["node"], []).append(problem)
        return cls(folder, run, by_node)


def _take_round(evidence: RunEvidence, of: _Round, name: str, stages: list[str]) -> None:
    folder, run = of.folder, of.run
    launch = folder.read_launch(name)
    of_round = RunEvidence(launches={name: launch}, problems=list(of.problems.get(name, ())))
    for stage in stages:
        evidence.contacts.setdefault(name, {})[stage] = launch.get("contact")
        record = take_file(of_round, folder, run, name, stage)
        if record is not None:
            evidence.records.setdefault(name, {})[stage] = record
        elif launch and launch.get("state") not in ("started", "finished"):
            reason = f"not started in its gang ({launch.get('state', 'unknown')}): {launch.get('message') or ''}"
            evidence.add_problem(reason, node=name, stage=stage)
    for problem in of_round.problems:
        if problem["node"] == name:
            evidence.add_problem(problem["reason"], node=name, stage=problem["stage"])


def _take_earlier(
    evidence: RunEvidence, of: _Round | None, place: str, name: str, stages: list[str], repeated: frozenset[str] | None
) -> None:
    """Put a node's records of an earlier round before those of the last one: some failures must not be measured again.

    ``of_round`` marks such an attempt. It is ``unrelated`` if the round was not repeated for this stage: a pass with
    other members is a different measurement, and a pass after a pass is no cure. Neither is flaky.
    """
    if of is None:
        _withdraw(evidence, name, stages, f"nothing is left of its earlier round {place}")
        return
    before = RunEvidence()
    _take_round(before, of, name, stages)
    earlier = before.records.get(name, {})
    lacking = [stage for stage in stages if stage not in earlier]
    launch = of.folder.read_launch(name)
    state, contact = launch.get("state"), launch.get("contact")
    if lacking and state is None:  # never launched, or its records are lost
        _withdraw(evidence, name, lacking, f"no launch and no record of its round {place}")
    elif lacking and state in ("started", "finished"):
        why = f": {contact['message']}" if contact else ""
        _withdraw(evidence, name, lacking, f"no record of the round {place}, which it started{why}")
    for stage, record in before.records.get(name, {}).items():
        last = evidence.records.get(name, {}).get(stage)
        if last is None:
            continue
        unrelated = repeated is not None and stage not in repeated
        tried_last: Record = {**record, "attempts": [], "of_round": place, "unrelated": unrelated}
        tried: list[Record] = [{**one, "of_round": place, "unrelated": unrelated} for one in record["attempts"]]
        attempts = [*tried, tried_last, *last["attempts"]]
        evidence.records[name][stage] = {**last, "attempt": len(attempts) + 1, "attempts": attempts}


def _withdraw(evidence: RunEvidence, name: str, stages: list[str], reason: str) -> None:
    """Without the outcome of an earlier round the last one is not enough: the earlier one may have shown a fault."""
    for stage in stages:
        if evidence.records.get(name, {}).pop(stage, None):
            evidence.add_problem(reason, node=name, stage=stage)


def of_searches(
    folder: RunFolder, document: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Any]], list[tuple[Sequence[str], dict[str, str]]]]:
    """What the records of all searches tell beside speeds: by node its worst faults (``rounds.worst_faults``), and of
    each group over another network than expected its members and their messages."""
    by_node: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    networks = []
    for item in document["rounds"]:
        below = gang_document.round_folder(folder, item["name"])
        if item["kind"] != gang_document.SEARCH or not below.run_file.exists():
            continue
        of_round = records(below, gang_document.FABRIC)
        for name, record in of_round.items():
            brief = {key: record[key] for key in ("state", "environment")}
            brief["metrics"] = [one for one in record["metrics"] if one["name"] in rounds.FAULTS]
            by_node.setdefault(name, []).append((item["name"], brief))
        strays = {name: one["message"] for name, one in of_round.items() if rounds.figure(one, rounds.OTHER_NETWORK)}
        for nodes in item["gangs"].values():
            reported = {name: strays[name] for name in nodes if name in strays}
            if reported:
                networks.append((nodes, reported))
    return {name: rounds.worst_faults(listed) for name, listed in by_node.items()}, networks


def records(folder: RunFolder, stage: str) -> dict[str, Mapping[str, Any]]:
    """The records of one stage of a round by node, as far as they are evidence."""
    run, evidence = folder.read_run(), RunEvidence(launches=folder.read_launches())
    for name in run["nodes"]:
        take_file(evidence, folder, run, name, stage)
    return {name: found[stage] for name, found in evidence.records.items() if stage in found}


def lay_out(folder: RunFolder, run: Mapping[str, Any], document: Mapping[str, Any] | None) -> None:
    """Put the evidence of gangs beside that of the nodes' own stages, where users and reports expect it.

    Files that neither the last round of a node nor a search has are removed: an earlier judgement left them.
    """
    last = last_rounds(document) if document else {}
    findings = document["findings"] if document else {}
    searched = {name for finding in findings.values() for name in finding["nodes"]}
    for name, node in run["nodes"].items():
        final = last.get(name)
        for stage in dict.fromkeys((*node.get("gang_stages", ()), gang_document.FABRIC)):
            if stage in node["stages"]:
                continue
            for kind in KINDS:
                target = folder.evidence_file(name, stage, kind)
                source = gang_document.round_folder(folder, final).evidence_file(name, stage, kind) if final else None
                if source is not None and source.is_file():
                    with suppress(OSError):  # the verdict reads the round's own
                        run_folder.write_bytes(target, source.read_bytes())
                elif not (stage == gang_document.FABRIC and kind == "records" and name in searched):
                    target.unlink(missing_ok=True)
    for finding in findings.values():
        for name in finding["nodes"]:
            if name not in run["nodes"]:
                continue
            record = rounds.fabric_record(run, name, finding, finding["ended_at"])
            run_folder.write_json(folder.evidence_file(name, gang_document.FABRIC), record)
