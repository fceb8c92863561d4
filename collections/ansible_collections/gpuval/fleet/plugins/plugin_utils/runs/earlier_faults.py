"""What earlier runs of this controller found of machines and GPUs: verdict.json of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from ..core import schemas
from . import folder as run_folder
from . import origin, publishing

#: How the identity of a node begins that is known by its name alone.
BY_NAME = "name "


def read(
    folder: run_folder.RunFolder, run: Mapping[str, Any], window_days: int
) -> tuple[dict[tuple[str, str], set[str]], list[str]]:
    """By class and machine or GPU the runs that ended with that fault, and were opened at most so long before this one.

    Names of nodes are compared among runs of one inventory only. Also returns remarks on files that cannot be used.
    """
    results = folder.path.parent
    begin = datetime.fromisoformat(run["created_at"])
    since = begin - timedelta(days=window_days)
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    remarks = []
    for run_id in run_folder.known_run_ids(results):
        path = publishing.verdict_file(run_folder.RunFolder(results / run_id))
        if run_id == run["run_id"] or not path.exists() or path.stat().st_mtime < since.timestamp():
            continue
        try:
            document = run_folder.read_json(path)
            schemas.validate("verdict", document, what=str(path))
            opened = datetime.fromisoformat(document.get("created_at") or document["judged_at"])
            counts = bool(document.get("finished_at")) and since <= opened < begin
        except (OSError, ValueError, TypeError) as error:
            remarks.append(f"{path} is damaged ({error}): actions do not escalate by run {run_id}")
            continue
        if not counts:
            continue
        inventory = origin.of(run, results)
        same = origin.is_same(run_folder.inventory_of(results, run_id), inventory)
        for faults in document.get("faults", {}).values():
            for fault in faults:
                if same or not fault["of"].startswith(BY_NAME):
                    found[fault["class"], fault["of"]].add(run_id)
    return found, remarks
