"""Reads the labels of nodes: short texts on their location (rack, row, power), by which the analysis groups them."""

import re
from collections.abc import Mapping
from typing import Any

from ..core.errors import SettingError
from ..core.escape import one_line

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
MAX_TEXT = 120
MAX_LABELS = 32
#: Kubernetes' label for the NVLink domain of a node: ClusterUUID.CliqueId.
CLIQUE_LABEL = "nvidia.com/gpu.clique"


def of_host(hostvars: Mapping[str, Any]) -> dict[str, str]:
    """Labels of a host from its variables: `gpuval_labels` override those of its cluster, which override the `rack` of
    a list of nodes. Raises SettingError."""
    rack = hostvars.get("rack")
    has_rack = isinstance(rack, (str, int)) and not isinstance(rack, bool)
    labels = declared({"rack": str(rack)}) if has_rack else {}
    cluster = hostvars.get("kubernetes_labels")
    return {**labels, **(declared(cluster) if cluster else {}), **declared(hostvars.get("gpuval_labels"))}


def declared(value: Any) -> dict[str, str]:
    """Check ``gpuval_labels``. Returns the labels for run.json, without those that are empty. Raises SettingError."""
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise SettingError("gpuval_labels is a dictionary of short texts, such as {rack: r12, row: b}")
    labels = {}
    for key, text in value.items():
        if not NAME.fullmatch(str(key)):
            raise SettingError(f"gpuval_labels: the name {str(key)[:80]!r} is not letters, digits, '.', '_', '-', '/'")
        if isinstance(text, (bool, float, int)):  # 010 is 8 to YAML, 1:20 is 80
            raise SettingError(f"gpuval_labels: {key} is {text!r} to YAML, not a text: write it in quotes")
        if text is not None and not isinstance(text, str):
            raise SettingError(f"gpuval_labels: {key} is no text")
        line = "" if text is None else one_line(str(text), MAX_TEXT)
        if line:
            labels[str(key)] = line
    if len(labels) > MAX_LABELS:
        raise SettingError(f"gpuval_labels has {len(labels)} labels; {MAX_LABELS} are possible")
    return labels


def rack_of(labels: Mapping[str, str]) -> str:
    """Value of the label `rack`, else of one that ends so (`topology.example.com/rack`); empty without one."""
    return labels.get("rack") or next((labels[name] for name in sorted(labels) if name.endswith("rack")), "")


def of_cluster(labels: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Labels of a Kubernetes node under gpuval's names. ``names``: {label on the cluster: gpuval's name}, of which the
    first counts. The label of the NVLink domain keeps its name."""
    labels_found: dict[str, str] = {}
    for label, name in {CLIQUE_LABEL: CLIQUE_LABEL, **names}.items():
        ours = re.sub(r"[^A-Za-z0-9._/-]+", "_", str(name)).strip("._/-")[:63]
        if labels.get(label) and ours and len(labels_found) < MAX_LABELS:
            labels_found.setdefault(ours, one_line(labels[label], MAX_TEXT))
    return labels_found
