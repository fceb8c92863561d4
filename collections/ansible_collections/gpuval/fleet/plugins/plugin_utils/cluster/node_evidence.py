"""Collects a cluster's evidence of a run on each node for the logs bundle: objects and the output of containers."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import yaml

from ...module_utils.host_evidence import Part, pack_parts
from ...module_utils.redaction import SecretRedactor, is_secret
from ..core.escape import one_line
from ..watch import reach
from ..watch.scheduler import KeepArchive, KeepState
from . import names
from .api import Cluster, ClusterError
from .named_nodes import list_named

Thing = Mapping[str, Any]
#: Fields left out of a Node's status: a node lists hundreds of images.
_LEFT_OUT = ("images",)
ATTEMPTS = 9
WORKERS = 8
OUTPUT_LINES = 20_000


@dataclass
class NodeObjects:
    """The cluster's objects about one node, in the order of their creation."""

    node: Thing | None = None
    jobs: list[Thing] = field(default_factory=list)
    pods: list[Thing] = field(default_factory=list)
    events: list[Thing] = field(default_factory=list)


def by_node(
    run_id: str,
    expected: Iterable[str],
    nodes: Mapping[str, Thing],
    jobs: Iterable[Thing],
    pods: Iterable[Thing],
    events: Iterable[Thing],
) -> dict[str, NodeObjects]:
    """{node: its objects} for the `expected` nodes. `nodes`: Node objects by name. Events of a Job that is gone belong
    to the node in the Job's name."""
    objects_by_node = {name: NodeObjects(nodes.get(name)) for name in expected}
    jobs_of = {
        names.object_name(run_id, name, attempt): name for name in objects_by_node for attempt in range(1, ATTEMPTS + 1)
    }
    for kind, manifests in (("jobs", jobs), ("pods", pods)):
        for manifest in sorted(manifests, key=lambda item: str(item["metadata"].get("creationTimestamp"))):
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


def parts(objects: NodeObjects, output: Callable[[str, str], Part]) -> list[Part]:
    """Files of a node's evidence archive, most useful first. `output(pod, container)` reads a container's output."""
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
    """Values of environment variables with secret-sounding names in these manifests, to redact in all evidence."""
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


def gather(
    cluster: Cluster,
    run_id: str,
    nodes: Sequence[str],
    secrets: Collection[str],
    archive: KeepArchive,
    state: KeepState,
    limit_bytes: int,
    deadline: float,
) -> None:
    """Write each node's evidence archive by `archive`, or by `state` why the node has none. `limit_bytes`: of an
    archive, and of a container's output. After `deadline` (monotonic) no output is read."""
    selector = names.run_selector(run_id)
    jobs, pods = (cluster.list(kind, selector, untrimmed=True)[0] for kind in ("Job", "Pod"))
    events = cluster.list("Event", fields="involvedObject.kind!=Node")[0]
    objects = by_node(run_id, nodes, list_named(cluster, nodes), jobs, pods, events)
    redact = SecretRedactor({*secrets, *secrets_in([*jobs, *pods])})

    def output(pod: str, container: str) -> Part:
        if time.monotonic() >= deadline:
            return Part("", note="not read: the time limit was reached")
        try:
            text = cluster.log(pod, container, limit_bytes=limit_bytes, tail_lines=OUTPUT_LINES)
        except ClusterError as error:
            return Part("", note=f"cannot be read: {one_line(str(error), 300)}")
        return Part("", text.encode())

    def gather_node(node: str) -> None:
        own = objects[node]
        if own.node is None and not (own.jobs or own.events):
            state(node, "missing", "the cluster has neither the node nor anything of this run on it")
            return
        data, notes = pack_parts(parts(own, output), redact, limit_bytes, packed_at=time.time())
        archive(node, data, "" if own.jobs else "the cluster no longer has a Job of this run for the node", notes)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(gather_node, nodes))
