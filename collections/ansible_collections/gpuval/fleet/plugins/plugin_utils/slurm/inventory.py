"""From Slurm's nodes, and the list of those that are expected, to hosts, groups and variables. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..inventory.node_list import InventoryFleet, ListedNode, choose, group_name, listed_variables, sku_name
from . import nodes

#: Variables of every host: Ansible itself runs nothing on a node of Slurm.
PLACED = {"ansible_connection": "local", "gpuval_placement": "slurm", "gpuval_runtime": "host"}
#: The host variable that holds what Slurm says of the node.
VARIABLE = "slurm_node"


def fleet(
    descriptions: Iterable[Mapping[str, Any]],
    expected: Sequence[ListedNode] | None = None,
    *,
    selected: frozenset[str] | set[str] | None = None,
    skus: Mapping[str, Mapping[str, str]] | None = None,
) -> InventoryFleet:
    """The hosts of an inventory, in the order of the list, or by name without one. `descriptions` are descriptions."""
    by_name = {str(description["name"]): description for description in descriptions}
    choice = choose(by_name, expected, selected)
    most: dict[str, int] = {}
    for name in choice.names:
        if name in by_name:  # a node that lost a GPU is held against its like
            model, count = nodes.gpus(by_name[name])
            most[model] = max(most.get(model, 0), count)
    hosts = []
    group_variables: dict[str, dict[str, Any]] = {}
    for name in choice.names:
        description, node = by_name.get(name), choice.listed.get(name)
        variables = listed_variables(node)
        groups = list(node.groups) if node else []
        if description is None:
            variables[VARIABLE] = {"exists": False, "reason": f"Slurm has no node {name}"}
        else:
            variables[VARIABLE] = {"exists": True, **description}
            groups += [group_name("partition", partition) for partition in description["partitions"]]
            groups += [group_name("feature", feature) for feature in description["features"]]
            model, count = nodes.gpus(description)
            sku = sku_of(description, skus or {})
            if sku != "auto" and "gpuval_sku" not in variables:
                groups.append(group_name("sku", sku))
                group_variables.setdefault(groups[-1], {})["gpuval_sku"] = sku
            if count:
                groups.append(group_name("gres", model or "gpu"))
                group_variables.setdefault(groups[-1], {})["gpuval_gpu_count"] = most[model]
        hosts.append(ListedNode(name, tuple(dict.fromkeys(groups)), {**variables, **PLACED}))
    return InventoryFleet(tuple(hosts), group_variables, choice.missing, choice.beyond)


def sku_of(description: Mapping[str, Any], rules: Mapping[str, Mapping[str, str]]) -> str:
    """The SKU of a node: the first of `rules` of which all patterns match, else made from the type of its gres."""
    model, count = nodes.gpus(description)
    values = {"gres": [description["gres"]], "type": [model] if count else []}
    values |= {"partition": description["partitions"], "feature": description["features"]}
    for sku, patterns in rules.items():
        lowered = {key: [value.lower() for value in values.get(key, [])] for key in patterns}
        if patterns and all(fnmatch.filter(lowered[key], pattern.lower()) for key, pattern in patterns.items()):
            return sku
    return sku_name(model)
