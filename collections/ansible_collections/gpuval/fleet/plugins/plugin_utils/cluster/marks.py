"""A run's verdict on the nodes of a cluster: labels, annotations, a condition and, when asked, a taint."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import yaml

from ..runs import failed_checks
from ..runs.failed_checks import ANNOTATION, FAIL, PASS
from ..watch.scheduler import NodeVerdicts
from . import accepted_condition, names
from .accepted_condition import CLASS_ANNOTATION, TIME_ANNOTATION, VERDICT_LABEL
from .api import Cluster, Exists, Missing
from .named_nodes import list_named
from .pod_settings import FAILED_TAINT

LABELS = (VERDICT_LABEL, names.RUN_LABEL)
#: Keys in a node's metadata that gpuval sets.
OURS = {"labels": LABELS, "annotations": (names.RUN_ANNOTATION, TIME_ANNOTATION, CLASS_ANNOTATION, ANNOTATION)}
NO_SCHEDULE = "NoSchedule"
#: How often a patch is tried that conflicts with another client's change of the same node.
ROUNDS = 4


@dataclass(frozen=True)
class Mark:
    """A verdict to write on a node. `at`: when the run was judged, RFC 3339 UTC. `partial`: the run accepts no nodes.
    `cleared`: the node has passed what it failed before, so its taint goes even if the node is not accepted yet.
    `failure_class`: of a node that is not PASS. `open`: checks that the node has yet to pass; None: as noted on it."""

    verdict: str
    run_id: str
    at: str
    partial: bool = False
    cleared: bool = False
    failure_class: str | None = None
    open: frozenset[str] | None = None


@dataclass(frozen=True)
class NodeMarkChange:
    """A merge patch of one node, the marks before and after it, for people, and its labels and annotations after it."""

    patch: dict[str, Any]
    before: str
    after: str
    metadata: dict[str, dict[str, str | None]]


def change(node: Mapping[str, Any], mark: Mark | None, *, taint: bool = False) -> NodeMarkChange | None:
    """The patch that writes the verdict `mark` on a Node or, if `mark` is None, removes verdict and taint; None if
    nothing has to change. With `taint` FAIL adds the taint, PASS removes it, INCOMPLETE leaves it; without, no taint
    changes. A partial run changes only the open checks of a failed node, unless the node fails again."""
    meta, taints = node["metadata"], list((node.get("spec") or {}).get("taints") or ())
    now = marks_of(node)
    desired: dict[str, dict[str, Any]] = {part: dict.fromkeys(keys) for part, keys in OURS.items()}
    desired_taints = _taints(taints, mark, taint)
    if mark is not None:
        if stays_failed(node, mark):
            desired, desired_taints = {part: dict(values) for part, values in now.items()}, taints
        else:
            desired["labels"] = {VERDICT_LABEL: mark.verdict, names.RUN_LABEL: names.label_value(mark.run_id)}
            notes = (mark.run_id, mark.at, mark.failure_class, now["annotations"][ANNOTATION])
            desired["annotations"] = dict(zip(OURS["annotations"], notes, strict=True))
        if mark.open is not None:
            desired["annotations"][ANNOTATION] = failed_checks.text_of(mark.open)
    patched: dict[str, Any] = {
        part: different
        for part, values in desired.items()
        if (different := {key: value for key, value in values.items() if now[part][key] != value})
    }
    patch: dict[str, Any] = {}
    if desired_taints != taints:
        # A patch replaces all taints: if the node has changed since it was read, another's taint would be lost.
        patched["resourceVersion"] = meta["resourceVersion"]
        patch["spec"] = {"taints": desired_taints}
    if not patched:
        return None
    before, after = _marks_as_yaml(now, taints), _marks_as_yaml(desired, desired_taints)
    return NodeMarkChange({"metadata": patched, **patch}, before, after, desired)


def marks_of(node: Mapping[str, Any]) -> dict[str, dict[str, str | None]]:
    """The labels and annotations of gpuval that a Node has; None for those that it lacks."""
    meta = node["metadata"]
    return {part: {key: (meta.get(part) or {}).get(key) for key in keys} for part, keys in OURS.items()}


def stays_failed(node: Mapping[str, Any], mark: Mark | None) -> bool:
    """Whether a failed node keeps FAIL because the mark comes from a partial run."""
    return mark is not None and mark.partial and mark.verdict != FAIL and has_failed(node)


def has_failed(node: Mapping[str, Any]) -> bool:
    """Whether a Node has the verdict FAIL, or gpuval's taint of failed nodes."""
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
    present = {part: {key: value for key, value in values.items() if value} for part, values in metadata.items()}
    texts = [f"{taint['key']}={taint.get('value', '')}:{taint.get('effect')}" for taint in _failed_taints(taints)]
    summary = {key: value for key, value in {**present, "taints": texts}.items() if value}
    return yaml.safe_dump(summary, sort_keys=True) if summary else ""


def is_marked(node: Mapping[str, Any], runs: Collection[str] = ()) -> bool:
    """Whether a Node has a verdict of one of these runs; without `runs`, of any run."""
    labels = node["metadata"].get("labels") or {}
    if runs:
        return labels.get(names.RUN_LABEL) in [names.label_value(run) for run in runs]
    return has_failed(node) or any(key in labels for key in LABELS)


def set_marks(
    cluster: Cluster,
    marks: Mapping[str, Mark | None],
    nodes: Mapping[str, Any] | None = None,
    *,
    taint: bool,
    max_age_days: float | None = None,
    trial: bool = False,
) -> NodeVerdicts:
    """Write verdicts on nodes: one patch of each Node that differs, and one of its status. `marks`: by node name, None
    to remove. `nodes`: Node objects already read, by name; None to read them. With `max_age_days` conditions of the
    other `nodes` follow their verdicts, which may be old. Nodes that stay FAIL because they passed only a partial run
    are in the result's `still`. Raises ``ClusterError``."""
    result, todo = NodeVerdicts(), list(marks)
    metadata_by_name = {}
    nodes = dict(nodes) if nodes is not None else list_named(cluster, marks)
    for turn in range(ROUNDS):
        if turn:
            nodes |= list_named(cluster, todo)
        result.missing += sorted(set(todo) - set(nodes))
        conflicting = []
        for name in (name for name in todo if name in nodes):
            metadata_by_name[name] = marks_of(nodes[name])
            mark, mark_change = marks[name], change(nodes[name], marks[name], taint=taint)
            if mark and stays_failed(nodes[name], mark):
                result.still[name] = mark.open or frozenset()
            if mark_change is None:
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
                metadata_by_name[name] = mark_change.metadata
        todo = conflicting
        if not todo:
            break
    result.busy = todo
    now = datetime.now(timezone.utc)
    if max_age_days is not None:
        metadata_by_name = {name: marks_of(node) for name, node in nodes.items()} | metadata_by_name
    for name in [name for name in metadata_by_name if name not in todo]:
        status = accepted_condition.condition_change(nodes[name], metadata_by_name[name], now, max_age_days or 0)
        if status and (trial or _patch_status(cluster, nodes[name], status.patch, is_marked=name in marks)):
            before, after = result.changes.get(name, ("", ""))
            result.changes[name] = (before + status.before, after + status.after)
    return result


def _patch_status(cluster: Cluster, node: Mapping[str, Any], patch: dict[str, Any], *, is_marked: bool) -> bool:
    """Patch a Node's status, and return whether that was done. If its verdict is not written here (not `is_marked`),
    another controller may have written one since the list: a Node that changed since is not patched."""
    metadata = node["metadata"]
    if not is_marked:
        patch["metadata"] = {"resourceVersion": metadata["resourceVersion"]}
    try:
        cluster.patch("Node", metadata["name"], patch, "status")
    except (Exists, Missing):
        return False
    return True


def remove_marks(
    cluster: Cluster, node_names: Iterable[str] = (), runs: Collection[str] = (), *, trial: bool = False
) -> NodeVerdicts:
    """Remove the verdicts on these nodes, by default on all nodes; with `runs` only verdicts of these runs."""
    chosen = set(node_names)
    if chosen:
        nodes = list_named(cluster, chosen)
    else:
        values = ",".join(names.label_value(run) for run in runs)
        nodes = _by_name(cluster.list("Node", f"{names.RUN_LABEL} in ({values})" if values else "")[0])
    marked = sorted(name for name, node in nodes.items() if is_marked(node, runs))
    result = set_marks(cluster, dict.fromkeys(marked), nodes, taint=True, trial=trial)
    result.missing = sorted(chosen - set(nodes))
    return result


def read_nodes(cluster: Cluster, node_names: Iterable[str]) -> dict[str, Any]:
    """The Nodes of these names, and all that have a verdict, by name."""
    return {**_by_name(cluster.list("Node", VERDICT_LABEL)[0]), **list_named(cluster, node_names)}


def _by_name(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {node["metadata"]["name"]: node for node in nodes}
