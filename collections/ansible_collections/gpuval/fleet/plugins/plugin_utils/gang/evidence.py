"""The evidence of a run's gangs, as the verdict takes it: stages of a node, from the last round that it was in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import document as gang_document
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang import rounds
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import Evidence, take_record
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.folder import RunFolder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.access import object_key

KINDS = ("records", "logs", "series")
NOT_FORMED = "no gang was formed: the run ended before"
NOBODY_ELSE = "no other node of the inventory has its SKU: there is nobody to do it with"
JOINED_LATE = "in no gang: the node joined the run after gangs were formed"


def expected(run: Mapping[str, Any], document: Mapping[str, Any] | None) -> dict[str, Any]:
    """The run with the stages of its gangs as stages of its nodes, and that of a search where there was one.

    Of a node whose SKU no other of the inventory has nothing is expected, and ``exempt`` says why, by stage; unless
    nobody is like another, since a run of gangs without any has shown nothing.
    """
    alone = set(document["alone"]) if document and document["gangs"] else set()
    searched = {node for found in (document or {}).get("findings", {}).values() for node in found["nodes"]}
    nodes = {}
    for name, node in run["nodes"].items():
        asked = [] if name in alone else node.get("gang_stages", ())
        gang_stages = [stage for stage in asked if stage != gang_document.FABRIC]
        fabric = [gang_document.FABRIC] if name in searched or gang_document.FABRIC in asked else []
        nodes[name] = {**node, "gang_stages": [*gang_stages, *fabric]}
        if name in alone:
            nodes[name]["exempt"] = dict.fromkeys(node.get("gang_stages", ()), NOBODY_ELSE)
        nodes[name]["stages"] = [*node["stages"], *gang_stages, *fabric]
    return {**run, "nodes": nodes}


def last_rounds(document: Mapping[str, Any]) -> dict[str, str]:
    """By node the round whose records count: of the gangs' rounds the last that it was in."""
    return {node: places[-1] for node, places in _places(document).items()}


def _places(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """By node the gangs' rounds that it was in, in their order; those of searches are none of them."""
    found: dict[str, list[str]] = {}
    for item in document["rounds"]:
        if item["kind"] != gang_document.SEARCH:
            for nodes in item["gangs"].values():
                for node in nodes:
                    found.setdefault(node, []).append(item["name"])
    return found


def _company(document: Mapping[str, Any], place: str, node: str) -> frozenset[str]:
    """With whom a node was in a gang's round."""
    (item,) = (item for item in document["rounds"] if item["name"] == place)
    return next(frozenset(nodes) for nodes in item["gangs"].values() if node in nodes)


def take(evidence: Evidence, folder: RunFolder, run: Mapping[str, Any], document: Mapping[str, Any] | None) -> None:
    """Put the records of gangs into the evidence, and say why there are none. ``run``: as ``expected`` made it."""
    if document is None:
        told = {(problem["node"], problem["stage"]) for problem in evidence.problems}  # why, by who knows better
        for name, node in run["nodes"].items():
            for stage in node.get("gang_stages", ()):
                if (name, stage) not in told:
                    evidence.add_problem(NOT_FORMED, node=name, stage=stage)
        return
    places = _places(document)
    members = {member["node"] for gang in document["gangs"].values() for member in gang}
    known = members | document["left_out"].keys() | set(document["alone"])
    read: dict[str, _Round | None] = {}
    for name, node in run["nodes"].items():
        stages = [stage for stage in node.get("gang_stages", ()) if stage != gang_document.FABRIC]
        if name in document["left_out"]:
            reason = f"left out of the gangs: {document['left_out'][name]}"
            for stage in node.get("gang_stages", ()):
                evidence.add_problem(reason, node=name, stage=stage)
        elif name not in known:
            for stage in stages:
                evidence.add_problem(JOINED_LATE, node=name, stage=stage)
        for place in places.get(name, ()):
            if place not in read:
                read[place] = _Round.read(gang_document.round_folder(folder, place))
        *earlier, last = places.get(name, (None,))
        if last is None:
            continue
        if read[last] is None:
            for stage in stages:
                evidence.add_problem(f"its round {last} was never begun", node=name, stage=stage)
            continue
        _take_round(evidence, read[last], name, stages)
        company = _company(document, last, name) if earlier else frozenset()
        for place in reversed(earlier):
            alike = _company(document, place, name) == company
            _take_earlier(evidence, read[place], place, name, stages, alike=alike)
    for found in document["findings"].values():
        for name in found["nodes"]:
            if name in run["nodes"]:
                record = rounds.fabric_record(run, name, found, found["ended_at"])
                evidence.records.setdefault(name, {})[gang_document.FABRIC] = record


@dataclass(frozen=True)
class _Round:
    """What is read once for all members of a round; problems are those of its collection, by node."""

    folder: RunFolder
    run: Mapping[str, Any]
    problems: Mapping[str | None, list[dict[str, Any]]]

    @classmethod
    def read(cls, folder: RunFolder) -> _Round | None:
        """None for a round whose run.json was never written: the controller died, or could not."""
        if not folder.run_file.exists():
            return None
        by_node: dict[str | None, list[dict[str, Any]]] = {}
        for problem in run_folder.read_json(folder.problems_file) if folder.problems_file.exists() else ():
            by_node.setdefault(problem["node"], []).append(problem)
        return cls(folder, folder.read_run(), by_node)


def _take_round(evidence: Evidence, of: _Round, name: str, stages: list[str]) -> None:
    folder, run = of.folder, of.run
    of_round = Evidence(problems=list(of.problems.get(name, ())))
    launch = folder.read_launch(name)
    for stage in stages:
        evidence.contacts.setdefault(name, {})[stage] = launch.get("contact")
        path = folder.evidence_file(name, stage)
        record = None
        if path.exists():
            key = object_key(run["folder"], "records", stage, name)
            record = take_record(of_round, run, key, path.read_bytes())
        if record is not None:
            evidence.records.setdefault(name, {})[stage] = record
        elif launch and launch.get("state") not in ("started", "finished"):
            told = f"not started in its gang ({launch.get('state', 'unknown')}): {launch.get('message') or ''}"
            evidence.add_problem(told, node=name, stage=stage)
    for problem in of_round.problems:
        if problem["node"] == name:
            evidence.add_problem(problem["reason"], node=name, stage=problem["stage"])


def _take_earlier(
    evidence: Evidence, of: _Round | None, place: str, name: str, stages: list[str], *, alike: bool
) -> None:
    """Put a node's records of an earlier round before those of the last: some failures are never measured again.

    ``of_round`` tells such an attempt apart. With others than in the last round (``alike`` is false) it was another
    measurement: to pass the next one is nothing flaky.
    """
    if of is None:
        _withdraw(evidence, name, stages, f"nothing is left of the round {place}, which it was in before")
        return
    before = Evidence()
    _take_round(before, of, name, stages)
    told = before.records.get(name, {})
    lacking = [stage for stage in stages if stage not in told]
    launch = of.folder.read_launch(name)
    state, contact = launch.get("state"), launch.get("contact")
    if lacking and state is None:  # who was never launched has no record of any stage, and a lost one looks like that
        _withdraw(evidence, name, lacking, f"nobody knows what it did in the round {place}: no launch, no record")
    elif lacking and state in ("started", "finished"):
        why = f": {contact['message']}" if contact else ""
        _withdraw(evidence, name, lacking, f"no record of the round {place}, which it began{why}")
    for stage, record in before.records.get(name, {}).items():
        last = evidence.records.get(name, {}).get(stage)
        if last is None:
            continue
        own = {**record, "attempts": [], "of_round": place, "regrouped": not alike}
        tried = [{**one, "of_round": place, "regrouped": not alike} for one in record["attempts"]]
        attempts = [*tried, own, *last["attempts"]]
        evidence.records[name][stage] = {**last, "attempt": len(attempts) + 1, "attempts": attempts}


def _withdraw(evidence: Evidence, name: str, stages: list[str], reason: str) -> None:
    """Without what became of an earlier round the last one alone accepts nobody: a fault may have been there."""
    for stage in stages:
        if evidence.records.get(name, {}).pop(stage, None):
            evidence.add_problem(reason, node=name, stage=stage)


def of_searches(
    folder: RunFolder, document: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Any]], list[tuple[Sequence[str], dict[str, str]]]]:
    """What the records of all searches tell beside speeds: by node its worst faults (``rounds.worst_faults``), and of
    the groups that went by another network than the expected one members and what they said."""
    found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    networks = []
    for item in document["rounds"]:
        below = gang_document.round_folder(folder, item["name"])
        if item["kind"] != gang_document.SEARCH or not below.run_file.exists():
            continue
        of_round = records(below, gang_document.FABRIC)
        for name, record in of_round.items():
            kept = {key: record[key] for key in ("state", "environment")}
            kept["metrics"] = [one for one in record["metrics"] if one["name"] in rounds.FAULTS]
            found.setdefault(name, []).append((item["name"], kept))
        strays = {name: one["message"] for name, one in of_round.items() if rounds.figure(one, rounds.OTHER_NETWORK)}
        for nodes in item["gangs"].values():
            said = {name: strays[name] for name in nodes if name in strays}
            if said:
                networks.append((nodes, said))
    return {name: rounds.worst_faults(listed) for name, listed in found.items()}, networks


def records(folder: RunFolder, stage: str) -> dict[str, Mapping[str, Any]]:
    """The records of one stage of a round by node, as far as they are evidence."""
    run, evidence = folder.read_run(), Evidence()
    for name in run["nodes"]:
        path = folder.evidence_file(name, stage)
        if path.exists():
            take_record(evidence, run, object_key(run["folder"], "records", stage, name), path.read_bytes())
    return {name: found[stage] for name, found in evidence.records.items() if stage in found}


def lay_out(folder: RunFolder, run: Mapping[str, Any], document: Mapping[str, Any] | None) -> None:
    """Put the evidence of gangs beside that of the nodes' own stages, where people and reports look for it.

    What the last round of a node has not, or no search found, is taken away: it is of an earlier one, and not judged.
    """
    last = last_rounds(document) if document else {}
    findings = document["findings"] if document else {}
    searched = {name for found in findings.values() for name in found["nodes"]}
    for name, node in run["nodes"].items():
        place = last.get(name)
        for stage in dict.fromkeys((*node.get("gang_stages", ()), gang_document.FABRIC)):
            if stage in node["stages"]:
                continue
            for kind in KINDS:
                target = folder.evidence_file(name, stage, kind)
                source = gang_document.round_folder(folder, place).evidence_file(name, stage, kind) if place else None
                if source is not None and source.exists():
                    run_folder.write_bytes(target, source.read_bytes())
                elif not (stage == gang_document.FABRIC and kind == "records" and name in searched):
                    target.unlink(missing_ok=True)
    for found in findings.values():
        for name in found["nodes"]:
            if name not in run["nodes"]:
                continue
            record = rounds.fabric_record(run, name, found, found["ended_at"])
            run_folder.write_json(folder.evidence_file(name, gang_document.FABRIC), record)
