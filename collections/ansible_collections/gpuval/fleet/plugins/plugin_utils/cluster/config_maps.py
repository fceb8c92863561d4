"""ConfigMaps with programs, plans and members of gangs, as few as possible for all pods of a run. Pure."""

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..runs import plans
from . import names
from .kinds import Manifest
from .pod_settings import PodSettingsError

Owner = TypeVar("Owner")

#: Maximum bytes of JSON texts, and of programs, in a ConfigMap or Secret, which may hold 1 MiB with JSON escaped.
MOST_BYTES, MOST_PROGRAM_BYTES = 900_000, 1_000_000


@dataclass(frozen=True)
class PlanPlace:
    """The ConfigMap and key that hold a plan, or the list of members of a gang."""

    config_map: str
    key: str


def code_config_map(run_id: str, namespace: str, archives: Mapping[str, bytes]) -> Manifest:
    """The ConfigMap of a run's programs: `archives`, zip files `runner` and `workloads`. Its name depends on the
    content, which another version of gpuval changes."""
    size = sum(map(len, archives.values()))
    if size > MOST_PROGRAM_BYTES:
        raise PodSettingsError(f"runner and workloads are {size} bytes, and a ConfigMap holds 1 MiB")
    content = {"runner.pyz": encoded(archives["runner"]), "workloads.zip": encoded(archives["workloads"])}
    name = names.run_name(run_id, f"code-{names.digest(''.join(content.values()), 8)}")
    return names.core_object("ConfigMap", names.metadata(run_id, namespace, name), immutable=True, binaryData=content)


def plan_config_maps(
    run_id: str, namespace: str, pod_plans: Iterable[Mapping[str, Any]]
) -> tuple[list[Manifest], dict[tuple[str, int], PlanPlace]]:
    """Plans of many nodes in as few ConfigMaps as possible, without members of gangs (:func:`gang_config_maps`), and
    the ConfigMap and key of each plan by (node, attempt). Raises PodSettingsError for too large a plan."""
    documents = []
    for plan in pod_plans:
        owner = plan["node"], plan["attempt"]
        documents.append((owner, plan_key(*owner), plans.without_members(plan), f"the plan of {plan['node']}"))
    return _in_config_maps(run_id, namespace, "plans", documents)


def plan_key(node: str, attempt: int) -> str:
    """The key of a node's plan in its ConfigMap."""
    return f"{names.label_value(node)}.{attempt}.json"


def gang_config_maps(
    run_id: str, namespace: str, shared: Mapping[str, Mapping[str, Any]]
) -> tuple[list[Manifest], dict[str, PlanPlace]]:
    """Gang documents (`shared`, by gang name) in as few ConfigMaps as possible, and the ConfigMap and key of each.
    Raises PodSettingsError for too large a gang: 2,000 members always fit, 6,000 with usual names do not."""
    documents = []
    for name, gang in shared.items():
        label = f"the {len(gang['members'])} members of gang {name} (gpuval_gang_size makes gangs smaller)"
        documents.append((name, f"{names.label_value(name)}.json", gang, label))
    return _in_config_maps(run_id, namespace, "gangs", documents)


def _in_config_maps(
    run_id: str, namespace: str, content_name: str, documents: Iterable[tuple[Owner, str, Mapping[str, Any], str]]
) -> tuple[list[Manifest], dict[Owner, PlanPlace]]:
    """Pack documents into ConfigMaps. Returns these, and by owner the ConfigMap and key of each document. `documents`:
    (owner, key, document, name in messages); `content_name`: word in the names of the ConfigMaps."""
    maps: list[Manifest] = []
    places: dict[Owner, PlanPlace] = {}
    batches: list[list[tuple[Owner, str, str]]] = [[]]
    size = 0
    for owner, key, document, label in documents:
        text = compact_json(document)
        length = len(text.encode()) + len(key)
        if length > MOST_BYTES:
            raise PodSettingsError(f"{label}: {length} bytes, and a ConfigMap holds 1 MiB")
        if size + length > MOST_BYTES:
            batches.append([])
            size = 0
        batches[-1].append((owner, key, text))
        size += length
    for batch in filter(None, batches):
        data = {key: text for _owner, key, text in batch}
        content = "\n".join(f"{key} {text}" for key, text in sorted(data.items()))
        name = names.run_name(run_id, f"{content_name}-{names.digest(content, 10)}")
        maps.append(names.core_object("ConfigMap", names.metadata(run_id, namespace, name), immutable=True, data=data))
        places.update({owner: PlanPlace(name, key) for owner, key, _text in batch})
    return maps, places


def compact_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
