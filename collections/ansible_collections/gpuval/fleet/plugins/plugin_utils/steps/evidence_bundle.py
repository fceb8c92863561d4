"""Make the evidence bundle of a judged run, in its folder of the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..evidence_bundle import contents
from ..evidence_bundle.replay import ReplayError, replay
from ..runs.action import RunAction, RunOptions


def evidence_bundle(action: RunAction, options: RunOptions) -> dict[str, Any]:
    folder = action.folder(options)
    sources = contents.sources_of(folder)
    result = {"path": str(sources.target), "files": len(sources.paths)}
    if sources.is_made():
        return {**result, "changed": False, "msg": f"{sources.target} is up to date"}
    if action.check_mode:
        message = f"check mode: nothing is written; {len(sources.paths):,} files would go into {sources.target}"
        return {**result, "changed": True, "msg": message}

    def problem_of(draft: Path) -> str:
        try:
            return replay(draft).problem()
        except ReplayError as error:
            return str(error)

    contents.make(sources, problem_of, action.display.display)
    return {**result, "changed": True, "msg": f"evidence bundle in {sources.target}: keep it confidential"}
