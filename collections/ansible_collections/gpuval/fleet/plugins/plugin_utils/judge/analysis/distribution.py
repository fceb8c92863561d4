"""The distribution of each figure over a fleet: its values on all nodes of a kind, their spread and outliers. Pure.

A figure is one metric of one stage, in one unit, of whole nodes or of their parts (GPUs, ranks, links), on nodes of
one kind: the same SKU, number of GPUs and workload. Values count from stages that ran to their end.
"""

import functools
import itertools
import math
import operator
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...core.grouping import values_by_key
from ..peer_statistics import Peers

#: Least number of nodes for a figure's distribution.
MIN_NODES = 3
#: An outlier is further from the median than both: this many robust deviations, and this part of the median.
DEVIATIONS = 6.0
LEAST_DIFFERENCE = 0.02
#: Largest value that counts: its square does not overflow, and no measurement comes near.
GREATEST = 1e100
#: States of stages that ran to their end: other stages have partial figures.
_ENDED = frozenset({"success", "failure"})

#: Where a value was measured: (index of the node in the report, part such as gpu:3).
Place = tuple[int, str]
Value = tuple[float, Place]


class Key(NamedTuple):
    """Identifies a figure of a fleet. ``scope``: the kind of part (node, gpu, rank, link); ``kind``: see `kinds_of`."""

    stage: str
    metric: str
    scope: str
    unit: str
    kind: str


@dataclass
class FigureSample:
    """The values of one figure in the order of nodes, the node and part of each, and of those without a number."""

    numbers: list[float] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    not_numbers: list[Place] = field(default_factory=list)

    @property
    def values(self) -> Iterator[Value]:
        return zip(self.numbers, self.places, strict=True)

    def by_place(self) -> dict[Place, float]:
        return dict(zip(self.places, self.numbers, strict=True))

    @functools.cached_property
    def medians(self) -> dict[int, float]:
        """``{index of a node: median of its parts' values}``."""
        parts = values_by_key((number, value) for value, (number, _) in self.values)
        return {number: its[0] if len(its) == 1 else statistics.median(its) for number, its in parts.items()}

    def missing(self, nodes: Iterable[int]) -> int:
        """Number of parts of these nodes without a value, if each node has as many parts as most report."""
        parts = Counter(place[0] for place in self.places)
        parts.update(place[0] for place in self.not_numbers)
        counts = Counter(parts.values())
        usual = max(counts, key=lambda count: (counts[count], count))
        return sum(max(0, usual - parts[number]) for number in nodes)


@dataclass(frozen=True)
class Samples:
    """All figures of a fleet. ``asked``: for (stage, kind) the indexes of nodes that were asked to run the stage."""

    figures: Mapping[Key, FigureSample]
    asked: Mapping[tuple[str, str], Sequence[int]]


def samples(nodes: Sequence[Mapping[str, Any]]) -> Samples:
    """Collect every figure of the nodes of a report (``nodes`` of gpuval.report/1)."""
    kinds = kinds_of(nodes)
    scopes: dict[str, str] = {}
    of_stage: dict[tuple[str, str], dict[tuple[str, str, str, int], FigureSample]] = defaultdict(
        lambda: defaultdict(FigureSample)
    )
    reporting: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, node in enumerate(nodes):
        places: dict[str, Place] = {}  # one object for each part saves memory: a fleet has a million values
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
                    sample.numbers.append(value)
                    sample.places.append(known_part)
                else:
                    sample.not_numbers.append(known_part)
    # Keep the revision of each figure that most parts have: different revisions are not compared.
    of_one_revision = {
        Key(stage, metric, scope, unit, kind): sample
        for (stage, kind), figures in of_stage.items()
        for (metric, scope, unit, _), sample in sorted(
            figures.items(), key=lambda item: (len(item[1].numbers), item[0])
        )
    }
    return Samples(of_one_revision, reporting)


def kinds_of(nodes: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """For each node ``{stage: kind}``; only figures of one kind are compared. A kind includes number of GPUs and
    workload if nodes differ there. A node without facts gets the only kind of all others, where it is missing."""
    described = [node for node in nodes if _has_facts(node)]
    sizes = {(_sku_of(node), _gpu_count(node)) for node in described}
    count_sizes = Counter(sku for sku, _ in sizes)
    stages = ((_sku_of(node), stage) for node in described for stage in node["stages"] if stage.get("workload"))
    workloads = {(sku, stage["name"], stage["workload"]) for sku, stage in stages}
    count_workloads = Counter((sku, name) for sku, name, _ in workloads)
    kinds = []
    for node in nodes:
        facts = _has_facts(node)
        sku = min(count_sizes) if not facts and len(count_sizes) == 1 else _sku_of(node)
        machine = sku if count_sizes[sku] < 2 else f"{sku} x {_gpu_count(node)}" if facts else f"{sku}, no facts"
        named = ((stage["name"], stage.get("workload") or "no workload") for stage in node["stages"])
        kind_of = {name: machine if count_workloads[sku, name] < 2 else f"{machine}, {text}" for name, text in named}
        kinds.append(kind_of)
    return kinds


def _has_facts(node: Mapping[str, Any]) -> bool:
    return bool(node.get("catalogue_sku") or node["accelerator"] != "unknown")


def _sku_of(node: Mapping[str, Any]) -> str:
    return str(node.get("catalogue_sku") or node["accelerator"])


def _gpu_count(node: Mapping[str, Any]) -> int:
    return len(node["identity"].get("gpus", ()))


class Distribution:
    """The spread of a figure's values, of which there is at least one: p1 to p99 are measured values (nearest rank).
    ``outliers``: all, furthest first. ``standard_deviation``: of a sample (n - 1)."""

    def __init__(self, sample: FigureSample) -> None:
        numbers = sorted(sample.numbers)
        peers = Peers.around(numbers)
        self.count, self.nodes = len(numbers), len({place[0] for place in sample.places})
        self.mean = math.fsum(numbers) / len(numbers)
        squares = math.fsum((value - self.mean) ** 2 for value in numbers)
        self.standard_deviation = math.sqrt(squares / max(1, len(numbers) - 1))
        self.min, self.p1, self.p5 = numbers[0], _percentile(numbers, 0.01), _percentile(numbers, 0.05)
        self.p50, self.p95, self.p99 = peers.median, _percentile(numbers, 0.95), _percentile(numbers, 0.99)
        self.max = numbers[-1]
        #: 1.4826 x the median absolute deviation.
        self.robust_deviation = peers.deviation
        far = peers.far(LEAST_DIFFERENCE, DEVIATIONS)
        outliers = [pair for pair in sample.values if abs(pair[0] - peers.median) > far]
        self.outliers = sorted(outliers, key=lambda pair: -abs(pair[0] - peers.median))

    @property
    def variation(self) -> float | None:
        """Standard deviation divided by mean; None if the mean is 0."""
        return self.standard_deviation / abs(self.mean) if self.mean else None

    def change(self, value: float) -> float | None:
        """The value's relative distance from the median; None if the median is 0."""
        return relative(value, self.p50)


def relative(value: float, base: float) -> float | None:
    """The relative difference of ``value`` from ``base``; None if ``base`` is 0 or too small to divide by."""
    change = (value - base) / abs(base) if base else math.inf
    return change if math.isfinite(change) else None


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The value at this share of the ordered values (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


#: The p of a Mann-Whitney test is exact up to this many values in the smaller group and steps of the statistic.
_EXACT_GROUP, _EXACT_STEPS = 20, 10_000


def midranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 1; equal values share the mean of theirs."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + 1 + bisect_right(ordered, value)) / 2 for value in values]


def mann_whitney(rank_sum: float, count: int, total: int) -> float:
    """Two-sided p of a Mann-Whitney test: that ``count`` of ``total`` values have this sum of midranks by chance. Ties
    make it larger than it need be, never smaller."""
    rest = total - count
    statistic = rank_sum - count * (count + 1) / 2
    low = math.ceil(min(statistic, count * rest - statistic))  # ties make halves: round towards the middle
    middle = count * rest / 2
    if low >= middle:
        return 1.0
    few = min(count, rest)
    if few <= _EXACT_GROUP and count * rest <= _EXACT_STEPS:
        return min(1.0, 2 * _cumulated_counts(few, total)[low] / math.comb(total, few))
    deviation = math.sqrt(count * rest * (total + 1) / 12)
    return min(1.0, math.erfc((middle - low - 0.5) / deviation / math.sqrt(2)))


def least_p(count: int, total: int) -> float:
    """The least possible p of a group of ``count`` of ``total`` values: that of one beyond all others."""
    return min(1.0, 2 / math.comb(total, count))


@functools.lru_cache(maxsize=128)
def _cumulated_counts(few: int, total: int) -> list[int]:
    """How many choices of ``few`` of ``total`` ranks have a Mann-Whitney statistic of at most 0, 1, 2 ... up to its
    middle. The counts are the coefficients of a Gaussian binomial."""
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
    """Midranks around 0, of length 1, so that the product of two is Spearman's rho; None if all values are equal."""
    ranks = midranks(values)
    middle = (len(values) + 1) / 2
    moved = [rank - middle for rank in ranks]
    length = math.sqrt(sum(map(operator.mul, moved, moved)))
    return [one / length for one in moved] if length else None


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's rho of two lists that ``centred`` returned."""
    product: float = sum(map(operator.mul, left, right))
    return max(-1.0, min(1.0, product))


def spearman_p(rho: float, count: int) -> float:
    """Two-sided p of this rho from ``count`` independent pairs (at least 4), by Fisher's transformation."""
    if abs(rho) >= 1:
        return 0.0
    return math.erfc(abs(math.atanh(rho)) * math.sqrt((count - 3) / 1.06) / math.sqrt(2))


def benjamini_hochberg(probabilities: Sequence[float]) -> list[float]:
    """For each p its q: the expected share of false positives among all tests with this p or less."""
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__, reverse=True)
    q_values = [0.0] * len(probabilities)
    least = 1.0
    for passed, index in enumerate(order):
        least = min(least, probabilities[index] * len(probabilities) / (len(probabilities) - passed))
        q_values[index] = least
    return q_values
