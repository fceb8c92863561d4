"""Reads a run's status from its folder on the controller, while that folder is as current as the store."""

from datetime import datetime, timezone
from pathlib import Path

from ..gang import document as gang_document
from ..records.brief import brief
from ..records.evidence import REFUSED
from ..runs import publishing, state
from ..runs.folder import RunError, RunFolder, read_json, read_object
from .status import StoredStatus


def is_current(folder: RunFolder) -> bool:
    """Whether a run's folder has all that the store has: its controller watches the run, or has judged it and nothing
    was cleaned since. False for a damaged file, which may be whole in the store."""
    try:
        run = folder.read_run()
        if run["finished_at"] is None:
            seen = folder.seen()
            return seen.name == state.WORKING and bool(seen.attended) and folder.watch_file.exists()
        return state.to_clean(run) and publishing.is_final(run, publishing.judged(folder))
    except RunError:
        return False


def read_status(folder: RunFolder) -> StoredStatus | None:
    """The current status of the run, and of the newest round of its gangs; None where the store has to be read."""
    try:
        return _read(folder) if is_current(folder) else None
    except (RunError, OSError, ValueError, KeyError, TypeError):  # a file is damaged, or was replaced meanwhile
        return None


def _read(folder: RunFolder) -> StoredStatus:
    run, gangs = folder.read_run(), read_object(folder.gangs_file) or None
    round_names = [each["name"] for each in gangs["rounds"][-1:]] if gangs else []
    files = {
        node: {stage: folder.evidence_file(node, stage) for stage in expected["stages"]}
        for node, expected in run["nodes"].items()
    }
    problems = [problem for problem in folder.read_problems() if problem["reason"].startswith(REFUSED)]
    return StoredStatus(
        run,
        datetime.now(timezone.utc),
        {
            node: {stage: brief(read_json(path), _modified(path)) for stage, path in paths.items() if path.exists()}
            for node, paths in files.items()
        },
        read_object(folder.watch_file) or None,
        _modified(folder.watch_file) if folder.watch_file.exists() else None,
        refused=[f"refused: {each['node'] or ''} {each['stage'] or ''}: {each['reason']}" for each in problems],
        gangs=gangs,
        gangs_modified=_modified(folder.gangs_file) if gangs else None,
        round=next((_read(gang_document.round_folder(folder, name)) for name in round_names), None),
    )


def _modified(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
