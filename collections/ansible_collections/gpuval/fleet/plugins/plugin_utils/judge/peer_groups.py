"""The groups of nodes that parts are compared with, now and when a run was judged before.

A run that is judged again with less evidence, and one of a few nodes of an earlier run (``--limit``), are compared with
the larger group: a node that was slow beside forty is not excused by being alone.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import peer_statistics
from .check import Check
from .peer_statistics import MEDIAN_ERROR, Peers

if TYPE_CHECKING:
    from .peer_samples import PeerSample

#: What nodes must share to be compared.
GroupKey = tuple[str, ...]
#: The key of all parts together, in ``PeerGroup.parts``.
ALL_PARTS = ""
#: Check, metric, unit, relative_to and same_part: figures of another meaning are not compared.
_Meaning = tuple[str, str, str, str, bool]
#: Meaning, group, and software; None is all software.
_Key = tuple[_Meaning, GroupKey, "GroupKey | None"]


@dataclass(frozen=True)
class PeerGroup:
    """How many nodes, what they share (``kind``, in words), and the statistics of their parts.

    ``parts`` has those of all under ALL_PARTS; with ``same_part`` those of each part under its name. ``earlier``: the
    group is that of an earlier judgement.
    """

    nodes: int
    kind: str
    parts: Mapping[str, Peers | None]
    earlier: bool = False

    @classmethod
    def of(cls, check: Check, samples: Sequence[PeerSample], kind: str) -> PeerGroup:
        spreads = [spread for sample in samples for spread in sample.spreads]
        floor = MEDIAN_ERROR * statistics.median(spreads) / check.repeats**0.5 if spreads else 0.0
        values: dict[str, list[float]] = defaultdict(list)
        for sample in samples:
            for part, _, compared in sample.compared(check):
                values[part if check.same_part else ALL_PARTS].append(compared)
        margin = least_margin(check)
        group = cls(len(samples), " ".join(kind.split()), {})
        # Of a few healthy nodes the widest would be left out; of more, a third that is bad must be.
        few = 0 < group.nodes < peer_statistics.FEW_TO_LEAVE_OUT
        deviations = group.deviations(check) if few else check.deviations
        parts = {
            part: Peers.without_the_far(figures, margin, deviations, floor_ratio=floor)
            for part, figures in values.items()
        }
        return replace(group, parts=as_wide_as_all(parts, values, margin, deviations) if check.same_part else parts)

    def deviations(self, check: Check) -> float:
        """How many of its deviations make an outlier; parts of a node differ on their own, and are many."""
        return check.deviations if check.relative_to else peer_statistics.widened(check.deviations, self.nodes)

    def peers_of(self, part: str) -> Peers | None:
        return self.parts[ALL_PARTS] if ALL_PARTS in self.parts else self.parts.get(part)


def least_margin(check: Check) -> float:
    return min(most for most in (check.max_below, check.max_above) if most is not None)


def as_wide_as_all(
    parts: Mapping[str, Peers | None], values: Mapping[str, Sequence[float]], margin: float, deviations: float
) -> dict[str, Peers | None]:
    """The parts with at least the deviation that all have together: of many places one seems narrow by chance."""
    relative = [value / group.median for part, group in parts.items() if group is not None for value in values[part]]
    together = Peers.without_the_far(relative, margin, deviations)
    ratio = 0.0 if together is None else together.deviation / abs(together.median)
    return {
        part: group and replace(group, deviation=max(group.deviation, ratio * abs(group.median)))
        for part, group in parts.items()
    }


@dataclass
class PeerHistory:
    """By check, group and software the largest group that was seen."""

    groups: dict[_Key, PeerGroup] = field(default_factory=dict)

    @classmethod
    def of(cls, documents: Iterable[Mapping[str, Any]]) -> PeerHistory:
        """From the ``standings`` of a document of ``gpuval.judging/1``."""
        found = cls()
        for one in documents:
            meaning = (one["check"], one["metric"], one["unit"], one["relative_to"], one["same_part"])
            alike = None if one["alike"] is None else tuple(one["alike"])
            parts = {part: Peers(*figures) for part, figures in one["parts"].items()}
            found.groups[meaning, tuple(one["group"]), alike] = PeerGroup(
                one["nodes"], one["kind"], parts, earlier=True
            )
        return found

    def documents(self) -> list[dict[str, Any]]:
        return [
            {
                "check": check, "metric": metric, "unit": unit, "relative_to": relative_to, "same_part": same_part,
                "group": list(key), "alike": None if alike is None else list(alike), "nodes": group.nodes,
                "kind": group.kind,
                "parts": {
                    part: [one.median, one.deviation, one.count] for part, one in group.parts.items() if one is not None
                },
            }
            for ((check, metric, unit, relative_to, same_part), key, alike), group in self.groups.items()
        ]  # fmt: skip

    def largest(self, check: Check, key: GroupKey, alike: GroupKey | None, now: PeerGroup) -> PeerGroup:
        """The group of now, or an earlier one that had more nodes; the result is kept."""
        full_key = (_meaning(check), key, alike)
        before = self.groups.get(full_key)
        if before is not None and before.nodes > now.nodes:
            return before
        if now.nodes > check.min_peers:
            self.groups[full_key] = now
        return now

    def sizes(self, check: Check) -> dict[GroupKey, int]:
        """By group how many nodes it had."""
        meaning = _meaning(check)
        return {key: group.nodes for (of, key, alike), group in self.groups.items() if of == meaning and alike is None}


def _meaning(check: Check) -> _Meaning:
    return check.name, check.metric, check.unit or "", check.relative_to or "", check.same_part
