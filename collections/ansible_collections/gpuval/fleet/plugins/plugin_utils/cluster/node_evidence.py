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
    found = {name: Objects() for name in expected}
    jobs_of = {names.object_name(run_id, name, attempt): name for name in found for attempt in range(1, ATTEMPTS + 1)}
    for thing in nodes:
        if thing["metadata"]["name"] in found:
            found[thing["metadata"]["name"]].node = thing
    for kind, things in (("jobs", jobs), ("pods", pods)):
        for thing in sorted(things, key=lambda one: str(one["metadata"].get("creationTimestamp"))):
            name = (thing["metadata"].get("annotations") or {}).get(names.NODE_ANNOTATION, "")
            if name in found:
                getattr(found[name], kind).append(thing)
    for thing in sorted(events, key=_last_seen):
        about = str((thing.get("involvedObject") or {}).get("name", ""))
        owner = jobs_of.get(about) or jobs_of.get(about.rpartition("-")[0])  # a pod is called after its Job
        if owner:
            found[owner].events.append(thing)
    return found


def _last_seen(event: Thing) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def parts(objects: Objects, output: Callable[[str, str], Part]) -> list[Part]:
    """Files of the node's archive, most telling first. `output` gives that of a pod's container."""
    found = [Part("run/events.txt", "".join(map(_line, objects.events)).encode())] if objects.events else []
    found += [_document(f"run/job-{_attempt(job)}.yaml", job) for job in objects.jobs]
    for pod in objects.pods:
        found.append(_document(f"run/pod-{_attempt(pod)}-{pod['metadata']['name'][-5:]}.yaml", pod))
    if objects.node is not None:
        found.append(_document("cluster/node.yaml", objects.node))
    for pod in objects.pods:
        for container in (name for name, state in reach.containers(pod).items() if state != "waiting"):
            part = output(pod["metadata"]["name"], container)
            part.name = f"run/output/{names.stage_of(container)}-{_attempt(pod)}-{pod['metadata']['name'][-5:]}.log"
            found.append(part)
    return found


def secrets_in(things: Iterable[Thing]) -> set[str]:
    """Values of the environment whose names sound secret, to be hidden in whatever holds them."""
    found: set[str] = set()
    for thing in things:
        spec = thing.get("spec") or {}
        spec = (spec.get("template") or {}).get("spec") or spec
        for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
            for item in container.get("env") or []:
                if item.get("value") and is_secret(str(item["name"])):
                    found.add(str(item["value"]))
    return found


def _attempt(thing: Thing) -> str:
    return str((thing["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL, "1"))


def _line(event: Thing) -> str:
    about = event.get("involvedObject") or {}
    message = " ".join(str(event.get("message") or "").split())
    times = f" (x{event['count']})" if (event.get("count") or 1) > 1 else ""
    return f"{_last_seen(event)} {about.get('kind')} {about.get('name')}: {event.get('reason')}{times}: {message}\n"


def _document(name: str, thing: Thing) -> Part:
    status = {key: value for key, value in (thing.get("status") or {}).items() if key not in _LEFT_OUT}
    text = yaml.safe_dump({**thing, "status": status}, sort_keys=False, allow_unicode=True, width=200)
    return Part(name, text.encode())
