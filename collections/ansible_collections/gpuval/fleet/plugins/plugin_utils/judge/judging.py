"""A run's evidence as it lies in results/, and the report on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..records.evidence import Evidence, take_record
from ..runs.folder import RunFolder
from ..store.access import object_key


def read_evidence(folder: RunFolder, run: Mapping[str, Any]) -> Evidence:
    """The evidence of the nodes' own stages, checked once more: files there may have been touched."""
    evidence = Evidence(launches=folder.read_launches(), problems=folder.read_problems())
    for node, expected in run["nodes"].items():
        for stage in expected["stages"]:
            path = folder.evidence_file(node, stage)
            if path.exists():
                take_record(evidence, run, object_key(run["folder"], "records", stage, node), path.read_bytes())
    return evidence
