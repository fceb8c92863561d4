"""From the nodes of a cluster, and the list of those that are expected, to hosts, groups and variables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..inventory.node_list import InventoryFleet, ListedNode, choose, group_name, listed_variables
from ..runs import labels
from . import nodes
from .pod_settings import PodSettings

#: Variables of every host: Ansible itself runs nothing on a node of a cluster.
PLACED = {"ansible_connection": "local", "gpuval_placement": "kubernetes"}
#: The host variable that holds what the cluster says of the node.
VARIABLE = "kubernetes_node"
#: Labels that make groups: pools of the managed services, and zones.
LABEL_GROUPS = {
    "cloud.google.com/gke-nodepool": "pool",
    "doks.digitalocean.com/node-pool": "pool",
    "eks.amazonaws.com/nodegroup": "pool",
    "karpenter.sh/nodepool": "pool",
    "kubernetes.azure.com/agentpool": "pool",
    "topology.kubernetes.io/zone": "zone",
}


def fleet(
    descriptions: Iterable[Mapping[str, Any]],
    expected: Sequence[ListedNode] | None = None,
    *,
    selected: frozenset[str] | set[str] | None = None,
    skus: Mapping[str, Mapping[str, str]] | None = None,
    label_groups: Mapping[str, str] | None = None,
) -> InventoryFleet:
    """The hosts of an inventory, in the order of the list, or by name without one.

    `descriptions` are those of `nodes.describe`. With a list, its nodes are the hosts, whether they were found or
    not, and of the rest only those whose names are in `selected`.
    """
    description_by_name = {str(description["name"]): description for description in descriptions}
    choice = choose(description_by_name, expected, selected)
    chosen = {name: description_by_name[name] for name in choice.names if name in description_by_name}
    variables_of = {name: listed_variables(node) for name, node in choice.listed.items()}
    ordered = {name: str(values["gpuval_sku"]) for name, values in variables_of.items() if "gpuval_sku" in values}
    sku = {name: ordered.get(name) or nodes.sku_of(description, skus or {}) for name, description in chosen.items()}
    counted = _counted(chosen, sku)
    hosts: list[Any] = []
    group_variables: dict[str, dict[str, Any]] = {}
    for name in choice.names:
        description, node = chosen.get(name), choice.listed.get(name)
        groups, variables = list(node.groups) if node else [], variables_of.get(name, {})
        if description is None:
            variables[VARIABLE] = {"exists": False, "reason": f"the cluster has no node {name}"}
        else:
            variables[VARIABLE] = {"exists": True, **description}
            if sku[name] != "auto" and name not in ordered:
                group = group_name("sku", sku[name])
                groups.append(group)
                group_variables.setdefault(group, {})["gpuval_sku"] = sku[name]
            prefix_by_label = LABEL_GROUPS if label_groups is None else label_groups
            groups += [
                group_name(prefix, value)
                for label, prefix in prefix_by_label.items()
                if (value := description["labels"].get(label))
            ]
            groups += [group_name("type", description["instance_type"])] if description["instance_type"] else []
            own_labels = labels.of_cluster(description["labels"], prefix_by_label)
            if own_labels:
                variables["kubernetes_labels"] = own_labels
            group, count = counted.get(name, ("", 0))
            if group:
                groups.append(group)
                group_variables.setdefault(group, {})["gpuval_gpu_count"] = count
        hosts.append(ListedNode(name, tuple(dict.fromkeys(groups)), {**variables, **PLACED}))
    return InventoryFleet(tuple(hosts), group_variables, choice.missing, choice.beyond)


def _counted(chosen: Mapping[str, Mapping[str, Any]], sku: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """For each node with GPUs, the group of its like and the most GPUs that one of them has.

    A node that lost a GPU says itself that it has seven; that it was ordered with eight its neighbours know. Its like
    are the nodes of its instance type, or where that says little (k3s has one for all) of its SKU, or of its vendor.
    """
    like: dict[str, str] = {}
    skus_of_type: dict[str, set[str]] = {}
    for name, description in chosen.items():
        skus_of_type.setdefault(description["instance_type"], set()).add(sku[name])
    most: dict[str, int] = {}
    for name, description in chosen.items():
        if sku[name] == "cpu":
            continue
        have = nodes.gpus(description, PodSettings(), sku[name])
        instance = description["instance_type"]
        if not have.resource:
            continue
        if instance and len(skus_of_type[instance]) == 1:
            like[name] = group_name("type", instance)
        elif sku[name] != "auto":
            like[name] = group_name("sku", sku[name])
        else:
            like[name] = group_name("gpu", have.vendor)
        most[like[name]] = max(most.get(like[name], 0), have.capacity // have.replicas)
    return {name: (group, most[group]) for name, group in like.items() if most[group]}
