"""Measurements of pairs, and what they mean so far: the data that the steps of the search share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from .statistics import HARD, Noise
from .tuning import DEFAULT, Tuning

Link = tuple[str, str]


class Measurement(NamedTuple):
    """One pair in one round. `value`: logarithm of its speed; `tested`: nodes that the group was to test."""

    round: int
    one: str
    two: str
    purpose: str
    state: str
    value: Optional[float]
    culprits: tuple[str, ...]
    tested: tuple[str, ...] = ()
    message: str = ""

    def is_test_of(self, node: str) -> bool:
        return self.purpose == "confirm" and node in self.tested

    def other(self, node: str) -> str:
        return self.two if node == self.one else self.one


@dataclass(frozen=True)
class Setting:
    """What counts as slow (`margin`, relative), the expected noise, and whether racks may be slower apart by design."""

    margin: float
    noise: float
    tapered: bool
    tuning: Tuning = DEFAULT

    @property
    def surely_slow(self) -> float:
        """Relative figure of a node that must not be missed."""
        return math.log(1 - min(0.9, self.tuning.surely_margins * self.margin))


@dataclass(frozen=True)
class Boundary:
    """`around`: all ways out of a group; `between`: those between two groups; `apart`: those between all groups;

    `inside`: everything in a group.
    """

    kind: str
    names: tuple[str, ...]
    scope: str

    def __str__(self) -> str:
        return f"{self.kind} {' - '.join(self.names)} ({self.scope})"


@dataclass
class Explanation:
    """What explains the low measurements. Indices are those of `measurements`; `relative` are values minus the centre.

    `implicated`: nodes, worst first. `cleared`: nodes that fresh results no longer implicate. `bad_links` are
    confirmed, `open_links` need more tests. `explained`: measurements with a cause other than an implicated node, or
    with a worse node as partner. `outliers`: measurements that show a link and neither node.
    """

    setting: Setting
    measurements: Sequence[Measurement]
    relative: list[Optional[float]]
    noise: Noise
    centre: Optional[float]
    by_node: Mapping[str, list[int]]
    implicated: list[str] = field(default_factory=list)
    good: set[str] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)
    bad_links: dict[Link, list[int]] = field(default_factory=dict)
    open_links: dict[Link, list[int]] = field(default_factory=dict)
    boundaries: dict[Boundary, list[int]] = field(default_factory=dict)
    explained: set[int] = field(default_factory=set)
    outliers: set[int] = field(default_factory=set)

    @property
    def tuning(self) -> Tuning:
        return self.setting.tuning

    @property
    def sigma(self) -> float:
        return self.noise.sigma

    def partner(self, index: int, node: str) -> str:
        return self.measurements[index].other(node)

    def among_good(self) -> dict[int, float]:
        """Relative figures of pairs of good nodes that nothing else explains."""
        return among(self.good, self.measurements, self.relative, self.explained)

    def usual(self) -> tuple[float, int]:
        """Mean of pairs of good nodes without the farthest at both ends, and their number."""
        values = sorted(self.among_good().values())
        cut = max(1, len(values) // 10) if len(values) > 4 else 0
        return (statistics.fmean(values[cut : len(values) - cut]) if values else 0.0), len(values)

    def is_low(self, index: int) -> bool:
        value = self.relative[index]
        return value is not None and value < -self.setting.margin

    def is_right(self, index: int, margin: float | None = None) -> bool:
        value = self.relative[index]
        return value is not None and value >= -(self.setting.margin if margin is None else margin)

    def is_failure(self, index: int) -> bool:
        return self.relative[index] == HARD

    def fresh(self, node: str) -> list[int]:
        """Measurements that were made to test this node."""
        return [index for index in self.by_node[node] if self.measurements[index].is_test_of(node)]

    def faster(self) -> list[int]:
        """Pairs faster than usual by more than noise explains: the usual speed is unclear."""
        return [index for index, value in enumerate(self.relative) if value is not None and value > self.tuning.fast]

    def most_tests(self) -> int:
        """Fresh tests after which a node stays suspect; of three nodes no rounds are left for more."""
        is_small = self.tuning.fastest_first < len(self.by_node) <= self.tuning.small_gang
        return self.tuning.small_gang_tests if is_small else self.tuning.node_tests


def among(
    good: set[str],
    measurements: Sequence[Measurement],
    values: Sequence[float | None],
    skipped: Collection[int] = frozenset(),
) -> dict[int, float]:
    """Figures of pairs of good nodes that nothing else explains."""
    return {
        index: value
        for index, (item, value) in enumerate(zip(measurements, values))
        if value is not None and value > HARD and item.one in good and item.two in good and index not in skipped
    }
