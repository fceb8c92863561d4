"""Write a run's verdicts on the nodes of its cluster, or take them off; drain and resume nodes of Slurm."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..cluster.api import ClusterAccess
from ..core.escape import one_line
from ..core.text import some_of
from ..runs import failed_checks
from ..runs.action import RunAction, RunOptions
from ..watch.scheduler import scheduler_of

MAX_SHOWN = 300


class MarkNodesOptions(RunOptions, ClusterAccess):
    scheduler: str = "kubernetes"
    taint_incomplete: bool = False
    state: Literal["present", "absent"] = "present"
    run_ids: Sequence[str] = ()
    nodes: Sequence[str] = ()
    taint: bool = False
    #: Days after which a PASS no longer makes a node accepted; 0: never.
    max_age_days: float = 0
    repairs: Sequence[Mapping[str, Any]] = ()

    @property
    def marked_by(self) -> Sequence[str]:
        """The runs whose verdicts to remove; empty: the verdicts of all runs."""
        return self.run_ids or [run_id for run_id in [self.run_id] if run_id]


def mark_nodes(action: RunAction, options: MarkNodesOptions) -> dict[str, Any]:
    scheduler = scheduler_of(options.scheduler)
    marks = scheduler(action, options).mark()
    message = f"{len(marks.changes)} node(s) {'would be ' if action.check_mode else ''}changed"
    left_alone = ("drained or down for others, left as they are", marks.foreign)
    for reason, names in ((f"not in {scheduler.title}", marks.missing), left_alone):
        message += f"; {reason}: {some_of(names)}" if names else ""
    still = {name: sorted(checks) for name, checks in marks.still.items()}
    if still:
        state, remedy = scheduler.still_words
        open_checks = {
            name: ", ".join(entry.strip("/") for entry in checks if entry != failed_checks.UNKNOWN)
            for name, checks in still.items()
        }
        listed = some_of(f"{name} ({one_line(text, MAX_SHOWN) or 'a whole run'})" for name, text in open_checks.items())
        open_text = f"{state}: {listed}: a run in which they pass all of it {remedy}"
        if any(failed_checks.REPAIR in checks for checks in still.values()):
            open_text += "; declare a repair that changed no serial and no firmware in gpuval_repairs"
        action.display.warning(open_text)
        message += f"; {open_text}, or mark_nodes with state: absent"
    if marks.problem:
        message += f"; {marks.problem}"
    elif marks.changes:
        action.display.display(f"marks: {message}")
    return {
        "changed": bool(marks.changes),
        "failed": bool(marks.problem),
        "nodes": sorted(marks.changes),
        "missing": marks.missing,
        "busy": marks.busy,
        "kept": sorted(still),
        "open": still,
        "diff": [
            {"before_header": name, "after_header": name, "before": before, "after": after}
            for name, (before, after) in sorted(marks.changes.items())
        ],
        "foreign": marks.foreign,
        "msg": message,
    }
