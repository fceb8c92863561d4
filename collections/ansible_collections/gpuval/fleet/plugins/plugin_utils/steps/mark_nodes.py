"""Write a run's verdicts on the nodes of its cluster, or take them off; drain and resume nodes of Slurm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ansible.errors import AnsibleActionFail

from ..cluster import marks, permissions
from ..cluster.api import Cluster, ClusterAccess, Forbidden, Missing
from ..core.escape import one_line
from ..core.text import some_of
from ..runs import failed_checks
from ..runs import folder as run_folder
from ..runs.action import RunAction, RunOptions
from ..slurm import drains

MAX_SHOWN = 300


@dataclass(frozen=True, kw_only=True)
class MarkNodesOptions(RunOptions, ClusterAccess):
    scheduler: Literal["kubernetes", "slurm"] = "kubernetes"
    taint_incomplete: bool = False
    state: Literal["present", "absent"] = "present"
    run_ids: Sequence[str] = ()
    nodes: Sequence[str] = ()
    taint: bool = False


def mark_nodes(action: RunAction, options: MarkNodesOptions) -> dict[str, Any]:
    if options.scheduler == "slurm":
        return _drained(action, options)
    try:
        return _marked(action, options)
    except Forbidden as error:
        raise AnsibleActionFail(f"no verdict is changed on the nodes: {error}\n{permissions.BIND_MARKS}") from None


def _marked(action, options):
    with Cluster(options) as cluster:
        before = {node["metadata"]["name"]: node for node in cluster.list("Node")[0]}
        if options.state == "absent":
            runs = options.run_ids or [one for one in [options.run_id] if one]
            done = marks.remove_marks(cluster, options.nodes, runs, trial=action.check_mode)
            noted = _note(action, cluster, before, dict.fromkeys(done.changes, frozenset()))
            still = {}
        else:
            wanted, left = _wanted(action, options, before)
            noted = _note(action, cluster, before, {name: left[name] for name in left if left[name]})
            done = marks.set_marks(cluster, wanted, taint=options.taint, trial=action.check_mode)
            settled = {name: left[name] for name in left if not left[name] and name not in done.busy}
            noted += _note(action, cluster, before, settled)
            still = {name: sorted(left[name]) for name in done.kept}
    message = f"{len(done.changes)} node(s) {'would be ' if action.check_mode else ''}changed"
    if done.missing:
        message += f"; not in the cluster: {', '.join(done.missing)}"
    if done.kept:
        shown = some_of(f"{name} ({_shown(still[name])})" for name in done.kept)
        kept = f"still FAIL: {shown}: a run in which they pass all of it removes it"
        action.display.warning(kept)
        message += f"; {kept}, or mark_nodes with state: absent"
    if done.busy:
        message += f"; others keep changing {', '.join(done.busy)}: run it again"
    elif done.changes:
        action.display.display(f"marks: {message}")
    return {
        "changed": bool(done.changes or noted),
        "failed": bool(done.busy),
        "nodes": sorted(done.changes),
        "missing": done.missing,
        "busy": done.busy,
        "kept": done.kept,
        "open": still,
        "diff": [
            {"before_header": name, "after_header": name, "before": one.before, "after": one.after}
            for name, one in sorted(done.changes.items())
        ],
        "msg": message,
    }


def _drained(action, options):
    """The verdicts as drains of Slurm."""
    trial = action.check_mode
    if options.state == "absent":
        run_ids = options.run_ids or [one for one in [options.run_id] if one]
        done = drains.release(run_ids, options.nodes, trial=trial)
    else:
        folder = action.folder(options)
        done = drains.mark(
            folder.results, run_folder.read_report(folder), options.nodes,
            incomplete=options.taint_incomplete, trial=trial,
        )  # fmt: skip
    message = f"{len(done.changes)} node(s) {'would be ' if trial else ''}changed"
    for what, names in (
        ("not in Slurm", done.missing),
        ("drained or down for others, left as they are", done.foreign),
    ):
        message += f"; {what}: {some_of(names)}" if names else ""
    still = {name: sorted(checks) for name, checks in done.kept.items()}
    if still:
        shown = some_of(f"{name} ({_shown(still[name])})" for name in still)
        action.display.warning(f"still drained: {shown}: a run in which they pass all of it resumes them")
    if done.problem:
        message += f"; {done.problem}"
    elif done.changes:
        action.display.display(f"marks: {message}")
    return {
        "changed": bool(done.changes),
        "failed": bool(done.problem),
        "nodes": sorted(done.changes),
        "missing": done.missing,
        "busy": [],
        "kept": sorted(still),
        "open": still,
        "foreign": done.foreign,
        "diff": [
            {"before_header": name, "after_header": name, "before": before + "\n", "after": after + "\n"}
            for name, (before, after) in sorted(done.changes.items())
        ],
        "msg": message,
    }


def _wanted(action, options, before):
    """By node its mark, and what it is to pass yet before FAIL goes."""
    report = run_folder.read_report(action.folder(options))
    run = report["run"]
    chosen = set(options.nodes)
    wanted, left = {}, {}
    for node in report["nodes"]:
        name = node["name"]
        if chosen and name not in chosen:
            continue
        bears = before.get(name)
        failed = bears is not None and marks.stays_failed(bears, marks.Mark("", "", "", partial=True))
        decision = failed_checks.decide(_open(bears), node, failed=failed, whole=failed_checks.is_whole(run, node))
        verdict = failed_checks.verdict_after(node, run, marks.verdict_of(bears), failed=failed)
        if verdict is None:
            continue
        cleared = verdict != node["verdict"] and not decision.stays
        wanted[name] = marks.Mark(verdict, run["run_id"], run["judged_at"], partial=decision.stays, cleared=cleared)
        left[name] = decision.open
    return wanted, left


def _note(action, cluster, before, left):
    """Write what is open on the nodes, where it is not there. Returns how many were changed."""
    changed = 0
    for name, entries in left.items():
        if name in before and (_open(before[name]) or frozenset()) != entries:
            changed += 1
            if not action.check_mode:
                note = {failed_checks.ANNOTATION: failed_checks.text_of(entries)}
                try:
                    cluster.patch("Node", name, {"metadata": {"annotations": note}})
                except Missing:  # the marks tell of it
                    changed -= 1
    return changed


def _open(node):
    annotations = (node or {"metadata": {}})["metadata"].get("annotations") or {}
    return failed_checks.parse(annotations.get(failed_checks.ANNOTATION))


def _shown(entries):
    known = ", ".join(entry.strip("/") for entry in entries if entry != failed_checks.UNKNOWN)
    return one_line(known, MAX_SHOWN) or "a whole run"
