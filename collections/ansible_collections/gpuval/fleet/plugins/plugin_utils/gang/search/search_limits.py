"""The constants of the search, in one place; benchmarks/localisation varies them (`run.py --set NAME=VALUE`).

A *score* is a distance in standard deviations of the difference of two means. *Relative* values are differences of
logarithms: -0.10 is 9.5 % slower. The source of the values is the simulator: no healthy node is called bad in its
clean gangs, and detection is as high as that allows (docs/design/figures.md).
"""

from dataclasses import dataclass
from typing import Optional


@dataclass
class SearchTuning:
    #: Number of independent results: right ones for a healthy node, good partners that see a bad node low in a fresh
    #: test, attempts for a missing result, runs of the whole gang.
    partners: int = 2
    #: Number of independent results if fewer may have another cause: fresh failures of a link, good partners that see
    #: an intermittent node fail, pairs across a boundary in a round, and low ones of them, bad nodes of a bad rack,
    #: nodes or pairs that are faster.
    several: int = 3
    #: Number of fresh tests of a node, link or boundary; after these only their mean decides about a node.
    tests: int = 8
    #: Number of fresh tests of a node in a small gang, where other results are few; a healthy node with this many gets
    #: no further ones because of noise.
    small_gang_tests: int = 12
    #: Nodes of a small gang: all its pairs run before the whole gang, and a node that is a little slower gets all its
    #: tests before it is bad, as few pairs show the usual speed.
    small_gang: int = 8
    #: Score from which a mean is bad: of a node, link or boundary, and of all pairs below the expected speed.
    score: float = 4.5
    #: A healthy node gets more results until it is not slower by ``surely_margins`` margins, at ``sure_score``.
    surely_margins: float = 2.0
    sure_score: float = 3.0
    #: Standard deviations: if one result is this low (and beyond the margin), its link is measured again.
    link_deviations: float = 2.2
    #: Relative: a pair this far beyond what its nodes explain is examined as a link; pairs this much faster than usual
    #: make the usual speed unclear; bus bandwidth falls by less than this with size.
    gross: float = 0.35
    #: Share of pairs that must be low: across a bad boundary, or between groups that are slower by design.
    share: float = 0.75
    #: Share of nodes that must reach a speed, so that it is the usual one.
    most: float = 0.6
    #: Number of iterations to find the usual speed and the good nodes, which depend on each other.
    iterations: int = 8
    #: Number of pairs of good nodes that run beside tests: they show how fast the whole round was.
    round_pairs: int = 8
    #: How many measurements the expected noise counts as, beside measured ones; a quarter of these for a single node.
    prior: int = 8


#: The values in use; only benchmarks change them.
TUNING = SearchTuning()


@dataclass(frozen=True)
class SearchLimits:
    """The cost limits of a search, and what counts as slow. `deadline_seconds`: of one round; `wall_seconds`: of all
    rounds, 0 is no limit. `margin_ratio`: a smaller deviation from good pairs is ignored; `noise_ratio`: the expected
    noise of one measurement; `floor_bytes_per_second`: what a good pair reaches, if known. `tapered`: pairs of
    different racks are slower by design. `climb`: run the whole gang when all pairs are fine."""

    rounds: int = 20
    pair_rounds: int = 4
    deadline_seconds: float = 180.0
    wall_seconds: float = 0.0
    margin_ratio: float = 0.05
    noise_ratio: float = 0.03
    floor_bytes_per_second: Optional[float] = None
    tapered: bool = False
    climb: bool = True
