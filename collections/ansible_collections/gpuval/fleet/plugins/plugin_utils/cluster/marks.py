"""A run's verdict on the nodes of a cluster: labels, an annotation and, when asked, a taint. Set and removed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from ..runs.failed_checks import FAIL, PASS
from . import names
from .api import Cluster, Exists, Missing
from .pod_settings import FAILED_TAINT

VERDICT_LABEL = "gpuval.io/verdict"
TIME_ANNOTATION = "gpuval.io/validated-at"
LABELS = (VERDICT_LABEL, names.RUN_LABEL)
ANNOTATIONS = (names.RUN_ANNOTATION, TIME_ANNOTATION)
NO_SCHEDULE = "NoSchedule"
#: How often a change is tried again that met another of the same node.
ROUNDS = 4


@dataclass(frozen=True)
class Mark:
    """What a node is to bear. `at`: when the run was judged, RFC 3339 UTC. `partial`: of a run that accepts no node.

    `cleared`: it has passed what it failed before, so that the taint goes also where it is not accepted yet.
    """

    verdict: str
    run_id: str
    at: str
    partial: bool = False
    cleared: bool = False


@dataclass(frozen=True)
class NodeMarkChange:
    """A merge patch of one node, and what it changes, for people."""

    node: str
    patch: dict[str, Any]
    before: str
    after: str


@dataclass
class NodesMarked:
    """changes: by node. missing: nodes that the cluster has not. busy: nodes that others kept changing. kept: nodes
    that stay FAIL, since the run that they passed was only a part."""

    changes: dict[str, NodeMarkChange] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def change(node: Mapping[str, Any], mark: Mark | None, *, taint: bool = False) -> NodeMarkChange | None:
    """What makes a Node bear `mark`, or no mark at all; None when it is so already.

    With `taint` a node that failed gets one and a node that passed loses it; INCOMPLETE leaves it as it is, since
    nothing was proven. Without `taint` it is left alone. No mark means no taint either. A partial run leaves a node
    that failed as it is, unless it fails again.
    """
    if stays_failed(node, mark):
        return None
    meta = node["metadata"]
    labels = {key: (meta.get("labels") or {}).get(key) for key in LABELS}
    notes = {key: (meta.get("annotations") or {}).get(key) for key in ANNOTATIONS}
    taints = list((node.get("spec") or {}).get("taints") or ())
    if mark is None:
        labels_wanted = dict.fromkeys(LABELS)
        notes_wanted = dict.fromkeys(ANNOTATIONS)
    else:
        labels_wanted = {VERDICT_LABEL: mark.verdict, names.RUN_LABEL: names.label_value(mark.run_id)}
        notes_wanted = {names.RUN_ANNOTATION: mark.run_id, TIME_ANNOTATION: mark.at}
    taints_wanted = _taints(taints, mark, taint)
    patch: dict[str, Any] = {}
    for part, now, desired in (("labels", labels, labels_wanted), ("annotations", notes, notes_wanted)):
        different = {key: value for key, value in desired.items() if now[key] != value}
        if different:
            patch.setdefault("metadata", {})[part] = different
    if taints_wanted != taints:
        # A patch replaces the whole list: it must be the one that was read, or another's taint would be lost.
        patch.setdefault("metadata", {})["resourceVersion"] = meta["resourceVersion"]
        patch["spec"] = {"taints": taints_wanted}
    if not patch:
        return None
    return NodeMarkChange(
        meta["name"], patch, _shown(labels, notes, taints), _shown(labels_wanted, notes_wanted, taints_wanted)
    )


def stays_failed(node: Mapping[str, Any], mark: Mark | None) -> bool:
    """Whether the mark is of too little a run to take FAIL off the node."""
    if mark is None or not mark.partial or mark.verdict == FAIL:
        return False
    taints = (node.get("spec") or {}).get("taints") or ()
    return verdict_of(node) == FAIL or any(taint.get("key") == FAILED_TAINT for taint in taints)


def verdict_of(node: Mapping[str, Any] | None) -> str | None:
    return ((node or {"metadata": {}})["metadata"].get("labels") or {}).get(VERDICT_LABEL)


def _taints(taints: list[dict[str, Any]], mark: Mark | None, is_wanted: bool) -> list[dict[str, Any]]:
    other_taints = [taint for taint in taints if taint.get("key") != FAILED_TAINT]
    if mark is None or (is_wanted and (mark.verdict == PASS or mark.cleared)):
        return other_taints
    if not is_wanted or mark.verdict != FAIL:
        return taints
    failed_taint = {"key": FAILED_TAINT, "value": names.label_value(mark.run_id), "effect": NO_SCHEDULE}
    old = [taint for taint in taints if taint.get("key") == FAILED_TAINT]
    return taints if old == [failed_taint] else [*other_taints, failed_taint]


def _shown(labels: Mapping[str, Any], notes: Mapping[str, Any], taints: Iterable[Mapping[str, Any]]) -> str:
    """What of a node is ours, as YAML."""
    summary = {
        "labels": {key: value for key, value in labels.items() if value is not None},
        "annotations": {key: value for key, value in notes.items() if value is not None},
        "taints": [
            f"{taint['key']}={taint.get('value', '')}:{taint.get('effect')}"
            for taint in taints
            if taint.get("key") == FAILED_TAINT
        ],
    }
    return yaml.safe_dump({key: value for key, value in summary.items() if value} or None, sort_keys=True)


def is_marked(node: Mapping[str, Any], runs: Collection[str] = ()) -> bool:
    """Whether a Node bears a mark, of one of these runs or of any."""
    labels = node["metadata"].get("labels") or {}
    if runs:
        return labels.get(names.RUN_LABEL) in [names.label_value(run) for run in runs]
    tainted = any(taint.get("key") == FAILED_TAINT for taint in (node.get("spec") or {}).get("taints") or ())
    return tainted or any(key in labels for key in LABELS)


def set_marks(cluster: Cluster, marks: Mapping[str, Mark | None], *, taint: bool, trial: bool = False) -> NodesMarked:
    """Bring nodes to their marks: one list of all nodes, one patch for each that is not so. Raises ``ClusterError``."""
    result = NodesMarked()
    nodes = {node["metadata"]["name"]: node for node in cluster.list("Node")[0]}
    result.missing = sorted(set(marks) - set(nodes))
    todo = [name for name in marks if name in nodes]
    for turn in range(ROUNDS):
        conflicting = []
        for name in todo:
            mark_change = change(nodes[name], marks[name], taint=taint)
            if mark_change is None:
                if stays_failed(nodes[name], marks[name]):
                    result.kept.append(name)
                continue
            try:
                if not trial:
                    cluster.patch("Node", name, mark_change.patch)
            except Exists:  # changed by another client since it was read
                conflicting.append(name)
            except Missing:
                result.missing.append(name)
            else:
                result.changes[name] = mark_change
        todo = conflicting
        if not todo or turn == ROUNDS - 1:
            break
        fresh = {node["metadata"]["name"]: node for node in cluster.list("Node")[0]}
        result.missing += [name for name in todo if name not in fresh]
        nodes, todo = fresh, [name for name in todo if name in fresh]
    result.busy = todo
    return result


def remove_marks(
    cluster: Cluster, node_names: Iterable[str] = (), runs: Collection[str] = (), *, trial: bool = False
) -> NodesMarked:
    """Take the marks off these nodes, else off all; with `runs` only those of these runs."""
    listed = cluster.list("Node")[0]
    chosen = set(node_names) or {node["metadata"]["name"] for node in listed}
    marked = {node["metadata"]["name"] for node in listed if is_marked(node, runs)}
    result = (
        set_marks(cluster, dict.fromkeys(sorted(chosen & marked)), taint=True, trial=trial) if marked else NodesMarked()
    )
    result.missing = sorted(chosen - {node["metadata"]["name"] for node in listed})
    return result
