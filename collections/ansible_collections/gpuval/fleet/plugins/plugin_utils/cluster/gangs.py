"""What the pods of a round of gangs have beside those of a node alone: names by which they find each other, keys. Pure.

A round is a run of its own below its run, and so are its objects; their labels name both.
"""

from __future__ import annotations

import base64
import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..gang.document import FOLDER, SEARCH
from ..runs.folder import RunFolder
from . import names
from .pod_settings import PodSettings, PodSettingsError, for_gang

Manifest = dict[str, Any]

#: Where in what a pod is given the keys of its round are, as the runner has it.
KEYS = "ssh"
#: By name in the Secret, with the mode in which ssh takes it.
KEY_FILES = {"token": 0o400, "id_ed25519": 0o400, "id_ed25519.pub": 0o444}


@dataclass(frozen=True)
class GangRound:
    """A round of gangs: the id of the run that it is part of, and its name in it."""

    parent: str
    name: str

    @property
    def is_of_a_search(self) -> bool:
        return re.fullmatch(rf"{SEARCH}-\d+", self.name) is not None


def round_of(folder: RunFolder) -> GangRound | None:
    """The round that a folder `<run>/gangs/<round>` is of; None for a run that is none."""
    parent = RunFolder(folder.path.parent.parent)
    if folder.path.parent.name != FOLDER or not parent.run_file.exists():
        return None
    return GangRound(parent.read_run()["run_id"], folder.path.name)


def service_name(run_id: str) -> str:
    """Of the headless Service of a round."""
    return names.run_name(run_id, "gangs")


def keys_name(run_id: str) -> str:
    """Of the Secret with the keys of a round."""
    return names.run_name(run_id, "keys")


def address(run_id: str, node: str, namespace: str) -> str:
    """The name by which the others of a round reach a node's pod; the pods' resolver adds the cluster's domain."""
    return f"{names.host_name(node)}.{service_name(run_id)}.{namespace}.svc"


def member_address(
    run_id: str, node: str, namespace: str, settings: PodSettings, addresses: Mapping[str, str] | None = None
) -> str:
    """As run.json of a round names a member: its pod, or the node itself where its pods have the node's network.

    `addresses` are those of the node by type, as `kubernetes_node.addresses` has them. Raises PodSettingsError.
    """
    if not for_gang(settings).host_network:
        return address(run_id, node, namespace)
    ip = (addresses or {}).get("InternalIP")
    if not ip:
        raise PodSettingsError(f"{node}: its Node object names no InternalIP, at which others reach its host network")
    return ip


def service(run_id: str, namespace: str, port: int) -> Manifest:
    """The headless Service of a round: it gives each of its pods a name, also before all of them are ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": names.run_labels(run_id),
        # Pods reach each other at any; a Service that names none is none for some name servers.
        "ports": [{"name": "rendezvous", "port": port}],
    }
    return names.core_object("Service", names.metadata(run_id, namespace, service_name(run_id)), spec=spec)


def keys_secret(run_id: str, namespace: str, keys: Mapping[str, str]) -> Manifest:
    """The keys of a round, which are those of each of its members. Raises PodSettingsError where one is missing."""
    missing = sorted(KEY_FILES.keys() - keys.keys())
    if missing:
        raise PodSettingsError(f"the round {run_id} has no {', '.join(missing)}: its keys were not made, or forgotten")
    data = {name: base64.b64encode(keys[name].encode()).decode("ascii") for name in KEY_FILES}
    metadata = names.metadata(run_id, namespace, keys_name(run_id))
    return names.core_object("Secret", metadata, type="Opaque", immutable=True, data=data)


def keys_source(run_id: str) -> Manifest:
    """The keys as a source of what a pod is given."""
    items = [{"key": name, "path": f"{KEYS}/{name}", "mode": mode} for name, mode in KEY_FILES.items()]
    return {"secret": {"name": keys_name(run_id), "items": items}}


def labelled(manifest: Mapping[str, Any], gang_round: GangRound | None) -> Manifest:
    """An object, and the pods it makes, with the labels of the round that it is part of; of none it stays as it is."""
    if gang_round is None:
        return dict(manifest)
    result = copy.deepcopy(dict(manifest))
    values = {names.PARENT_LABEL: gang_round.parent, names.ROUND_LABEL: gang_round.name}
    for labelled_object in (result, result.get("spec", {}).get("template", {})):
        if metadata := labelled_object.get("metadata"):
            labels = {label: names.label_value(text) for label, text in values.items()}
            metadata["labels"] = {**metadata.get("labels", {}), **labels}
    return result
