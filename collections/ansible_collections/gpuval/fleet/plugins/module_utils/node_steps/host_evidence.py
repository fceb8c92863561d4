"""Gathers logs and state of a node into one archive, with or without a run."""

from __future__ import annotations

import base64
from typing import Any, TypedDict

from ..host_evidence import gather
from ..node_directory import NodeError, base_directory, check_private


class EvidenceAnswer(TypedDict, total=False):
    #: The archive (tar.gz) as base64.
    archive: str
    #: Why files are missing in the archive or cut, by name.
    notes: dict[str, Any]
    #: Whether the node has a folder of the run.
    has_run: bool


def host_evidence(
    _module: Any, directory: str, run_id: str, node: str, seconds: float, limit_bytes: int, bug_report: bool
) -> EvidenceAnswer:
    """Gather a node's evidence in at most `seconds`, up to `limit_bytes`; the least important files are cut first."""
    folder = base_directory(directory) / run_id / node if run_id and node else None
    try:
        if folder:
            check_private(folder)
    except NodeError:  # no folder of this user
        folder = None
    unit = f"gpuval-{run_id}-{node}"[:240] if folder else ""
    archive, notes = gather(folder, unit=unit, seconds=seconds, limit_bytes=limit_bytes, bug_report=bug_report)
    return {"archive": base64.b64encode(archive).decode(), "notes": notes, "has_run": folder is not None}
