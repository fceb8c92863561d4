"""Node objects by their names, without a list of the whole cluster: it may have thousands of other nodes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import names
from .api import Cluster

#: Characters of names in one selector: proxies accept URLs of 8 KiB.
MAX_SELECTOR = 6000
#: Maximum lookups of single nodes, whose hostname label is not their name; beyond, one list of all nodes costs less.
MAX_SINGLE_LOOKUPS = 10


def hostname_selectors(hostnames: Iterable[str]) -> Iterator[str]:
    """Label selectors that together choose the nodes with these labels `kubernetes.io/hostname`."""
    chosen: list[str] = []
    for hostname in sorted({name for name in hostnames if names.is_label_value(name)}):
        if chosen and sum(map(len, chosen)) + 3 * len(chosen) + len(hostname) > MAX_SELECTOR:
            yield _selector(chosen)
            chosen = []
        chosen.append(hostname)
    if chosen:
        yield _selector(chosen)


def list_named(cluster: Cluster, node_names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """The Node objects with these names, by name. They are looked up by hostname label, which is nearly always the
    name, else by name. Raises ``ClusterError``."""
    requested = set(node_names)
    listed = [node for selector in hostname_selectors(requested) for node in cluster.list("Node", selector)[0]]
    missing = sorted(requested - {node["metadata"]["name"] for node in listed})
    if len(missing) > MAX_SINGLE_LOOKUPS:
        listed = cluster.list("Node")[0]
    else:
        listed += [node for name in missing for node in cluster.list("Node", fields=f"metadata.name={name}")[0]]
    return {name: node for node in listed if (name := node["metadata"]["name"]) in requested}


def _selector(hostnames: Iterable[str]) -> str:
    return f"{names.HOSTNAME_LABEL} in ({','.join(hostnames)})"
