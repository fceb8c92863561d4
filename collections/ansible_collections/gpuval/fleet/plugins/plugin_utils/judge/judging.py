"""A run's evidence as it lies in results/, and the report on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.beside import by_halves
from ..records.documents import Record
from ..records.evidence import Evidence, take_record
from ..runs import state
from ..runs.folder import RunFolder
from ..store.access import object_key


def take_file(evidence: Evidence, folder: RunFolder, run: Mapping[str, Any], node: str, stage: str) -> Record | None:
    """Put the record that lies in results/ into ``evidence``; None where there is none, or it is refused."""
    path = folder.evidence_file(node, stage)
    if not path.exists():
        return None
    return take_record(evidence, run, object_key(run["folder"], "records", stage, node), path.read_bytes())


def read_evidence(folder: RunFolder, run: Mapping[str, Any]) -> Evidence:
    """The evidence of the nodes' own stages, checked once more: files there may have been touched."""
    evidence = Evidence(
        launches=folder.read_launches(),
        problems=folder.read_problems(),
        cleaned=state.of(run).get("reason") == state.CLEANED,
        resume=folder.seen().resume if run["finished_at"] is None and folder.run_file.exists() else "",
    )

    def read(nodes: Sequence[str]) -> Evidence:
        part = Evidence(launches=evidence.launches)
        for node in nodes:
            for stage in run["nodes"][node]["stages"]:
                take_file(part, folder, run, node, stage)
        return replace(part, launches={})

    for part in by_halves(read, list(run["nodes"])):
        evidence.records |= part.records
        evidence.problems += [problem for problem in part.problems if problem not in evidence.problems]
    return evidence
