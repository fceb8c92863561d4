"""Where nodes are in the cluster: racks, switches, rails. Any of it may be unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...core.text import natural_order

#: Levels of topology, outermost first: the one place to add a level. Each is also the inventory label that declares it.
LEVELS = ("rack", "switch", "rail")


@dataclass(frozen=True)
class Topology:
    """`places[node][level]` names the group of that level that holds the node; a level may be missing."""

    places: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of_labels(cls, labels: Mapping[str, Mapping[str, object]]) -> Topology:
        """From the labels of each node; labels that are not a level are ignored."""
        levels = {node: {level: str(own[level]) for level in LEVELS if own.get(level)} for node, own in labels.items()}
        return cls({node: groups for node, groups in levels.items() if groups})

    def place(self, node: str, level: str) -> str:
        return self.places.get(node, {}).get(level, "")

    def path(self, node: str) -> tuple[str, ...]:
        """The node's group at every level, outermost first; empty where unknown."""
        return tuple(self.place(node, level) for level in LEVELS)

    def line(self, nodes: Iterable[str]) -> list[str]:
        """Nodes in the order of the gang's ring: neighbours share as many levels as possible."""
        return sorted(nodes, key=lambda node: (*map(natural_order, self.path(node)), natural_order(node)))

    def groups(self, level: str, nodes: Iterable[str]) -> dict[str, list[str]]:
        """Groups of one level with their nodes; a node with an unknown group is in none."""
        by_name: dict[str, list[str]] = {}
        for node in nodes:
            name = self.place(node, level)
            if name:
                by_name.setdefault(name, []).append(node)
        return dict(sorted(by_name.items(), key=lambda item: natural_order(item[0])))
