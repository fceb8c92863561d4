"""The constants of the search, in one place; benchmarks/localisation varies them (`run.py --set NAME=VALUE`).

A *score* is a distance in standard deviations of the difference of two means. *Relative* values are differences of
logarithms: -0.10 is 9.5 % slower. The source of the values is the simulator: no healthy node is called bad in its
clean gangs, and detection is as high as that allows (docs/design/figures.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Tuning:
    #: Independent results: right ones that make a node healthy, good partners that must each see a bad node low in a
    #: fresh test, attempts for a missing result, runs of the whole gang.
    partners: int = 2
    #: Independent results where fewer may have another cause: fresh failures of a link, good partners that see an
    #: intermittent node fail, low pairs across a boundary, bad nodes of a bad rack, nodes or pairs that are faster.
    several: int = 3
    #: Fresh tests of a node, link or boundary; after so many of a node their mean alone decides.
    tests: int = 8
    #: Fresh tests of a node of a small gang, where few other results are left; a healthy node with so many results gets
    #: no further ones because of noise.
    small_gang_tests: int = 12
    #: Nodes: up to so many, a node is cleared only after all its tests, as the usual speed is known from few pairs.
    small_gang: int = 8
    #: Score: the mean of a node, link or boundary that is bad, and of all pairs that are slower than expected.
    score: float = 4.5
    #: Margins, score: a node is surely not slow if it is not slower by so many margins, at this score.
    surely_margins: float = 2.0
    sure_score: float = 3.0
    #: Standard deviations: results further below the node's own median count as just that far.
    clip_deviations: float = 2.0
    #: Standard deviations: one result this low (and beyond the margin) is measured again as a link.
    link_deviations: float = 2.2
    #: Ratio: a link is bad although its nodes are slow elsewhere, if it is so many times as low as their mean, and half
    #: as many times as low as their worst result.
    link_times: float = 4.0
    #: Relative: a pair this far beyond what its nodes explain is examined as a link; pairs this much faster than usual
    #: make the usual speed unclear; bus bandwidth falls by less than this with size.
    gross: float = 0.35
    #: Pairs across a boundary in one round, and fresh low ones that confirm it.
    boundary_pairs: int = 4
    #: Share of pairs that must be low: across a boundary, or of different groups that are slower by design.
    share: float = 0.75
    #: Share of nodes that reach a speed that is usual.
    most: float = 0.6
    #: Iterations: of the usual speed and the good nodes, which depend on each other.
    iterations: int = 8
    #: Pairs of good nodes that run beside tests, and that show how fast a round as a whole was.
    round_pairs: int = 8
    #: Measurements: weight of the expected noise; a quarter of it when a node is judged.
    prior: int = 8
    #: Residuals: from so many on, their median gives the noise.
    many_residuals: int = 200


#: What ships.
DEFAULT = Tuning()


@dataclass(frozen=True)
class Limits:
    """The cost limits of a search, and what counts as slow.

    `deadline_seconds`: of one round; `wall_seconds`: of all rounds, 0 is no limit. `margin_ratio`: a smaller deviation
    from good pairs is ignored; `noise_ratio`: the expected noise of one measurement; `floor_bytes_per_second`: what a
    good pair reaches, if known. `tapered`: pairs of different racks are slower by design. `climb`: run the whole
    gang when all pairs are fine.
    """

    rounds: int = 20
    pair_rounds: int = 4
    deadline_seconds: float = 180.0
    wall_seconds: float = 0.0
    margin_ratio: float = 0.05
    noise_ratio: float = 0.03
    floor_bytes_per_second: Optional[float] = None
    tapered: bool = False
    climb: bool = True
