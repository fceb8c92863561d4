"""Growing groups, for a fault that no pair shows; pure.

Groups of 4, 8, ... nodes run until one is bad. That group runs again. Then it is halved, and good nodes fill each half
up to the same size, until one node is left. If both halves are good, the fault is between them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from ...core.text import some_of
from .explanation import Wanted
from .statistics import HARD, percent
from .tuning import DEFAULT, Tuning

#: Node names in a sentence on a group: the sentence is cut after 200 characters and must end before.
MAX_NAMES = 3

Nodes = tuple[str, ...]


class Ran(NamedTuple):
    """A group that ran; `value`: logarithm of its speed, HARD, or None for a missing result."""

    round: int
    nodes: Nodes
    tested: Nodes
    purpose: str
    value: Optional[float]


class Bounds(NamedTuple):
    """`margin` and `sigma` relative; `expected`: logarithm of the speed expected of two nodes, not of larger groups.

    `paired`: runs of each pair.
    """

    margin: float
    sigma: float
    expected: float
    paired: Mapping[tuple[str, str], int]
    tuning: Tuning = DEFAULT

    @property
    def far(self) -> float:
        return max(self.margin, self.tuning.group_deviations * self.sigma)


@dataclass
class Climb:
    """What to run next; bad and suspect nodes with reasons; in `groups`, faults of no single node."""

    wanted: list[Wanted] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)
    suspect: dict[str, str] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)


def climb(line: Sequence[str], ran: Sequence[Ran], bounds: Bounds, left: int) -> Climb:
    """`line`: the nodes that are healthy in pairs; `ran`: all groups of more than two so far.

    If fewer rounds are `left` than there are sizes, some sizes are skipped, but never the whole gang.
    """
    sizes = [4 << step for step in range(len(line).bit_length()) if 4 << step < 2 * len(line) and len(line) > 2]
    before, smaller = bounds.expected, "expected of two nodes"
    notes: list[str] = []
    for place, size in enumerate(sizes):
        first = _first(line, size, ran)
        if not first and any(_first(line, bigger, ran) for bigger in sizes[place + 1 :]):
            continue
        if not first:
            rest = sizes[place:]
            chosen = rest[-(-len(rest) // max(1, left)) - 1]
            return Climb([Wanted(nodes, "climb") for nodes in _chunks(line, chosen)], groups=notes)
        look = _Look(ran, first, bounds)
        if look.found.wanted or look.found.groups or look.found.bad or look.found.suspect:
            look.found.groups += notes
            return look.found
        if look.usual - before < -max(bounds.tuning.fall, bounds.far):
            notes.append(f"groups of {size} are {percent(look.usual - before)} than {smaller}, all of them")
        before, smaller = look.usual, f"groups of {size}"
    return Climb(groups=notes)


def _first(line: Sequence[str], size: int, ran: Sequence[Ran]) -> list[Ran]:
    """The groups of a size that ran before any of them was examined."""
    known = set(_chunks(line, size))
    return [one for one in ran if one.purpose == "climb" and one.nodes in known]


def _chunks(line: Sequence[str], size: int) -> list[Nodes]:
    """Groups of neighbours of nearly even size."""
    count = max(1, len(line) // size)
    places = [round(len(line) * place / count) for place in range(count + 1)]
    return [tuple(line[start:end]) for start, end in zip(places, places[1:])]


class _Look:
    """The groups of one size: which of them are bad, and because of which node."""

    def __init__(self, ran: Sequence[Ran], first: Sequence[Ran], bounds: Bounds) -> None:
        self.ran, self.bounds, self.found = ran, bounds, Climb()
        sizes = {len(one.nodes) for one in first}
        figures = [one.value for one in ran if len(one.nodes) in sizes and one.value is not None and one.value > HARD]
        near = max(figures, default=-math.inf) - bounds.far
        #: Of few groups one may be fast by chance: all groups of this size count.
        self.usual = statistics.median([value for value in figures if value >= near] or [-math.inf])
        self.fill = [
            node for one in first if one.value is not None and not self.is_low(one.value) for node in one.nodes
        ]
        open_groups = [one for one in first if one.value is None or self.is_low(one.value)]
        for group in open_groups[: bounds.tuning.groups_at_once]:
            self._group(group)

    def is_low(self, value: float | None) -> bool:
        if value is None or value == HARD:
            return value == HARD
        return value - self.usual < -self.bounds.far

    def _group(self, group: Ran) -> None:
        again = [one for one in self.ran if one.purpose == "again" and one.nodes == group.nodes]
        known = [one.value for one in again if one.value is not None]
        count = len(group.nodes)
        if not known and len(again) < self.bounds.tuning.group_tries:
            self.found.wanted.append(Wanted(group.nodes, "again", group.nodes))
        elif not known:
            self._suspect(group.nodes, f"a group of {count} with it gave no result")
        elif any(map(self.is_low, known)):
            self._halve(group.nodes, count, self._how(next(value for value in known if self.is_low(value))))
        elif group.value == HARD:
            self._suspect(group.nodes, f"a group of {count} with it failed once and passed when it ran again")

    def _halve(self, nodes: Nodes, size: int, how: str) -> None:
        """Look into nodes that hold the fault: into whichever half is bad among good nodes."""
        if len(nodes) == 1:
            self._single(nodes, size, how)
            return
        half = len(nodes) // 2
        halves = (nodes[:half], nodes[half:])
        outcomes, asked = [], False
        for part in halves:
            tests = [one for one in self.ran if one.purpose == "bisect" and one.tested == part]
            known = [one for one in tests if one.value is not None]
            outcomes.append(any(self.is_low(one.value) for one in known) if known else None)
            if not known and len(tests) < self.bounds.tuning.group_tries:
                asked = self._want(part, size, 0) or asked
        for part, outcome in zip(halves, outcomes):
            if outcome:
                self._halve(part, size, how)
        ends = (nodes[0], nodes[-1])
        if not asked and not any(outcomes) and outcomes == [False, False] and ends not in self.bounds.paired:
            self.found.wanted.append(Wanted(ends, "link", ends))  # the one link of the group's ring that no pair used
        elif not asked and not any(outcomes):
            clear = outcomes == [False, False]
            tail = "each half with good nodes is fine" if clear else "too few good nodes are left to halve it"
            self._suspect(nodes, f"a group of {size} with it {how}; {tail}")

    def _single(self, nodes: Nodes, size: int, how: str) -> None:
        needed = self.bounds.tuning.bad_groups
        tests = [one for one in self.ran if one.purpose == "bisect" and one.tested == nodes and one.value is not None]
        bad = [one for one in tests if self.is_low(one.value)]
        beside = [(one.nodes[1], one.nodes[-1]) for one in bad]  # neighbours in the ring: the link to one may be bad
        apart = len({node for pair in beside for node in pair}) == 2 * len(bad)
        if len(bad) >= needed and len(bad) == len(tests) and not apart:
            self._suspect(nodes, f"a group of {size} with it {how}; inconclusive: node or link; too few good nodes")
        elif len(bad) >= needed and len(bad) == len(tests):
            rounds = some_of((one.round + 1 for one in bad), 12)
            self.found.bad[nodes[0]] = f"every group of {size} with it {how}, between good nodes, in round {rounds}"
        elif len(tests) > len(bad):
            self._suspect(nodes, f"a group of {size} with it {how}, but not every time")
        elif not self._want(nodes, size, len(tests)):
            self._suspect(nodes, f"a group of {size} with it {how}; too few good nodes are left to confirm it")

    def _want(self, part: Nodes, size: int, turn: int) -> bool:
        """Ask for a group of `part` and good nodes, different ones at each turn. False if too few nodes are good."""
        needed = size - len(part)
        if len(self.fill) < needed:
            return False
        used = {node for one in self.found.wanted for node in one.nodes}
        free = [node for node in self.fill if node not in used]
        if len(free) >= needed and not used & set(part):
            start = turn * (needed // 2 + 1) % len(free)
            chosen = (free[start:] + free[:start])[:needed]
            self.found.wanted.append(Wanted((*part, *chosen), "bisect", part))
        return True  # if not now, in a later round

    def _suspect(self, nodes: Nodes, reason: str) -> None:
        self.found.suspect.update(dict.fromkeys(nodes, reason))
        self.found.groups.append(f"{len(nodes)} node(s) ({some_of(nodes, MAX_NAMES)}): {reason}")

    def _how(self, value: float) -> str:
        if value == HARD:
            return "fails"
        return f"is {percent(value - self.usual)} than usual"
