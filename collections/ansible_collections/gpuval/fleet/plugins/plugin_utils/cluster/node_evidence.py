"""What a cluster knows of a run on one node, for the logs bundle: objects and the output of containers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from ...module_utils.host_evidence import Part
from ...module_utils.redaction import is_secret
from ..watch import reach
from . import names

Thing = Mapping[str, Any]
#: Left out of a Node: hundreds of images.
_LEFT_OUT = ("images",)
ATTEMPTS = 9


@dataclass
class Objects:
    """Of one node, in the order in which they were made."""

    node: Thing | None = None
    jobs: list[Thing] = field(default_factory=list)
    pods: list[Thing] = field(default_factory=list)
    events: list[Thing] = field(default_factory=list)


def by_node(
    run_id: str,
    expected: Iterable[str],
    nodes: Iterable[Thing],
    jobs: Iterable[Thing],
    pods: Iterable[Thing],
    events: Iterable[Thing],
) -> dict[str, Objects]:
    """Whatever belongs to one of the nodes. Events stay when a Job is gone, and are known by its name."""
    objects_by_node = {name: Objects() for name in expected}
    jobs_of = {
        names.object_name(run_id, name, attempt): name for name in objects_by_node for attempt in range(1, ATTEMPTS + 1)
    }
    for manifest in nodes:
        if manifest["metadata"]["name"] in objects_by_node:
            objects_by_node[manifest["metadata"]["name"]].node = manifest
    for kind, manifests in (("jobs", jobs), ("pods", pods)):
        for manifest in sorted(manifests, key=lambda one: str(one["metadata"].get("creationTimestamp"))):
            name = (manifest["metadata"].get("annotations") or {}).get(names.NODE_ANNOTATION, "")
            if name in objects_by_node:
                getattr(objects_by_node[name], kind).append(manifest)
    for manifest in sorted(events, key=_last_seen):
        about = str((manifest.get("involvedObject") or {}).get("name", ""))
        owner = jobs_of.get(about) or jobs_of.get(about.rpartition("-")[0])  # a pod is called after its Job
        if owner:
            objects_by_node[owner].events.append(manifest)
    return objects_by_node


def _last_seen(event: Thing) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def parts(objects: Objects, output: Callable[[str, str], Part]) -> list[Part]:
    """Files of the node's archive, most telling first. `output` gives that of a pod's container."""
    evidence_parts = [Part("run/events.txt", "".join(map(_line, objects.events)).encode())] if objects.events else []
    evidence_parts += [_document(f"run/job-{_attempt(job)}.yaml", job) for job in objects.jobs]
    for pod in objects.pods:
        evidence_parts.append(_document(f"run/pod-{_attempt(pod)}-{pod['metadata']['name'][-5:]}.yaml", pod))
    if objects.node is not None:
        evidence_parts.append(_document("cluster/node.yaml", objects.node))
    for pod in objects.pods:
        for container in (name for name, state in reach.containers(pod).items() if state != "waiting"):
            part = output(pod["metadata"]["name"], container)
            part.name = f"run/output/{names.stage_of(container)}-{_attempt(pod)}-{pod['metadata']['name'][-5:]}.log"
            evidence_parts.append(part)
    return evidence_parts


def secrets_in(manifests: Iterable[Thing]) -> set[str]:
    """Values of the environment whose names sound secret, to be hidden in whatever holds them."""
    secrets: set[str] = set()
    for manifest in manifests:
        spec = manifest.get("spec") or {}
        spec = (spec.get("template") or {}).get("spec") or spec
        for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
            for item in container.get("env") or []:
                if item.get("value") and is_secret(str(item["name"])):
                    secrets.add(str(item["value"]))
    return secrets


def _attempt(manifest: Thing) -> str:
    return str((manifest["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL, "1"))


def _line(event: Thing) -> str:
    about = event.get("involvedObject") or {}
    message = " ".join(str(event.get("message") or "").split())
    times = f" (x{event['count']})" if (event.get("count") or 1) > 1 else ""
    return f"{_last_seen(event)} {about.get('kind')} {about.get('name')}: {event.get('reason')}{times}: {message}\n"


def _document(name: str, manifest: Thing) -> Part:
    status = {key: value for key, value in (manifest.get("status") or {}).items() if key not in _LEFT_OUT}
    text = yaml.safe_dump({**manifest, "status": status}, sort_keys=False, allow_unicode=True, width=200)
    return Part(name, text.encode())
