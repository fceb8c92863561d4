"""Fetch a node's records and logs over the management connection, which the store does not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

from ..node_directory import call_runner, check_private


class FetchAnswer(TypedDict, total=False):
    #: Changed files by key, with digest and content as base64.
    files: dict[str, Any]
    #: Whether the limit left something out: ask again.
    more: bool
    #: Whether the node's runner is alive, and why none is although its plan is unfinished.
    running: bool
    ended: str


def fetch_evidence(
    _module: Any, directory: str, since: dict[str, str], not_uploaded: bool = False, limit_bytes: int = 4_000_000
) -> FetchAnswer:
    """Fetch what changed since these digests by key, or only what never reached the store, up to a limit."""
    folder = Path(directory)
    check_private(folder)
    options = ["--limit-bytes", str(limit_bytes), *(["--not-uploaded"] if not_uploaded else [])]
    answer = call_runner(folder, "fetch", "--dir", str(folder), "--since", "-", *options, text=json.dumps(since))
    return {key: answer[key] for key in ("files", "more", "running", "ended")}
