"""The groups of nodes that parts are compared with, now and when a run was judged before.

A run that is judged again with less evidence, and one of a few nodes of an earlier run (``--limit``), are compared with
the larger group: a node that was slow beside forty is not excused by being alone.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import peer_statistics
from .check import Check
from .peer_statistics import Peers
from .populations import two_modes

if TYPE_CHECKING:
    from .peer_samples import PeerSample

#: What nodes must share to be compared.
GroupKey = tuple[str, ...]
#: The key of all parts together, in ``PeerGroup.parts``.
ALL_PARTS = ""
#: Check, metric, unit, relative_to and same_part: figures of another meaning are not compared.
_Meaning = tuple[str, str, str, str, bool]
#: How far chance reaches among these nodes, relative: beside what repeats explain (0 where tails are normal noise); of
#: whole nodes, by normal noise alone; and as far as a second measurement need not exclude it (0 where not known).
Reach = Callable[[Sequence["PeerSample"], float], tuple[float, float, float]]
#: Meaning, group, and software; None is all software.
_Key = tuple[_Meaning, GroupKey, "GroupKey | None"]


@dataclass(frozen=True)
class Modes:
    """The nodes of two populations; ``certain``: chance is excluded."""

    worse: Sequence[PeerSample]
    better: Sequence[PeerSample]
    certain: bool


@dataclass(frozen=True)
class PeerGroup:
    """How many nodes, what they share (``kind``, in words), and the statistics of their parts.

    ``parts`` has those of all under ALL_PARTS; with ``same_part`` those of each part under its name. ``repeats``: the
    deviation that repeats of one measurement explain; ``reach``: that beyond which a figure is no chance in a fleet
    with long tails; ``normal``: that beyond which normal noise explains no whole node, ``doubtful``: that beyond which
    one is to be measured again, 0 where they are not known; all relative. ``modes``: where the nodes are two
    populations; if that is certain, statistics are those of the larger one, of two that are equal those of the better.
    ``earlier``: the group is that of an earlier judgement.
    """

    nodes: int
    kind: str
    parts: Mapping[str, Peers | None]
    repeats: float = 0.0
    reach: float = 0.0
    normal: float = 0.0
    doubtful: float = 0.0
    modes: Modes | None = None
    earlier: bool = False

    @classmethod
    def of(cls, check: Check, samples: Sequence[PeerSample], kind: str, reach: Reach | None = None) -> PeerGroup:
        errors = [error for sample in samples for error in sample.errors]
        floor = statistics.median(errors) if errors else 0.0
        margin = least_margin(check)
        modes = modes_of(check, samples)
        main = samples
        if modes is not None and modes.certain:
            main = modes.worse if len(modes.worse) > len(modes.better) else modes.better
        reaches = reach(main, floor) if reach else (0.0, 0.0, 0.0)
        group = cls(len(samples), " ".join(kind.split()), {}, floor, *reaches, modes)
        values = values_of(check, main)
        # Of a few healthy nodes the widest would be left out; of more, a third that is bad must be.
        few = 0 < group.nodes < peer_statistics.FEW_TO_LEAVE_OUT
        deviations = peer_statistics.widened(check.deviations, group.nodes, _few(check)) if few else check.deviations
        parts = {
            part: Peers.without_the_far(figures, margin, deviations, floor_ratio=floor)
            for part, figures in values.items()
        }
        return replace(group, parts=as_wide_as_all(parts, values, margin, deviations) if check.same_part else parts)

    def limit(self, check: Check, peers: Peers) -> float:
        """How far from the median of its peers, in the unit of the figures, a part is no chance.

        What repeats explain is normal noise of a known deviation; of the rest few nodes do not show the tails.
        """
        repeats = min(self.repeats * abs(peers.median), peers.deviation)
        rest = math.sqrt(peers.deviation**2 - repeats**2)
        chance = check.deviations * math.hypot(repeats, peer_statistics.widened(rest, max(1, self.nodes), _few(check)))
        return max(chance, self.reach * abs(peers.median))

    def limit_to_warn(self, check: Check, peers: Peers) -> float:
        few = 0 if check.relative_to else peer_statistics.FEW_NODES_TO_WARN
        deviations = peer_statistics.SHARE_TO_WARN * check.deviations
        return peer_statistics.widened(deviations, max(1, self.nodes), few) * peers.deviation

    def peers_of(self, part: str) -> Peers | None:
        return self.parts[ALL_PARTS] if ALL_PARTS in self.parts else self.parts.get(part)


def least_margin(check: Check) -> float:
    return min(most for most in (check.max_below, check.max_above) if most is not None)


def _few(check: Check) -> float:
    return peer_statistics.FEW_NODES_OF_PARTS if check.relative_to else peer_statistics.FEW_NODES


def values_of(check: Check, samples: Iterable[PeerSample]) -> dict[str, list[float]]:
    """What is compared of all nodes: by part with ``same_part``, else under ALL_PARTS."""
    values: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        for part, _, compared in sample.compared(check):
            values[_place(check, part)].append(compared)
    return values


def _place(check: Check, part: str) -> str:
    return part if check.same_part else ALL_PARTS


def ratios_of(check: Check, samples: Sequence[PeerSample]) -> list[dict[str, float]]:
    """Of each node what is compared of its parts, relative to the median of these over all nodes."""
    middles = {part: statistics.median(its) for part, its in values_of(check, samples).items()}
    return [
        {part: value / middle for part, _, value in sample.compared(check) if (middle := middles[_place(check, part)])}
        for sample in samples
    ]


def levels_of(check: Check, samples: Sequence[PeerSample]) -> list[float | None]:
    """How fast each node is as a whole: the median of its parts, relative to the median of these over all nodes."""
    return [statistics.median(ratios.values()) if ratios else None for ratios in ratios_of(check, samples)]


def modes_of(check: Check, samples: Sequence[PeerSample], levels: Sequence[float | None] | None = None) -> Modes | None:
    """The populations of these nodes, where there are two; ``levels``: theirs, if they are known."""
    if check.relative_to is not None or (check.max_below is not None and check.max_above is not None):
        return None
    leveled = [(one, level) for one, level in zip(samples, levels or levels_of(check, samples), strict=True) if level]
    modes = two_modes([level for _, level in leveled], least_margin(check))
    if modes is None:
        return None
    *numbers, certain = modes
    lower, upper = ([leveled[number][0] for number in its] for its in numbers)
    return Modes(lower, upper, certain) if check.max_below is not None else Modes(upper, lower, certain)


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
        history = cls()
        for row in documents:
            meaning = (row["check"], row["metric"], row["unit"], row["relative_to"], row["same_part"])
            alike = None if row["alike"] is None else tuple(row["alike"])
            parts = {part: Peers(*figures) for part, figures in row["parts"].items()}
            reach = {name: row.get(name, 0.0) for name in ("repeats", "reach", "normal", "doubtful")}
            group = PeerGroup(row["nodes"], row["kind"], parts, earlier=True, **reach)
            history.groups[meaning, tuple(row["group"]), alike] = group
        return history

    def documents(self) -> list[dict[str, Any]]:
        return [
            {
                "check": check, "metric": metric, "unit": unit, "relative_to": relative_to, "same_part": same_part,
                "group": list(key), "alike": None if alike is None else list(alike), "nodes": group.nodes,
                "kind": group.kind, "repeats": group.repeats, "reach": group.reach, "normal": group.normal,
                "doubtful": group.doubtful,
                "parts": {
                    part: [one.median, one.deviation, one.count] for part, one in group.parts.items() if one is not None
                },
            }
            for ((check, metric, unit, relative_to, same_part), key, alike), group in self.groups.items()
        ]  # fmt: skip

    def larger(self, check: Check, key: GroupKey, nodes: int) -> PeerGroup | None:
        """The earlier group of more nodes, whatever their software."""
        before = self.groups.get((_meaning(check), key, None))
        return before if before is not None and before.nodes > nodes else None

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
