"""From the nodes that a cluster knows, and the list of those expected, to hosts: what inventories share. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.text import natural_order
from .node_list import ListedNode


@dataclass(frozen=True)
class InventoryFleet:
    """`group_variables` by group: weaker than any `group_vars` file, so that expectations can be set there."""

    hosts: tuple[ListedNode, ...]
    group_variables: dict[str, dict[str, Any]]
    missing: tuple[str, ...] = ()
    #: Nodes that were found, but are not expected, and so no hosts.
    beyond: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """Names of the hosts in order, the listed ones by name, and the names that only one side has."""

    names: tuple[str, ...]
    listed: dict[str, ListedNode]
    missing: tuple[str, ...]
    beyond: tuple[str, ...]


def choose(
    nodes: Mapping[str, Any], expected: Sequence[ListedNode] | None, more: frozenset[str] | set[str] | None = None
) -> Choice:
    """With a list, its nodes are the hosts, whether they are known or not, and of the rest only those in `more`."""
    listed = {node.name: node for node in expected or ()}
    unlisted = [name for name in sorted(nodes, key=natural_order) if name not in listed]
    joining = unlisted if expected is None else [name for name in unlisted if name in (more or ())]
    missing = tuple(name for name in listed if name not in nodes)
    beyond = () if expected is None else tuple(name for name in unlisted if name not in joining)
    return Choice((*listed, *joining), listed, missing, beyond)


def listed_variables(node: ListedNode | None) -> dict[str, Any]:
    """What the list says of a node, but for how SSH would reach it."""
    variables = node.variables if node else {}
    return {key: value for key, value in variables.items() if not key.startswith("ansible_")}


def sku_name(model: str) -> str:
    """The SKU by the name that a GPU model has in a label or a gres: `nvidia_h100_80gb_hbm3` is `h100-80gb-hbm3`."""
    name = re.sub(r"-(?:SHARED|MIG-.*)$", "", model.replace("_", "-"), flags=re.IGNORECASE).lower()
    for prefix in ("nvidia-", "amd-instinct-", "amd-"):
        name = name.removeprefix(prefix)
    return name or "auto"
