"""A run's evidence as it lies in results/, and the report on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core import files
from ..core.errors import reason_of
from ..core.processes import by_halves
from ..records.documents import Record
from ..records.evidence import EvidenceRefused, RunEvidence, check_launch, take_record
from ..runs import publishing, state
from ..runs.folder import RunFolder
from ..store.access import object_key


def take_file(evidence: RunEvidence, folder: RunFolder, run: Mapping[str, Any], node: str, stage: str) -> Record | None:
    """Read a node's record of a stage from results/ into ``evidence``; None if it is missing or refused."""
    try:
        raw = files.read(folder.evidence_file(node, stage))
    except FileNotFoundError:
        return None
    except OSError as error:
        evidence.add_problem(f"record unreadable in the results: {reason_of(error)}", node=node, stage=stage)
        return None
    record = take_record(evidence, run, object_key(run["folder"], "records", stage, node), raw)
    launch = evidence.launches.get(node) or {}
    if record is None or (not launch.get("nonce") and _is_settled(folder, evidence)):
        return record
    try:
        check_launch(record, launch, folder.planned_stage(node, stage))
    except EvidenceRefused as refusal:
        del evidence.records[node][stage]
        evidence.add_problem(f"record refused: {refusal}", node=node, stage=stage)
        return None
    return record


def _is_settled(folder: RunFolder, evidence: RunEvidence) -> bool:
    """Whether the run needs no launches: it was judged before they were recorded, or imported without them."""
    whole_run = RunFolder(folder.path.parents[1])  # the run that this round of a gang belongs to
    judged = any(publishing.verdict_file(kept).exists() for kept in (folder, whole_run))
    return judged or (folder.is_imported and not evidence.launches)


def read_evidence(folder: RunFolder, run: Mapping[str, Any]) -> RunEvidence:
    """Read and check again the evidence of the nodes' own stages: files in results/ may have been changed."""
    evidence = RunEvidence(
        launches=folder.read_launches(),
        problems=folder.read_problems(),
        cleaned=state.of(run).get("reason") == state.CLEANED,
        resume=folder.seen().resume if run["finished_at"] is None and folder.run_file.exists() else "",
    )

    def read(nodes: Sequence[str]) -> RunEvidence:
        part = RunEvidence(launches=evidence.launches)
        for node in nodes:
            known = folder.read_digests(node)
            for stage in run["nodes"][node]["stages"]:
                if take_file(part, folder, run, node, stage):
                    part.channels.setdefault(node, {})[stage] = known.channel_of(stage)
        return replace(part, launches={})

    for part in by_halves(read, list(run["nodes"])):
        evidence.records |= part.records
        evidence.channels |= part.channels
        evidence.problems += [problem for problem in part.problems if problem not in evidence.problems]
    return evidence
