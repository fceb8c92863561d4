"""Where nodes stand: racks, rails, switches. All of it may be unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

#: What nodes may have in common, in the order in which they are put in line.
KINDS = ("rack", "switch", "rail")


@dataclass(frozen=True)
class Topology:
    """`places[node][kind]` names the group of that kind that a node is in; a kind may be left out."""

    places: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, places: Mapping[str, Mapping[str, object]]) -> Topology:
        """Raises ValueError for a kind that is not known."""
        unknown = {kind for groups in places.values() for kind in groups} - set(KINDS)
        if unknown:
            raise ValueError(f"{', '.join(sorted(unknown))}: a node has {', '.join(KINDS)} and nothing else")
        kept = {node: {kind: str(name) for kind, name in groups.items() if name} for node, groups in places.items()}
        return cls({node: groups for node, groups in kept.items() if groups})

    def place(self, node: str, kind: str) -> str:
        return self.places.get(node, {}).get(kind, "")

    def line(self, nodes: Iterable[str]) -> list[str]:
        """Nodes in the order in which a ring goes through them: neighbours share what they can."""
        return sorted(nodes, key=lambda node: (*(natural(self.place(node, kind)) for kind in KINDS), natural(node)))

    def groups(self, kind: str, nodes: Iterable[str]) -> dict[str, list[str]]:
        """The groups of one kind with their nodes, without nodes whose group is not known."""
        found: dict[str, list[str]] = {}
        for node in nodes:
            name = self.place(node, kind)
            if name:
                found.setdefault(name, []).append(node)
        return dict(sorted(found.items(), key=lambda item: natural(item[0])))


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A key by which node-2 stands before node-10."""
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in re.findall(r"\d+|\D+", text))
