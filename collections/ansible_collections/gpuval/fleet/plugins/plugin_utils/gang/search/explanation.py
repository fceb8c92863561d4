"""Measurements of pairs, and what they mean so far: the data that the steps of the search share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from .statistics import HARD, Noise
from .tuning import DEFAULT, Tuning

Link = tuple[str, str]


class Wanted(NamedTuple):
    """A group that is to run: `purpose`: why; `tested`: the nodes or boundary in question."""

    nodes: tuple[str, ...]
    purpose: str
    tested: tuple[str, ...] = ()


class Measurement(NamedTuple):
    """One pair in one round. `value`: logarithm of its speed; `tested`: nodes that the group was to test.

    An explanation fills in the rest: `relative`, the value minus the centre, HARD for a failure; `margin`, the least
    deviation that counts.
    """

    round: int
    one: str
    two: str
    purpose: str
    state: str
    value: Optional[float]
    culprits: tuple[str, ...]
    tested: tuple[str, ...] = ()
    message: str = ""
    relative: float = 0.0
    margin: float = 0.0

    @property
    def pair(self) -> Link:
        return self.one, self.two

    @property
    def is_low(self) -> bool:
        return self.relative < -self.margin

    @property
    def is_right(self) -> bool:
        return self.relative >= -self.margin

    @property
    def has_failed(self) -> bool:
        return self.relative == HARD

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
    """What explains the low ones of the `measurements`; `missing` are those without a result.

    `implicated`: nodes, worst first. `cleared`: nodes that fresh results no longer implicate. `bad_links` are
    confirmed, `open_links` need more tests. `explained`: measurements with a cause other than an implicated node, or
    with a worse node as partner. `outliers`: measurements that show a link and neither node.
    """

    setting: Setting
    nodes: Sequence[str]
    measurements: Sequence[Measurement]
    missing: Sequence[Measurement]
    noise: Noise
    centre: Optional[float]
    implicated: list[str] = field(default_factory=list)
    good: set[str] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)
    bad_links: dict[Link, list[Measurement]] = field(default_factory=dict)
    open_links: dict[Link, list[Measurement]] = field(default_factory=dict)
    boundaries: dict[Boundary, list[Measurement]] = field(default_factory=dict)
    explained: set[Measurement] = field(default_factory=set)
    outliers: set[Measurement] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.by_node: dict[str, list[Measurement]] = {node: [] for node in self.nodes}
        for item in self.measurements:
            self.by_node[item.one].append(item)
            self.by_node[item.two].append(item)

    @property
    def tuning(self) -> Tuning:
        return self.setting.tuning

    @property
    def sigma(self) -> float:
        return self.noise.sigma

    @property
    def count(self) -> int:
        """Pairs that ran, with or without a result."""
        return len(self.measurements) + len(self.missing)

    def unexplained(self) -> list[Measurement]:
        return [item for item in self.measurements if item not in self.explained]

    def among_good(self) -> list[Measurement]:
        """Pairs of good nodes that nothing else explains."""
        return [item for item in self.unexplained() if self.good.issuperset(item.pair) and not item.has_failed]

    def usual(self) -> tuple[float, int]:
        """Mean of pairs of good nodes without the farthest at both ends, and their number."""
        values = sorted(item.relative for item in self.among_good())
        cut = max(1, len(values) // 10) if len(values) > 4 else 0
        return (statistics.fmean(values[cut : len(values) - cut]) if values else 0.0), len(values)

    def faster(self) -> int:
        """Pairs faster than usual by more than noise explains: the usual speed is unclear."""
        return sum(item.relative > self.tuning.gross for item in self.measurements)

    def most_tests(self) -> int:
        """Fresh tests after which a node stays suspect; of three nodes no rounds are left for more."""
        is_small = self.tuning.several < len(self.nodes) <= self.tuning.small_gang
        return self.tuning.small_gang_tests if is_small else self.tuning.tests
