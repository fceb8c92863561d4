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
#: What of a node's metadata is gpuval's.
OURS = {"labels": LABELS, "annotations": (names.RUN_ANNOTATION, TIME_ANNOTATION)}
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

    patch: dict[str, Any]
    before: str
    after: str


def change(node: Mapping[str, Any], mark: Mark | None, *, taint: bool = False) -> NodeMarkChange | None:
    """What makes a Node bear `mark`, or no mark at all; None when it is so already.

    With `taint` a node that failed gets one and a node that passed loses it; INCOMPLETE leaves it as it is, since
    nothing was proven. Without `taint` it is left alone. No mark means no taint either. A partial run leaves a node
    that failed as it is, unless it fails again.
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
    return NodeMarkChange({"metadata": patched, **patch}, _shown(now, taints), _shown(desired, desired_taints))


def stays_failed(node: Mapping[str, Any], mark: Mark | None) -> bool:
    """Whether the mark is of too little a run to take FAIL off the node."""
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


def _shown(metadata: Mapping[str, Mapping[str, Any]], taints: Iterable[dict[str, Any]]) -> str:
    """What of a node is ours, as YAML."""
    summary: dict[str, Any] = {
        part: {key: value for key, value in values.items() if value is not None} for part, values in metadata.items()
    }
    summary["taints"] = [
        f"{taint['key']}={taint.get('value', '')}:{taint.get('effect')}" for taint in _failed_taints(taints)
    ]
    return yaml.safe_dump({key: value for key, value in summary.items() if value} or None, sort_keys=True)


def is_marked(node: Mapping[str, Any], runs: Collection[str] = ()) -> bool:
    """Whether a Node bears a mark, of one of these runs or of any."""
    labels = node["metadata"].get("labels") or {}
    if runs:
        return labels.get(names.RUN_LABEL) in [names.label_value(run) for run in runs]
    return bool(_failed_taints((node.get("spec") or {}).get("taints"))) or any(key in labels for key in LABELS)


def set_marks(cluster: Cluster, marks: Mapping[str, Mark | None], *, taint: bool, trial: bool = False) -> NodeVerdicts:
    """Bring nodes to their marks: one list of all nodes, one patch for each that is not so. `still`: nodes that stay
    FAIL, since the run that they passed was only a part. Raises ``ClusterError``."""
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
            except Exists:  # changed by another client since it was read
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
    """Take the marks off these nodes, else off all; with `runs` only those of these runs."""
    is_marked_by_name = {node["metadata"]["name"]: is_marked(node, runs) for node in cluster.list("Node")[0]}
    chosen = set(node_names) or set(is_marked_by_name)
    marked = sorted(name for name in chosen if is_marked_by_name.get(name))
    result = set_marks(cluster, dict.fromkeys(marked), taint=True, trial=trial) if marked else NodeVerdicts()
    result.missing = sorted(chosen - set(is_marked_by_name))
    return result
