"""Where the parts of each group of nodes lay when a run was judged before, kept with the run. Pure.

A run that is judged again with less evidence, and one of a few nodes of an earlier run (``--limit``), are held against
the greater group: a node that was slow beside forty is not excused by being alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import peer_statistics
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.agreement import Group
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.criteria import Check


@dataclass(frozen=True)
class Crowd:
    """Those that a node is held against: how many nodes, what they share, and where their parts lie.

    ``parts`` has the whole crowd under EVERY; with ``same_part`` those of each part under its name. ``earlier`` is one
    that was judged before.
    """

    nodes: int
    kind: str
    parts: Mapping[str, peer_statistics.Peers | None]
    earlier: bool = False

    def deviations(self, check: Check) -> float:
        """How many of its deviations accuse a part; parts of a node differ on their own, and are enough of them."""
        return check.deviations if check.relative_to else peer_statistics.widened(check.deviations, self.nodes)

    def beside(self, part: str) -> peer_statistics.Peers | None:
        return self.parts[EVERY] if EVERY in self.parts else self.parts.get(part)


EVERY = ""
#: Check, metric, unit, relative_to and same_part: figures of another meaning are not compared.
_Meaning = tuple[str, str, str, str, bool]
#: Meaning, group, and software; None is all software.
_Key = tuple[_Meaning, Group, Group | None]


@dataclass
class Stood:
    """By check, group and software the greatest group that was seen."""

    crowds: dict[_Key, Crowd] = field(default_factory=dict)

    @classmethod
    def of(cls, documents: Iterable[Mapping[str, Any]]) -> Stood:
        """From the ``standings`` of a document of ``gpuval.judging/1``."""
        found = cls()
        for one in documents:
            meaning = (one["check"], one["metric"], one["unit"], one["relative_to"], one["same_part"])
            alike = None if one["alike"] is None else tuple(one["alike"])
            parts = {part: peer_statistics.Peers(*figures) for part, figures in one["parts"].items()}
            found.crowds[meaning, tuple(one["group"]), alike] = Crowd(one["nodes"], one["kind"], parts, earlier=True)
        return found

    def documents(self) -> list[dict[str, Any]]:
        return [
            {
                "check": check, "metric": metric, "unit": unit, "relative_to": relative_to, "same_part": same_part,
                "group": list(group), "alike": None if alike is None else list(alike), "nodes": crowd.nodes,
                "kind": crowd.kind,
                "parts": {
                    part: [one.median, one.deviation, one.count] for part, one in crowd.parts.items() if one is not None
                },
            }
            for ((check, metric, unit, relative_to, same_part), group, alike), crowd in self.crowds.items()
        ]  # fmt: skip

    def widest(self, check: Check, group: Group, alike: Group | None, now: Crowd) -> Crowd:
        """The crowd of now, or that of before where it had more nodes; the one that is taken is kept."""
        key = (_meaning(check), group, alike)
        before = self.crowds.get(key)
        if before is not None and before.nodes > now.nodes:
            return before
        if now.nodes > check.min_peers:
            self.crowds[key] = now
        return now

    def groups(self, check: Check) -> dict[Group, int]:
        """By group how many nodes it had."""
        meaning = _meaning(check)
        return {
            group: crowd.nodes for (of, group, alike), crowd in self.crowds.items() if of == meaning and alike is None
        }


def _meaning(check: Check) -> _Meaning:
    return check.name, check.metric, check.unit or "", check.relative_to or "", check.same_part
