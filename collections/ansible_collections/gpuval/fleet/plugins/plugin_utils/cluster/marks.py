"""A run's verdict on the nodes of a cluster: labels, an annotation and, when asked, a taint. Set and removed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from ..runs.failed_checks import FAIL, PASS
from ..watch.scheduler import NodeVerdicts
from . import names
from .api import Cluster, Exists, Missing
from .pod_settings import FAILED_TAINT

VERDICT_LABEL = "gpuval.io/verdict"
TIME_ANNOTATION = "gpuval.io/validated-at"
LABELS = (VERDICT_LABEL, names.RUN_LABEL)
#: Keys in a node's metadata that gpuval sets.
OURS = {"labels": LABELS, "annotations": (names.RUN_ANNOTATION, TIME_ANNOTATION)}
NO_SCHEDULE = "NoSchedule"
#: How often a patch is tried that conflicts with another client's change of the same node.
ROUNDS = 4


@dataclass(frozen=True)
class Mark:
    """A verdict to write on a node. `at`: when the run was judged, RFC 3339 UTC. `partial`: the run accepts no nodes.

    `cleared`: the node has passed what it failed before, so its taint goes even if the node is not accepted yet.
    """

    verdict: str
    run_id: str
    at: str
    partial: bool = False
    cleared: bool = False


@dataclass(frozen=True)
class NodeMarkChange:
    """A merge patch of one node, and the changed marks before and after it, for people."""

    patch: dict[str, Any]
    before: str
    after: str


def change(node: Mapping[str, Any], mark: Mark | None, *, taint: bool = False) -> NodeMarkChange | None:
    """The patch that gives a Node this `mark`, or removes any mark if `mark` is None; None if nothing has to change.

    With `taint` a node that failed gets the taint, a node that passed loses it, and INCOMPLETE leaves the taint as it
    is. Without `taint` no taint changes. Removing the mark removes the taint too. A partial run leaves a failed node
    as it is, unless the node fails again.
    """
    if stays_failed(node, mark):
        return None
    meta, taints = node["metadata"], list((node.get("spec") or {}).get("taints") or ())
    now = {part: {key: (meta.get(part) or {}).get(key) for key in keys} for part, keys in OURS.items()}
    desired: dict[str, dict[str, Any]] = {part: dict.fromkeys(keys) for part, keys in OURS.items()}
    if mark is not None:
        desired["labels"] = {VERDICT_LABEL: mark.verdict, names.RUN_LABEL: names.label_value(mark.run_id)}
        desired["annotations"] = {names.RUN_ANNOTATION: mark.run_id, TIME_ANNOTATION: mark.at}
    patched: dict[str, Any] = {
        part: different
        for part, values in desired.items()
        if (different := {key: value for key, value in values.items() if now[part][key] != value})
    }
    patch: dict[str, Any] = {}
    desired_taints = _taints(taints, mark, taint)
    if desired_taints != taints:
        # A patch replaces the whole list: it must be the one that was read, or another's taint would be lost.
        patched["resourceVersion"] = meta["resourceVersion"]
        patch["spec"] = {"taints": desired_taints}
    if not patched:
        return None
    return NodeMarkChange(
        {"metadata": patched, **patch}, _marks_as_yaml(now, taints), _marks_as_yaml(desired, desired_taints)
    )


def stays_failed(node: Mapping[str, Any], mark: Mark | None) -> bool:
    """Whether a failed node keeps FAIL because the mark comes from a partial run."""
    if mark is None or not mark.partial or mark.verdict == FAIL:
        return False
    return verdict_of(node) == FAIL or bool(_failed_taints((node.get("spec") or {}).get("taints")))


def verdict_of(node: Mapping[str, Any] | None) -> str | None:
    return ((node or {"metadata": {}})["metadata"].get("labels") or {}).get(VERDICT_LABEL)


def _failed_taints(taints: Iterable[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return [taint for taint in taints or () if taint.get("key") == FAILED_TAINT]


def _taints(taints: list[dict[str, Any]], mark: Mark | None, is_wanted: bool) -> list[dict[str, Any]]:
    other_taints = [taint for taint in taints if taint.get("key") != FAILED_TAINT]
    if mark is None or (is_wanted and (mark.verdict == PASS or mark.cleared)):
        return other_taints
    if not is_wanted or mark.verdict != FAIL:
        return taints
    failed_taint = {"key": FAILED_TAINT, "value": names.label_value(mark.run_id), "effect": NO_SCHEDULE}
    return taints if _failed_taints(taints) == [failed_taint] else [*other_taints, failed_taint]


def _marks_as_yaml(metadata: Mapping[str, Mapping[str, Any]], taints: Iterable[dict[str, Any]]) -> str:
    """The labels, annotations and taints that gpuval sets, as YAML."""
    summary: dict[str, Any] = {
        part: {key: value for key, value in values.items() if value is not None} for part, values in metadata.items()
    }
    summary["taints"] = [
        f"{taint['key']}={taint.get('value', '')}:{taint.get('effect')}" for taint in _failed_taints(taints)
    ]
    return yaml.safe_dump({key: value for key, value in summary.items() if value} or None, sort_keys=True)


def is_marked(node: Mapping[str, Any], runs: Collection[str] = ()) -> bool:
    """Whether a Node has a mark of one of these runs; without `runs`, of any run."""
    labels = node["metadata"].get("labels") or {}
    if runs:
        return labels.get(names.RUN_LABEL) in [names.label_value(run) for run in runs]
    return bool(_failed_taints((node.get("spec") or {}).get("taints"))) or any(key in labels for key in LABELS)


def set_marks(cluster: Cluster, marks: Mapping[str, Mark | None], *, taint: bool, trial: bool = False) -> NodeVerdicts:
    """Set the marks of nodes, by name: one list of all nodes, one patch for each node that differs. Nodes that stay
    FAIL because they passed only a partial run are in the result's `still`. Raises ``ClusterError``."""
    result, todo = NodeVerdicts(), list(marks)
    for _turn in range(ROUNDS):
        nodes = {node["metadata"]["name"]: node for node in cluster.list("Node")[0]}
        result.missing += sorted(set(todo) - set(nodes))
        conflicting = []
        for name in (name for name in todo if name in nodes):
            mark_change = change(nodes[name], marks[name], taint=taint)
            if mark_change is None:
                if stays_failed(nodes[name], marks[name]):
                    result.still[name] = frozenset()
                continue
            try:
                if not trial:
                    cluster.patch("Node", name, mark_change.patch)
            except Exists:  # another client changed the node since the list
                conflicting.append(name)
            except Missing:
                result.missing.append(name)
            else:
                result.changes[name] = (mark_change.before, mark_change.after)
        todo = conflicting
        if not todo:
            break
    result.busy = todo
    return result


def remove_marks(
    cluster: Cluster, node_names: Iterable[str] = (), runs: Collection[str] = (), *, trial: bool = False
) -> NodeVerdicts:
    """Remove the marks of these nodes, by default of all nodes; with `runs` only marks of these runs."""
    is_marked_by_name = {node["metadata"]["name"]: is_marked(node, runs) for node in cluster.list("Node")[0]}
    chosen = set(node_names) or set(is_marked_by_name)
    marked = sorted(name for name in chosen if is_marked_by_name.get(name))
    result = set_marks(cluster, dict.fromkeys(marked), taint=True, trial=trial) if marked else NodeVerdicts()
    result.missing = sorted(chosen - set(is_marked_by_name))
    return result
