"""Read the evidence of a run from its folder on the controller, to judge it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core import files
from ..core.errors import reason_of
from ..core.processes import by_halves
from ..records.documents import Record
from ..records.evidence import EvidenceRefused, RunEvidence, check_launch, object_key, take_record
from ..records.metrics import CompactMetrics
from ..runs.folder import RunFolder


def take_file(
    evidence: RunEvidence, folder: RunFolder, run: Mapping[str, Any], node: str, stage: str, at: float | None = None
) -> Record | None:
    """Read a node's record into ``evidence``; None if missing or refused. ``at``: time of judgement (epoch seconds)."""
    try:
        raw = files.read(folder.evidence_file(node, stage))
    except FileNotFoundError:
        return None
    except OSError as error:
        evidence.add_problem(f"record unreadable in the results: {reason_of(error)}", node=node, stage=stage)
        return None
    record = take_record(evidence, run, object_key(run["folder"], "records", stage, node), raw, at)
    for attempt in (record, *record["attempts"]) if record is not None else ():
        attempt["metrics"] = CompactMetrics.of(attempt["metrics"])
    launch = evidence.launches.get(node) or {}
    if record is None or (not launch.get("nonce") and evidence.is_settled):
        return record
    try:
        check_launch(record, launch, folder.planned_stage(node, stage))
    except EvidenceRefused as refusal:
        del evidence.records[node][stage]
        evidence.add_problem(f"record refused: {refusal}", node=node, stage=stage)
        return None
    return record


def is_settled(folder: RunFolder) -> bool:
    """Whether a run (or round) needs no launches: judged before they were recorded, or imported without them."""
    whole_run = RunFolder(folder.path.parents[1])  # the run that this round of a gang belongs to
    is_judged = any(kept.verdict_file.exists() for kept in (folder, whole_run))
    return is_judged or (folder.is_imported and not folder.read_launches())


def read_evidence(
    folder: RunFolder, run: Mapping[str, Any], *, at: float | None = None, settled: bool | None = None
) -> RunEvidence:
    """Read and check again the evidence of the nodes' own stages: files in results/ may have been changed. To repeat an
    earlier judgement, give its time (``at``, seconds since the epoch) and whether the run was `is_settled` then."""
    evidence = RunEvidence(
        launches=folder.read_launches(),
        problems=folder.read_problems(),
        is_settled=is_settled(folder) if settled is None else settled,
    )

    def read(nodes: Sequence[str]) -> RunEvidence:
        part = replace(evidence, records={}, problems=[], channels={})
        for node in nodes:
            known = folder.read_digests(node)
            for stage in run["nodes"][node]["stages"]:
                if take_file(part, folder, run, node, stage, at):
                    part.channels.setdefault(node, {})[stage] = known.channel_of(stage)
        return replace(part, launches={})

    for part in by_halves(read, list(run["nodes"])):
        evidence.records |= part.records
        evidence.channels |= part.channels
        evidence.problems += [problem for problem in part.problems if problem not in evidence.problems]
    return evidence
