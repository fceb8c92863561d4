"""Remove what runs made in a cluster, and see that it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..cluster import cleaning
from ..cluster.api import Cluster, ClusterAccess
from ..runs import folder as run_folder
from ..runs.action import RunAction


@dataclass(frozen=True, kw_only=True)
class CleanClusterOptions(ClusterAccess):
    run_ids: Sequence[str] = ()
    results_dir: Path | None = None
    volumes: bool = False
    deadline_seconds: int = 180


def clean_cluster(action: RunAction, options: CleanClusterOptions) -> dict[str, Any]:
    run_ids, trial = options.run_ids, action.check_mode
    with Cluster(options) as cluster:
        cleaned = cleaning.clean(cluster, run_ids, options.deadline_seconds, trial=trial, volumes=options.volumes)
    if options.results_dir and not trial and not cleaned.left:
        run_folder.mark_cleaned(options.results_dir, run_ids)
    lines = cleaning.lines(run_ids, cleaned, options.namespace, trial=trial)
    action.display.display(*lines)
    before = "".join(f"{kind} {name}\n" for kind, found in cleaned.removed.items() for name in found)
    return {
        "changed": bool(cleaned.count),
        "failed": bool(cleaned.left),
        "removed": cleaned.removed,
        "left": [asdict(left) for left in cleaned.left],
        "diff": {"before": before, "after": ""},
        "msg": "; ".join(lines),
    }
