"""The constants of the search, in one place; benchmarks/localisation varies them (`run.py --set NAME=VALUE`).

A *score* is a distance in standard deviations of the difference of two means. *Relative* values are differences of
logarithms: -0.10 is 9.5 % slower. Unless a comment says otherwise, the source of a value is the simulator: no healthy
node is called bad in 12,800 clean simulated gangs, and detection is as high as that allows (docs/design/figures.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    # Evidence that a verdict on a node needs
    #: Partners: good partners that must see a node low, each in a fresh test, before the node is bad.
    partners: int = 2
    #: Right results: needed to call a node healthy, or to use it as a known good partner.
    right_results: int = 2
    #: Good partners: that must see an intermittent node fail before it is bad. One failure has two possible causes,
    #: two may be two bad links of one node.
    intermittent_partners: int = 3
    #: Fresh tests: after so many their mean alone decides; earlier results were selected for being low.
    node_tests: int = 8
    #: Fresh tests: no node gets more, where 4 to `small_gang` nodes leave few other results.
    small_gang_tests: int = 12
    #: Nodes: up to so many, a node is cleared only after all its tests, as the usual speed is known from few pairs.
    small_gang: int = 8
    #: Score: mean of all results of a node, in a gang of three.
    node_score: float = 3.5
    #: Score: added for each doubling of the nodes above three (more nodes, more chances), and the most in all.
    score_per_doubling: float = 0.9
    max_node_score: float = 5.5
    #: Margins, residuals: a node slower by less than so many margins is bad only if the noise is known from so many
    #: residuals, or the node had all its tests.
    far_margins: float = 4.0
    known_residuals: int = 20
    #: Standard deviations: results further below the node's own median count as just that far.
    clip_deviations: float = 2.0
    #: Margins, score: a node is surely not slow if it is not slower by so many margins, at this score.
    surely_margins: float = 2.0
    sure_score: float = 3.0
    #: Results: a healthy node with so many gets no further tests because of noise.
    plenty_results: int = 12

    # Links
    #: Score: mean of a link's fresh results; a link is one among hundreds of candidates.
    link_score: float = 4.5
    #: Standard deviations: one result this low (and beyond the margin) is measured again.
    link_deviations: float = 2.2
    #: Standard deviations: added for each time that the noise exceeds the expected noise, and the most in all. Without
    #: them, large noisy gangs spend their rounds on links that are low by chance.
    link_noise_deviations: float = 1.6
    max_link_deviations: float = 2.7
    #: Measurements: from so many on the line above applies, and a node's extra results must be twice as low.
    many_measurements: int = 100
    #: Fresh failures in a row: a link that fails does so every time, an intermittent node rarely.
    link_failures: int = 3
    #: Fresh tests of one link or boundary.
    link_tests: int = 6
    #: Relative: a pair this far beyond what its nodes explain is examined as a link.
    gross: float = 0.35
    #: Ratio: a link is bad although its nodes are slow elsewhere, if it is so many times as low as their mean, and as
    #: their worst result.
    link_times: float = 4.0
    worst_times: float = 2.0

    # Boundaries (a rack, a switch, a rail)
    #: Measurements: low ones that a boundary needs, and fresh low ones that confirm it.
    boundary_results: int = 3
    boundary_fresh: int = 4
    #: Share of the measurements across the boundary, between nodes that are fine elsewhere, that must be low.
    boundary_share: float = 0.75
    boundary_score: float = 5.5
    #: Pairs across a boundary in one round of confirmation.
    boundary_pairs: int = 4
    #: Share of pairs of different groups that must be slow before the groups count as slower by design.
    tiered_share: float = 0.9
    #: Nodes: a whole group that is bad has at least so many.
    whole_group: int = 3

    # The usual speed
    #: Share of nodes that reach a speed that is usual.
    most: float = 0.6
    #: Nodes, relative: or so many reach it, and all others are slower by so much with every partner.
    few: int = 3
    far: float = 0.15
    #: Relative: pairs this much faster than usual mean that the usual speed is unclear.
    fast: float = 0.25
    #: Pairs, share of pairs: from so many fast pairs on, the finding reports them.
    fast_pairs: int = 3
    fast_share: float = 0.05
    #: Nodes: up to so many, the fastest pair is the first candidate for the usual speed.
    fastest_first: int = 3
    #: Iterations, relative: of centre and good nodes, and the change at which they have settled.
    iterations: int = 8
    settled: float = 0.002
    #: Pairs of good nodes in one round that show how fast the round as a whole was.
    round_pairs: int = 8
    #: Score: all pairs are slower than expected.
    floor_score: float = 4.0

    # Noise
    #: Measurements: weight of the expected noise; a quarter of it when a node is judged.
    prior: int = 8
    #: Ratio to the expected noise from which on doubt is added; measurements that halve that doubt.
    noisy: float = 1.1
    doubt: int = 24
    #: Residuals: from so many on, their median gives the noise.
    many_residuals: int = 200

    # Rounds
    #: Rounds beside pairs and growing groups: so many plus twice log2(nodes), at least `min_further`; with up to
    #: `tiny_gang` nodes, few of which can run at once, at least `min_further_tiny`.
    further: int = 4
    min_further: int = 14
    min_further_tiny: int = 17
    tiny_gang: int = 4
    #: Nodes: up to so many, all pairs run while the usual speed is unclear.
    mesh: int = 16
    #: Attempts: for a missing result, or a node without any answer.
    repeats: int = 2
    #: Pairs of good nodes that run beside tests, to show how fast the round as a whole is.
    controls: int = 8

    # Growing groups
    #: Standard deviations: a group is slow from here on; groups are few, the faster of two is the measure.
    group_deviations: float = 4.0
    #: Relative: bus bandwidth falls with size by nature; a larger fall is reported and blamed on no node.
    fall: float = 0.35
    #: Bad groups of otherwise good nodes, with different members each time, that make a node bad.
    bad_groups: int = 2
    #: Attempts: for a group without a result; groups of one size that are examined at once.
    group_tries: int = 2
    groups_at_once: int = 4

    def node_bar(self, nodes: int) -> float:
        """The score that a node of a gang of so many nodes must exceed to be bad."""
        return min(self.max_node_score, self.node_score + self.score_per_doubling * math.log2(max(1.0, nodes / 3)))


#: What ships.
DEFAULT = Tuning()
