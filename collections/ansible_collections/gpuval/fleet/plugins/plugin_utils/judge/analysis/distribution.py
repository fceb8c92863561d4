"""Each figure of a fleet: its values on all nodes of a kind, how they are spread, and who stands out. Pure.

A figure is one metric of one stage, in one unit, of whole nodes or of their parts (GPUs, ranks, links), on nodes of
one kind: the same SKU, number of GPUs and workload. Values count from stages that ran to their end.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..peer_statistics import MAD_TO_DEVIATION

#: From so many nodes on a figure is described.
MIN_NODES = 3
#: An outlier is further from the median than both: robust deviations, and this part of the median.
DEVIATIONS = 6.0
LEAST_DIFFERENCE = 0.02
#: Squares of figures must be numbers too; nothing that is measured comes near.
GREATEST = 1e100
#: Stages that ended otherwise broke off, and so did their figures.
_ENDED = frozenset({"success", "failure"})

#: Number of the node in the report, and the scope.
Place = tuple[int, str]
Value = tuple[float, Place]


class Key(NamedTuple):
    """``scope`` is the kind of part: node, gpu, rank, link."""

    stage: str
    metric: str
    scope: str
    unit: str
    kind: str


@dataclass
class FigureSample:
    """The values of one figure in the order of nodes, and where there was none that is a number."""

    values: list[Value] = field(default_factory=list)
    not_numbers: list[Place] = field(default_factory=list)

    @functools.cached_property
    def medians(self) -> dict[int, float]:
        """By number of the node the median of its parts."""
        parts: dict[int, list[float]] = defaultdict(list)
        for value, (number, _) in self.values:
            parts[number].append(value)
        return {number: its[0] if len(its) == 1 else statistics.median(its) for number, its in parts.items()}

    def missing(self, nodes: Iterable[int]) -> int:
        """Parts that these nodes, which ran the stage, did not report; each has as many as most nodes reported."""
        parts = Counter(place[0] for _, place in self.values)
        parts.update(place[0] for place in self.not_numbers)
        usual = Counter(parts.values()).most_common(1)[0][0]
        return sum(max(0, usual - parts[number]) for number in nodes)


@dataclass(frozen=True)
class Samples:
    """All figures of a fleet; ``asked`` are the nodes of a kind that were asked to run a stage."""

    figures: Mapping[Key, FigureSample]
    asked: Mapping[tuple[str, str], Sequence[int]]

    def missing(self, key: Key) -> int:
        return self.figures[key].missing(self.asked[key.stage, key.kind])


def samples(nodes: Sequence[Mapping[str, Any]]) -> Samples:
    """Every figure that the nodes of a report (``nodes`` of gpuval.report/1) contain."""
    kinds = kinds_of(nodes)
    scopes: dict[str, str] = {}
    of_stage: dict[tuple[str, str], dict[tuple[str, str, str, int], FigureSample]] = defaultdict(
        lambda: defaultdict(FigureSample)
    )
    reporting: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, node in enumerate(nodes):
        places: dict[str, Place] = {}  # one for each part: a fleet has a million values
        for stage in node["stages"]:
            name = stage["name"]
            kind = kinds[number][name]
            reporting[name, kind].append(number)
            if stage["state"] not in _ENDED:
                continue
            figures = of_stage[name, kind]
            for metric in node["metrics"].get(name, ()):
                value, part = metric["value"], metric["scope"]
                known_part = places.get(part)
                if known_part is None:
                    known_part = places[part] = (number, part)
                    scopes.setdefault(part, part.partition(":")[0])
                sample = figures[metric["name"], scopes[part], metric["unit"], metric.get("revision", 1)]
                if type(value) in (int, float) and abs(value) < GREATEST:
                    sample.values.append((value, known_part))
                else:
                    sample.not_numbers.append(known_part)
    # Of each figure the revision that most parts have: those of different ones are not compared.
    of_one_revision = {
        Key(stage, metric, scope, unit, kind): sample
        for (stage, kind), figures in of_stage.items()
        for (metric, scope, unit, _), sample in sorted(figures.items(), key=lambda item: len(item[1].values))
    }
    return Samples(of_one_revision, reporting)


def kinds_of(nodes: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """For each node by stage what is compared with each other; number of GPUs and workload only where they differ. A
    node without facts is of the kind of all others, where these are of one: it is missing among them."""
    described = [node for node in nodes if _has_facts(node)]
    skus = {_sku(node) for node in described}
    counts: dict[str, set[int]] = defaultdict(set)
    workloads: dict[tuple[str, str], set[str]] = defaultdict(set)
    for node in described:
        counts[_sku(node)].add(_gpus(node))
        for stage in node["stages"]:
            if stage.get("workload"):
                workloads[_sku(node), stage["name"]].add(stage["workload"])
    kinds = []
    for node in nodes:
        facts = _has_facts(node)
        sku = min(skus) if not facts and len(skus) == 1 else _sku(node)
        machine = sku if len(counts[sku]) < 2 else f"{sku} x {_gpus(node)}" if facts else f"{sku}, no facts"
        kinds.append(
            {
                stage["name"]: machine
                if len(workloads[sku, stage["name"]]) < 2
                else f"{machine}, {stage.get('workload') or 'no workload'}"
                for stage in node["stages"]
            }
        )
    return kinds


def _has_facts(node: Mapping[str, Any]) -> bool:
    return bool(node.get("catalogue_sku") or node["accelerator"] != "unknown")


def _sku(node: Mapping[str, Any]) -> str:
    return str(node.get("catalogue_sku") or node["accelerator"])


def _gpus(node: Mapping[str, Any]) -> int:
    return len(node["identity"].get("gpus", ()))


@dataclass(frozen=True)
class Distribution:
    """``outliers`` are all of them, the furthest first. ``standard_deviation`` is that of a sample (n - 1)."""

    count: int
    nodes: int
    mean: float
    standard_deviation: float
    min: float
    p1: float
    p5: float
    p50: float
    p95: float
    p99: float
    max: float
    #: 1.4826 x the median absolute deviation.
    robust_deviation: float
    outliers: list[Value]

    @property
    def variation(self) -> float | None:
        """Standard deviation by mean; None where the mean is 0."""
        return self.standard_deviation / abs(self.mean) if self.mean else None

    def change(self, value: float) -> float | None:
        """From the median, relative to it; None where that is 0."""
        return relative(value, self.p50)


def relative(value: float, base: float) -> float | None:
    """How much ``value`` is over ``base``, as a part of it; None where ``base`` is 0 or too small to divide by."""
    change = (value - base) / abs(base) if base else math.inf
    return change if math.isfinite(change) else None


def distribution(values: Sequence[Value]) -> Distribution:
    """How the values (at least one) are spread. p01 to p99 are values that were measured (nearest rank)."""
    numbers = sorted(value for value, _ in values)
    median = statistics.median(numbers)
    spread = MAD_TO_DEVIATION * statistics.median(abs(value - median) for value in numbers)
    mean = math.fsum(numbers) / len(numbers)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in numbers) / max(1, len(numbers) - 1))
    most = max(DEVIATIONS * spread, LEAST_DIFFERENCE * abs(median))
    outliers = [pair for pair in values if abs(pair[0] - median) > most]
    outliers.sort(key=lambda pair: -abs(pair[0] - median))
    return Distribution(
        len(numbers), len({place[0] for _, place in values}), mean, deviation, numbers[0], _percentile(numbers, 0.01),
        _percentile(numbers, 0.05), median, _percentile(numbers, 0.95), _percentile(numbers, 0.99), numbers[-1], spread,
        outliers,
    )  # fmt: skip


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


#: Up to so many values in the smaller group, and steps of the statistic, the distribution is counted, not approximated.
_EXACT_GROUP, _EXACT_STEPS = 20, 10_000


def midranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    begin = 0
    for _, tied in itertools.groupby(order, key=values.__getitem__):
        places = list(tied)
        rank = begin + (len(places) + 1) / 2
        for index in places:
            ranks[index] = rank
        begin += len(places)
    return ranks


def mann_whitney(rank_sum: float, count: int, total: int) -> float:
    """Two-sided p of ``count`` of ``total`` values having ranks (midranks) of this sum, if all came from one source.
    Ties make it larger than it need be, never smaller."""
    rest = total - count
    statistic = rank_sum - count * (count + 1) / 2
    low = math.ceil(min(statistic, count * rest - statistic))  # of a half, which ties make, the one nearer the middle
    middle = count * rest / 2
    if low >= middle:
        return 1.0
    few = min(count, rest)
    if few <= _EXACT_GROUP and count * rest <= _EXACT_STEPS:
        return min(1.0, 2 * _cumulated(few, total)[low] / math.comb(total, few))
    deviation = math.sqrt(count * rest * (total + 1) / 12)
    return min(1.0, math.erfc((middle - low - 0.5) / deviation / math.sqrt(2)))


def least_p(count: int, total: int) -> float:
    """The p of a group that lies beyond all others: less is not possible."""
    return min(1.0, 2 / math.comb(total, count))


@functools.lru_cache(maxsize=128)
def _cumulated(few: int, total: int) -> list[int]:
    """How many choices of ``few`` of ``total`` ranks have a statistic of at most 0, 1, 2 and so on, to its middle. The
    counts are the coefficients of a Gaussian binomial."""
    steps = few * (total - few) // 2 + 1
    counts = [1] + [0] * (steps - 1)
    for index in range(1, few + 1):
        up, down = total - few + index, index
        for spot in range(steps - 1, up - 1, -1):
            counts[spot] -= counts[spot - up]
        for spot in range(down, steps):
            counts[spot] += counts[spot - down]
    return list(itertools.accumulate(counts))


def centred(values: Sequence[float]) -> list[float] | None:
    """Midranks about 0, of length 1, so that a product of two is Spearman's rho; None where all values are equal."""
    ranks = midranks(values)
    middle = (len(values) + 1) / 2
    moved = [rank - middle for rank in ranks]
    length = math.sqrt(sum(map(operator.mul, moved, moved)))
    return [one / length for one in moved] if length else None


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Rho of two that ``centred`` made."""
    product: float = sum(map(operator.mul, left, right))
    return max(-1.0, min(1.0, product))


def spearman_p(rho: float, count: int) -> float:
    """Two-sided p of this rho of ``count`` independent pairs (at least 4), by Fisher's transformation."""
    if abs(rho) >= 1:
        return 0.0
    return math.erfc(abs(math.atanh(rho)) * math.sqrt((count - 3) / 1.06) / math.sqrt(2))


def benjamini_hochberg(probabilities: Sequence[float]) -> list[float]:
    """For each p its q: the share of false ones to be expected among all that are as probable or less."""
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__, reverse=True)
    q_values = [0.0] * len(probabilities)
    least = 1.0
    for passed, index in enumerate(order):
        least = min(least, probabilities[index] * len(probabilities) / (len(probabilities) - passed))
        q_values[index] = least
    return q_values
