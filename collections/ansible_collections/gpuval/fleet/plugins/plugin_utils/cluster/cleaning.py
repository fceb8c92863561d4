"""Removes what a run made in a cluster by its label, waits until it is gone, and names what is left."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.escape import one_line
from . import names
from .api import Cluster, Forbidden

#: Kinds of objects in the order of deletion: an existing Job would create its pod again.
KINDS = ("Job", "Pod", "Service", "Secret", "ConfigMap")
JOB_SET = "JobSet"
#: Kinds that are deleted only if a run created volumes: other clusters need not allow their deletion.
VOLUMES = ("PersistentVolumeClaim", "PersistentVolume")
#: Seconds between two lists of the objects that are left: the first wait, doubled up to the maximum.
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 5.0
SHOWN = 5

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
    """Remove the objects of these runs from the cluster's namespace; without `run_ids` the objects of all runs.

    Objects of their multi-node rounds are removed too. Objects are selected by the run's label, so other runs' stay. If
    one kind may not be listed or deleted, the other kinds are removed all the same. `trial` removes nothing. Raises
    ``ClusterError`` when the cluster does not answer.
    """
    ends, wait, selectors = time.monotonic() + deadline_seconds, FIRST_WAIT_SECONDS, _selectors(run_ids)
    result, names_by_kind = Cleaned(), {}
    objects_by_kind: dict[str, Found] = {}
    # Every kind is listed before the first is deleted: the cluster removes a Job's pods with it.
    for kind in (*kinds_of(cluster), *(VOLUMES if volumes else ())):
        try:
            objects_by_kind[kind] = _there(cluster, kind, selectors)
        except Forbidden as error:
            result.left.append(_forbidden(kind, error))
    for kind, objects in objects_by_kind.items():
        try:
            if objects and not trial:
                _delete(cluster, kind, selectors)
        except Forbidden as error:
            result.left.append(_forbidden(kind, error))
        else:
            names_by_kind[kind] = {item["metadata"]["name"] for item in objects}
    still: dict[str, Found] = {} if trial else {kind: [] for kind, names_made in names_by_kind.items() if names_made}
    while still := {kind: objects for kind in still if (objects := _there(cluster, kind, selectors))}:
        if time.monotonic() + wait > ends:
            result.left += [_left(kind, item, cluster.namespace) for kind, objects in still.items() for item in objects]
            break
        time.sleep(wait)
        wait = min(LONGEST_WAIT_SECONDS, wait * 2)
        for kind, objects in still.items():
            if any(not item["metadata"].get("deletionTimestamp") for item in objects):
                _delete(cluster, kind, selectors)  # objects created since, by a controller that still works
    for kind, names_made in names_by_kind.items():
        if removed := names_made - {leftover.name for leftover in result.left if leftover.kind == kind}:
            result.removed[kind] = sorted(removed)
    return result


def kinds_of(cluster: Cluster) -> tuple[str, ...]:
    """Kinds of objects that a run may have created in this cluster, JobSets first: a JobSet would create its Jobs
    again."""
    return (*([JOB_SET] if cluster.serves(JOB_SET) else ()), *KINDS)


def _selectors(run_ids: Iterable[str]) -> list[str]:
    """Label selectors of the runs' objects, and of their multi-node rounds' objects: each round has a run id."""
    values = ",".join(names.label_value(run_id) for run_id in dict.fromkeys(run_ids))
    labels = (names.RUN_LABEL, names.PARENT_LABEL) if values else ()
    return [f"{names.ALL_RUNS},{label} in ({values})" for label in labels] or [names.ALL_RUNS]


def _there(cluster: Cluster, kind: str, selectors: Iterable[str]) -> Found:
    """The objects of a kind that the selectors choose, each once even if two selectors choose it."""
    listed = (item for selector in selectors for item in cluster.list(kind, selector)[0])
    return list({item["metadata"]["name"]: item for item in listed}.values())


def _delete(cluster: Cluster, kind: str, selectors: Iterable[str]) -> None:
    for selector in selectors:
        cluster.delete_all(kind, selector)


def _forbidden(kind: str, error: Forbidden) -> Left:
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
    text_lines = [
        f"- {leftover.kind} {leftover.name or '*'} is left: {leftover.why}"
        + (f": {leftover.remedy}" if leftover.name else "")
        for leftover in cleaned.left[:SHOWN]
    ]
    if len(cleaned.left) > SHOWN:
        text_lines.append(f"- and {len(cleaned.left) - SHOWN} more")
    return [head, *text_lines]
