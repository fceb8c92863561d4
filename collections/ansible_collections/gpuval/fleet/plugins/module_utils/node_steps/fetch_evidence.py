"""Fetches records and logs that the store lacks from a node, over the management connection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

from ..node_directory import call_runner, check_private


class FetchAnswer(TypedDict, total=False):
    #: Changed files by key, with digest and content as base64.
    files: dict[str, Any]
    #: Digests of results by their key: of the file, and of the last upload if that is another.
    digests: dict[str, Any]
    #: Whether the size limit left files out: fetch again.
    more: bool
    #: Whether the node's runner is alive, and why it is not although its plan is unfinished.
    running: bool
    ended: str


def fetch_evidence(
    _module: Any, directory: str, since: dict[str, str], not_uploaded: bool = False, limit_bytes: int = 4_000_000
) -> FetchAnswer:
    """Fetch a run's files whose digest differs from that in `since` (by key), up to `limit_bytes`; with `not_uploaded`
    only those that the store lacks. `directory`: the run's folder on the node."""
    folder = Path(directory)
    check_private(folder)
    options = ["--limit-bytes", str(limit_bytes), *(["--not-uploaded"] if not_uploaded else [])]
    answer = call_runner(folder, "fetch", "--dir", str(folder), "--since", "-", *options, text=json.dumps(since))
    return {key: answer[key] for key in ("files", "digests", "more", "running", "ended") if key in answer}
