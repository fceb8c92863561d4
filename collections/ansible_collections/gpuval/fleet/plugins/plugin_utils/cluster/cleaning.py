"""Deletes the Kubernetes objects of a run by its label, waits until they are gone, and reports those that are left."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.escape import one_line
from ..core.text import first_lines
from . import names
from .api import Cluster, ClusterError, Forbidden, Missing

#: Kinds of objects in the order of deletion: an existing Job would create its pod again.
KINDS = ("Job", "Pod", "Service", "Secret", "ConfigMap")
JOB_SET = "JobSet"
#: Kinds that many clusters and old Roles lack: if gpuval may not list such objects, it has not created any.
CLAIMS = ("ResourceClaimTemplate", "ComputeDomain")
#: Kinds that are deleted only if a run created volumes: other clusters need not allow their deletion.
VOLUMES = ("PersistentVolumeClaim", "PersistentVolume")
#: Seconds between two lists of the objects that are left: the first wait, doubled up to the maximum.
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 5.0
SHOWN = 5
#: Labels that name a run: on its own objects, and on objects of its multi-node rounds.
_LABELS = (names.RUN_LABEL, names.PARENT_LABEL)

Found = list[dict[str, Any]]

_FORCE = (
    "recover the node, or, only if the machine is off: kubectl -n {namespace} delete pod {name} "
    "--force --grace-period=0"
)


@dataclass(frozen=True)
class Left:
    """An object that a clean could not remove, the reason, and the remedy."""

    kind: str
    name: str
    why: str
    remedy: str


@dataclass
class Cleaned:
    """Result of a clean. removed: names of objects by kind, in check mode those to be removed. left: objects that are
    still there at the deadline."""

    removed: dict[str, list[str]] = field(default_factory=dict)
    left: list[Left] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(len(found) for found in self.removed.values())


def clean(
    cluster: Cluster,
    run_ids: Sequence[str],
    deadline_seconds: float,
    *,
    trial: bool = False,
    volumes: bool = False,
) -> Cleaned:
    """Remove the objects of these runs, and of their multi-node rounds, from the cluster's namespace; without `run_ids`
    those of all runs. Objects are selected by the run's label; if one kind may not be listed or deleted, the others are
    removed all the same. `trial` removes nothing. Raises ``ClusterError`` when the cluster does not answer."""
    ends, wait = time.monotonic() + deadline_seconds, FIRST_WAIT_SECONDS
    values = frozenset(names.label_value(run_id) for run_id in run_ids)
    result, names_by_kind = Cleaned(), {}
    objects_by_kind: dict[str, Found] = {}
    # Every kind is listed before the first is deleted: the cluster removes a Job's pods with it.
    for kind in (*kinds_of(cluster), *CLAIMS, *(VOLUMES if volumes else ())):
        try:
            objects_by_kind[kind] = _list_objects(cluster, kind, values)
        except (Forbidden, Missing) as error:
            result.left += [_forbidden(kind, error)] if kind not in CLAIMS else []
    for kind, objects in objects_by_kind.items():
        try:
            if objects and not trial:
                _delete(cluster, kind, objects, values)
        except Forbidden as error:
            result.left.append(_forbidden(kind, error))
        else:
            names_by_kind[kind] = {item["metadata"]["name"] for item in objects}
    still: dict[str, Found] = {} if trial else {kind: [] for kind, names_made in names_by_kind.items() if names_made}
    present = {} if trial else objects_by_kind
    while still := {
        kind: objects
        for kind in (names_by_kind if _has_controller(present) else still)
        if (objects := _list_objects(cluster, kind, values))
    }:
        present = still
        if time.monotonic() + wait > ends:
            result.left += [_left(kind, item, cluster.namespace) for kind, objects in still.items() for item in objects]
            break
        time.sleep(wait)
        wait = min(LONGEST_WAIT_SECONDS, wait * 2)
        for kind, objects in still.items():
            if any(not item["metadata"].get("deletionTimestamp") for item in objects):
                _delete(cluster, kind, objects, values)  # a controller that still works has created objects since
    for kind, names_made in names_by_kind.items():
        if removed := names_made - {leftover.name for leftover in result.left if leftover.kind == kind}:
            result.removed[kind] = sorted(removed)
    return result


def kinds_of(cluster: Cluster) -> tuple[str, ...]:
    """Kinds of objects that a run may have created in this cluster, JobSets first: they would create their Jobs
    again."""
    return (*([JOB_SET] if cluster.serves(JOB_SET) else ()), *KINDS)


def _list_objects(cluster: Cluster, kind: str, values: Collection[str]) -> Found:
    """The objects of a kind that belong to runs, or to their multi-node rounds. `values`: label values of the runs,
    empty for all. No selector matches one label or another, so the objects of all runs are listed, and filtered."""
    listed = cluster.list(kind, names.ALL_RUNS)[0]
    return [item for item in listed if not values or any(_has_label(item, label, values) for label in _LABELS)]


def _delete(cluster: Cluster, kind: str, objects: Iterable[Mapping[str, Any]], values: Collection[str]) -> None:
    """Delete objects by the label of their run; by the label of multi-node rounds only if an object lacks the former.
    `values`: label values of the runs, empty for all."""
    if not values:
        cluster.delete_all(kind, names.ALL_RUNS)
        return
    for label in _LABELS:
        if any(_has_label(item, label, values) for item in objects):
            cluster.delete_all(kind, f"{names.ALL_RUNS},{label} in ({','.join(sorted(values))})")
        objects = [item for item in objects if not _has_label(item, label, values)]


def _has_controller(objects_by_kind: Mapping[str, Found]) -> bool:
    """Whether a controller in the cluster is among the objects: until it has ended it may create others of any kind."""
    listed = (item for objects in objects_by_kind.values() for item in objects)
    return any(_has_label(item, names.COMPONENT_LABEL, (names.CONTROLLER,)) for item in listed)


def _has_label(item: Mapping[str, Any], label: str, values: Collection[str]) -> bool:
    return (item["metadata"].get("labels") or {}).get(label) in values


def _forbidden(kind: str, error: ClusterError) -> Left:
    return Left(kind, "", f"no {kind} can be cleaned: {one_line(str(error), 300)}", str(error))


def _left(kind: str, item: Mapping[str, Any], namespace: str) -> Left:
    meta = item["metadata"]
    name, host = str(meta["name"]), str((item.get("spec") or {}).get("nodeName") or "")
    remedy = f"clean again, or inspect it: kubectl -n {namespace} get {kind.lower()} {name} -o yaml"
    why = "its deletion takes longer than gpuval waited"
    if not meta.get("deletionTimestamp"):
        why = "it is recreated, or was not deleted: a controller may be at work"
    elif kind == "Pod" and host:
        why, remedy = f"the node {host} has not ended it", _FORCE.format(namespace=namespace, name=name)
    elif meta.get("finalizers"):
        why = f"held by {', '.join(map(str, meta['finalizers']))}"
    return Left(kind, name, why, remedy)


def lines(run_ids: Sequence[str], cleaned: Cleaned, namespace: str, *, trial: bool = False) -> list[str]:
    """The result of a clean, for people: what was removed, and each object that is left with its remedy."""
    subject = f"{'run' if len(run_ids) == 1 else 'runs'} {', '.join(run_ids)}" if run_ids else "all runs"
    counts = ", ".join(f"{len(found)} {kind}{'s' * (len(found) > 1)}" for kind, found in cleaned.removed.items())
    verb = "would be removed" if trial else "removed"
    head = f"CLEAN: {subject} in namespace {namespace}: {f'{verb}: {counts}' if counts else 'nothing was there'}"
    left_lines = [
        f"{leftover.kind} {leftover.name or '*'} is left: {leftover.why}"
        + (f": {leftover.remedy}" if leftover.name else "")
        for leftover in cleaned.left
    ]
    return [head, *(f"- {line}" for line in first_lines(left_lines, SHOWN))]
