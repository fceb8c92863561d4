"""Evidence of multi-node tests for the verdict: records of each node's stages in its last round."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..core.grouping import values_by_key
from ..judge.judging import is_settled, take_file
from ..records.digests import CONTROLLER
from ..records.documents import EvidenceProblem, Record
from ..records.evidence import RunEvidence
from ..records.properties import NVLINK_STAGES
from ..runs import folder as run_folder
from ..runs.folder import RunFolder
from . import document as gang_document
from . import fabrics, rounds
from .document import SEARCH_STAGES

KINDS = ("records", "logs", "series")
NOT_FORMED = "no gang was formed before the run ended"
ONLY_ONE = "no other node of the inventory has its SKU: a multi-node test needs two"
JOINED_LATE = "in no gang: the node joined the run after gangs were formed"


def expected(run: Mapping[str, Any], document: Mapping[str, Any] | None) -> dict[str, Any]:
    """The run, with multi-node stages added to its nodes' stages, and those of searches for every node searched. A node
    that alone has its SKU is exempt from multi-node stages, with a reason by stage in ``exempt``; if this holds for all
    nodes, none is: such a run has tested no gang."""
    alone = set(document["alone"]) if document and document["gangs"] else set()
    findings = (document or {}).get("findings", {}).values()
    searched = {(node, gang_document.stage_of(finding)) for finding in findings for node in finding["nodes"]}
    members = {member["node"]: member for gang in (document or {"gangs": {}})["gangs"].values() for member in gang}
    nodes = {}
    for name, node in run["nodes"].items():
        chosen = node.get("gang_stages", ())
        # Only nodes of an NVLink domain have stages over NVLink. Without a gang the stages over the network tell it.
        is_apart = "clique" in members.get(name, ())
        known = [
            stage
            for stage in chosen
            if stage not in NVLINK_STAGES or is_apart or (name not in members and NVLINK_STAGES[stage] not in chosen)
        ]
        stages = [] if name in alone else known
        gang_stages = [stage for stage in stages if stage not in SEARCH_STAGES]
        fabric = [stage for stage in SEARCH_STAGES if (name, stage) in searched or stage in stages]
        nodes[name] = {**node, "gang_stages": [*gang_stages, *fabric]}
        if name in alone:
            nodes[name]["exempt"] = dict.fromkeys(known, ONLY_ONE)
        nodes[name]["stages"] = [*node["stages"], *gang_stages, *fabric]
    return {**run, "nodes": nodes}


def _add_problems(evidence: RunEvidence, reason: str, node: str, stages: Iterable[str]) -> None:
    for stage in stages:
        evidence.add_problem(reason, node=node, stage=stage)


def last_rounds(document: Mapping[str, Any]) -> dict[str, str]:
    """For each node the name of its last round, whose records count. Rounds of a search do not count."""
    return {node: entered[-1][0]["name"] for node, entered in _rounds_by_node(document).items()}


def _rounds_by_node(document: Mapping[str, Any]) -> dict[str, list[tuple[Mapping[str, Any], str]]]:
    """For each node its rounds in order, except those of searches, as (round, name of the node's gang)."""
    own_rounds = (entry for entry in document["rounds"] if entry["kind"] != gang_document.SEARCH)
    gangs = ((entry, gang, nodes) for entry in own_rounds for gang, nodes in entry["gangs"].items())
    return values_by_key((node, (entry, gang)) for entry, gang, nodes in gangs for node in nodes)


def take(
    evidence: RunEvidence,
    folder: RunFolder,
    run: Mapping[str, Any],
    document: Mapping[str, Any] | None,
    at: float | None = None,
) -> None:
    """Add the records of multi-node stages to the evidence, or why they are missing. ``run``: from :func:`expected`;
    ``at``: Unix time of the judgement in seconds."""
    if document is None:
        covered = {(problem["node"], problem["stage"]) for problem in evidence.problems}  # with a better reason
        for name, node in run["nodes"].items():
            stages = [stage for stage in node.get("gang_stages", ()) if (name, stage) not in covered]
            _add_problems(evidence, NOT_FORMED, name, stages)
        return
    rounds_by_node = _rounds_by_node(document)
    members = {member["node"] for gang in document["gangs"].values() for member in gang}
    paired = {member["node"] for group in fabrics.cliques(document["gangs"]).values() for member in group}
    covered_nodes = members | document["left_out"].keys() | set(document["alone"])

    @cache
    def read_round(round_name: str) -> _CollectedRound | None:
        return _CollectedRound.read(gang_document.round_folder(folder, round_name), at)

    for name, node in run["nodes"].items():
        stages = [stage for stage in node.get("gang_stages", ()) if stage not in SEARCH_STAGES]
        if name in document["left_out"]:
            reason = f"left out of the gangs: {document['left_out'][name]}"
            _add_problems(evidence, reason, name, node.get("gang_stages", ()))
        elif name not in covered_nodes:
            _add_problems(evidence, JOINED_LATE, name, stages)
        elif name in members - paired:
            over_nvlink = [stage for stage in node.get("gang_stages", ()) if stage in NVLINK_STAGES]
            _add_problems(evidence, fabrics.NO_PEER, name, over_nvlink)
            stages = [stage for stage in stages if stage not in NVLINK_STAGES]
        *earlier, last = rounds_by_node.get(name, (None,))
        if last is None:
            continue
        entry, gang = last
        last_round = read_round(entry["name"])
        if last_round is None:
            reason = f"its round {entry['name']} never began, or its run.json is damaged"
            _add_problems(evidence, reason, name, stages)
            continue
        in_round = last_round.run["nodes"].get(name, {})
        planned = in_round.get("stages", stages)  # without the bad nodes it may be alone of its clique
        _add_problems(evidence, fabrics.NO_PEER, name, {*NVLINK_STAGES}.intersection(stages).difference(planned))
        stages = [stage for stage in stages if stage in planned or stage not in NVLINK_STAGES]
        _take_round(evidence, last_round, name, stages)
        repeated = entry.get("repeats", {}).get(gang)
        for earlier_entry, earlier_gang in reversed(earlier):
            is_alike = set(earlier_entry["gangs"][earlier_gang]) == set(entry["gangs"][gang])
            counting = (stages if repeated is None else repeated) if is_alike else ()
            _take_earlier(evidence, read_round(earlier_entry["name"]), earlier_entry["name"], name, stages, counting)
    for (name, stage), record in _fabric_records(run, document).items():
        evidence.records.setdefault(name, {})[stage] = record
        evidence.channels.setdefault(name, {})[stage] = CONTROLLER


def _fabric_records(run: Mapping[str, Any], document: Mapping[str, Any] | None) -> dict[tuple[str, str], Record]:
    """``{(node, stage): record}`` of the findings of searches; ``document``: the run's gangs.json."""
    findings = (document or {}).get("findings", {}).values()
    return {
        (name, gang_document.stage_of(finding)): rounds.fabric_record(run, name, finding, finding["ended_at"])
        for finding in findings
        for name in finding["nodes"]
        if name in run["nodes"]
    }


@dataclass(frozen=True)
class _CollectedRound:
    """The files of a round, read once for all members. ``problems``: those of their collection, by node; ``at``: Unix
    time of the judgement in seconds."""

    folder: RunFolder
    run: Mapping[str, Any]
    problems: Mapping[str | None, list[EvidenceProblem]]
    at: float | None

    @classmethod
    def read(cls, folder: RunFolder, at: float | None) -> "_CollectedRound | None":
        """Read a round's files; None if run.json is damaged, or missing since the controller ended before."""
        try:
            if not folder.run_file.exists():
                return None
            run = folder.read_run()
        except run_folder.RunError:
            return None
        return cls(folder, run, values_by_key((problem["node"], problem) for problem in folder.read_problems()), at)


def _take_round(evidence: RunEvidence, collected: _CollectedRound, name: str, stages: list[str]) -> None:
    launch = collected.folder.read_launch(name)
    problems = list(collected.problems.get(name, ()))
    of_round = RunEvidence(launches={name: launch}, problems=problems, is_settled=evidence.is_settled)
    known = collected.folder.read_digests(name)
    for stage in stages:
        evidence.contacts.setdefault(name, {})[stage] = launch.get("contact")
        record = take_file(of_round, collected.folder, collected.run, name, stage, collected.at)
        if record is not None:
            evidence.records.setdefault(name, {})[stage] = record
            evidence.channels.setdefault(name, {})[stage] = known.channel_of(stage)
        elif launch and launch.get("state") not in ("started", "finished"):
            reason = f"not started in its gang ({launch.get('state', 'unknown')}): {launch.get('message') or ''}"
            evidence.add_problem(reason, node=name, stage=stage)
            if launch.get("class"):
                evidence.unstarted.setdefault(name, {})[stage] = launch
    for problem in of_round.problems:
        if problem["node"] == name:
            evidence.add_problem(problem["reason"], node=name, stage=problem["stage"])


def _take_earlier(
    evidence: RunEvidence,
    collected: _CollectedRound | None,
    round_name: str,
    name: str,
    stages: list[str],
    repeated: Collection[str],
) -> None:
    """Put a node's records of an earlier round before those of the last one, since some failures must not be hidden by
    a later pass. Each earlier attempt is marked ``of_round``, and ``unrelated`` if the later round did not repeat the
    stage (``repeated``): a pass with other members is a different measurement, and a pass after a pass cures nothing.
    Neither mark makes the node flaky."""
    if collected is None:
        _withdraw(evidence, name, stages, f"nothing is left of its earlier round {round_name}")
        return
    before = RunEvidence(is_settled=evidence.is_settled)
    _take_round(before, collected, name, stages)
    earlier = before.records.get(name, {})
    lacking = [stage for stage in stages if stage not in earlier]
    launch = collected.folder.read_launch(name)
    state, contact = launch.get("state"), launch.get("contact")
    if lacking and state is None:  # the node was never launched, or its records are lost
        _withdraw(evidence, name, lacking, f"no launch and no record of its round {round_name}")
    elif lacking and state in ("started", "finished"):
        why = f": {contact['message']}" if contact else ""
        _withdraw(evidence, name, lacking, f"no record of the round {round_name}, which it started{why}")
    for stage, record in earlier.items():
        last = evidence.records.get(name, {}).get(stage)
        if last is not None:
            unrelated = stage not in repeated
            tried: list[Record] = [*record["attempts"], {**record, "attempts": []}]
            marked: list[Record] = [{**attempt, "of_round": round_name, "unrelated": unrelated} for attempt in tried]
            attempts = [*marked, *last["attempts"]]
            evidence.records[name][stage] = {**last, "attempt": len(attempts) + 1, "attempts": attempts}


def _withdraw(evidence: RunEvidence, name: str, stages: Sequence[str], reason: str) -> None:
    """Withdraw a node's records if an earlier round's outcome is unknown: that round may have shown a fault."""
    records = evidence.records.get(name, {})
    _add_problems(evidence, reason, name, [stage for stage in stages if records.pop(stage, None)])


def of_searches(
    folder: RunFolder, document: Mapping[str, Any], stage: str = gang_document.FABRIC
) -> tuple[dict[str, dict[str, Any]], list[tuple[Sequence[str], dict[str, str]]]]:
    """Results of all searches in this stage besides speeds: for each node its worst faults (``rounds.worst_faults``);
    and for each group on another network than expected its members and their messages."""
    by_node: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    networks = []
    for item in document["rounds"]:
        below = gang_document.round_folder(folder, item["name"])
        is_search = item["kind"] == gang_document.SEARCH and gang_document.stage_of(item) == stage
        if not is_search or not below.run_file.exists():
            continue
        of_round = records(below, stage)
        for name, record in of_round.items():
            brief = {key: record[key] for key in ("state", "environment")}
            kept = (*rounds.FAULTS, rounds.LINK_ERRORS)
            brief["metrics"] = [one for one in record["metrics"] if one["name"] in kept]
            by_node.setdefault(name, []).append((item["name"], brief))
        strays = {name: one["message"] for name, one in of_round.items() if rounds.figure(one, rounds.OTHER_NETWORK)}
        for nodes in item["gangs"].values():
            reported = {name: strays[name] for name in nodes if name in strays}
            if reported:
                networks.append((nodes, reported))
    return {name: rounds.worst_faults(listed) for name, listed in by_node.items()}, networks


def records(folder: RunFolder, stage: str) -> dict[str, Mapping[str, Any]]:
    """The usable records of one stage of a round, by node."""
    run, evidence = folder.read_run(), RunEvidence(launches=folder.read_launches(), is_settled=is_settled(folder))
    for name in run["nodes"]:
        take_file(evidence, folder, run, name, stage)
    return {name: found[stage] for name, found in evidence.records.items() if stage in found}


def lay_out(folder: RunFolder, run: Mapping[str, Any], document: Mapping[str, Any] | None) -> None:
    """Copy the evidence of gangs beside that of the nodes' own stages, where users and reports expect it, and remove
    what belongs neither to a node's last round nor to a search: an earlier judgement left it."""
    last = last_rounds(document) if document else {}
    fabric_records = _fabric_records(run, document)
    for name, node in run["nodes"].items():
        final = last.get(name)
        for stage in {*node.get("gang_stages", ()), *SEARCH_STAGES} - set(node["stages"]):
            for kind in KINDS:
                target = folder.evidence_file(name, stage, kind)
                source = gang_document.round_folder(folder, final).evidence_file(name, stage, kind) if final else None
                if source is not None and source.is_file():
                    with suppress(OSError):  # not fatal: the verdict reads the round's own file
                        run_folder.write_bytes(target, source.read_bytes())
                elif not (kind == "records" and (name, stage) in fabric_records):
                    target.unlink(missing_ok=True)
    for (name, stage), record in fabric_records.items():
        run_folder.write_json(folder.evidence_file(name, stage), record)
