"""Figures of one stage that move together over the fleet, by Spearman's rank correlation. Pure.

Two figures of the same kind of part are compared over all parts that have both, others over nodes (the median of their
parts). Parts of a node are not independent: chance depends on the number of nodes. Two that are one quantity (its
percentiles, its duration and rate) prove nothing and are only counted.
"""

import functools
import itertools
import operator
import random
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.grouping import values_by_key
from .distribution import Key, Samples, benjamini_hochberg, centred, spearman, spearman_p

MIN_NODES = 8
LEAST_RHO = 0.7
FALSE_SHARE = 0.01
#: Correlation beyond which two figures are one quantity, one computed from the other.
ONE_QUANTITY = 0.995
#: Least share of parts that must report a figure: else few parts report all figures.
REPORTED_BY = 0.8
#: Figures of one stage that are compared: the number of pairs grows with the square.
MAX_FIGURES = 150
#: Of more parts (or nodes) a random sample of this size is correlated: it gives rho to 0.02, at little cost.
MAX_PLACES = 2000

#: Words for units and statistics in names of metrics.
_SAME_WORDS = re.compile(
    r"seconds?|bytes?|bits|per|t?flops|tokens|samples|images|requests|ratio|count|celsius|watts|hertz|joules|percent"
    r"|rate|duration|latency|mean|median|min|max|minimum|maximum|least|greatest|most|average|avg|total|sum|first|last"
    r"|final|spread|deviation|p[0-9]{1,3}"
)


@dataclass(frozen=True)
class FigurePair:
    """Two correlated figures. ``over``: the kind of part that was compared; ``count``: number of parts."""

    one: Key
    other: Key
    rho: float
    over: str
    count: int
    nodes: int
    probability: float


def correlate(samples: Samples) -> tuple[list[FigurePair], int]:
    """All pairs of figures of a stage, on nodes of one kind, that are strongly correlated beyond chance, strongest
    first; and the number of further pairs that are one quantity twice."""
    stages = values_by_key(((key.stage, key.kind), key) for key in samples.figures)
    pairs = [pair for keys in stages.values() for pair in _pairs_of_stage(keys, samples)]
    qualities = benjamini_hochberg([pair.probability for pair in pairs])
    strong = [
        pair
        for pair, quality in zip(pairs, qualities, strict=True)
        if quality <= FALSE_SHARE and abs(pair.rho) >= LEAST_RHO
    ]
    # A correlation beyond ONE_QUANTITY, or equal names except for unit and statistic, is one quantity twice.
    distinct = [
        pair
        for pair in strong
        if abs(pair.rho) <= ONE_QUANTITY and _quantity(pair.one.metric) != _quantity(pair.other.metric)
    ]
    distinct.sort(key=lambda pair: (-abs(pair.rho), pair.one, pair.other))
    return distinct, len(strong) - len(distinct)


def _pairs_of_stage(keys: Sequence[Key], samples: Samples) -> Iterator[FigurePair]:
    reported = [key for key in keys if len(samples.figures[key].medians) >= MIN_NODES][:MAX_FIGURES]
    by_scope = values_by_key((key.scope, key) for key in reported)
    for scope, of_scope in by_scope.items():
        yield from _pairs(of_scope, samples, scope)
    if len(by_scope) > 1:
        yield from _pairs([key for of_scope in by_scope.values() for key in of_scope], samples, "node", of_nodes=True)


def _pairs(keys: Sequence[Key], samples: Samples, over: str, *, of_nodes: bool = False) -> Iterator[FigurePair]:
    """The correlated pairs over the places (parts, or nodes with ``of_nodes``) that report every commonly reported
    figure. Figures of one kind of part are not compared by nodes as well."""
    if len(keys) < 2:
        return

    def values_of(key: Key) -> Mapping[Any, float]:  # made anew for each call: all of a fleet at once need much memory
        return samples.figures[key].medians if of_nodes else samples.figures[key].by_place()

    counts = {key: len(values_of(key)) for key in keys}
    usual = [key for key, count in counts.items() if count >= REPORTED_BY * max(counts.values())]
    common = sorted(functools.reduce(operator.and_, (values_of(key).keys() for key in usual)))
    columns = [array("d", [values[place] for place in common]) for values in map(values_of, usual)]
    # sorted by values, so that neither the random sample nor rounding depends on the order of nodes
    chosen = sorted(range(len(common)), key=lambda index: [column[index] for column in columns])
    if len(chosen) > MAX_PLACES:
        chosen = random.Random(0).sample(chosen, MAX_PLACES)  # noqa: S311 - a fixed draw, for a judgement to be made again
    places = [common[index] for index in chosen]
    nodes = len({place[0] if isinstance(place, tuple) else place for place in places})
    if nodes < MIN_NODES:
        return
    ranks = (centred([column[index] for index in chosen]) for column in columns)
    of_figures = zip(usual, ranks, strict=True)
    differing = [(key, ranked) for key, ranked in of_figures if ranked is not None]
    for (key, ranked), (other_key, other_ranked) in itertools.combinations(differing, 2):
        if not of_nodes or key.scope != other_key.scope:
            rho = spearman(ranked, other_ranked)
            first, second = sorted((key, other_key))
            yield FigurePair(first, second, rho, over, len(places), nodes, spearman_p(rho, nodes))


def _quantity(metric: str) -> tuple[str, ...]:
    """The words of a metric's name without unit and statistic; empty if it has no other words."""
    words = [word for word in re.split("[_.]", metric.lower()) if not _SAME_WORDS.fullmatch(word)]
    return tuple(words) or (metric,)
