"""How each figure is spread over the fleet, and who stands out. Pure.

A figure is one metric of one stage on nodes of one SKU, of whole nodes or of their GPUs. Outliers are told by distance
from the median in robust deviations (1.4826 x median absolute deviation) and by a least relative difference. They are a
help for the eye: what decides are the checks.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuval.fleet.plugins.plugin_utils import units
from ansible_collections.gpuval.fleet.plugins.plugin_utils.peers import MAD_TO_DEVIATION
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.page.encode import GREATEST, pairs, short

DEVIATIONS = 6.0
LEAST_DIFFERENCE = 0.02
MIN_NODES = 3
MAX_FIGURES = 120
MAX_OUTLIERS = 12
BINS = 48
#: The plot shows so many robust deviations to each side; what lies beyond stands at its edge.
SHOWN_DEVIATIONS = 14.0

Place = tuple[int, str]
Key = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Figure:
    """``values`` are (value, (number of the node, scope)) in the order of nodes, ``outliers`` the furthest first."""

    stage: str
    metric: str
    scope: str
    unit: str
    sku: str
    judged: bool
    values: list[tuple[float, Place]]
    low: float
    median: float
    high: float
    mean: float
    deviation: float
    p05: float
    p95: float
    shown: tuple[float, float]
    outliers: list[tuple[float, Place]]
    outlier_count: int

    @property
    def variation(self) -> float | None:
        """Standard deviation by mean; None where the mean is 0."""
        return self.deviation / abs(self.mean) if self.mean else None

    def human(self, value: float) -> str:
        return units.human(value, self.unit)

    def bins(self) -> list[int]:
        """How many values lie in each of ``BINS`` equal steps of the range that is shown."""
        counts = [0] * BINS
        for value, _ in self.values:
            counts[min(BINS - 1, int(self.share(value) * BINS))] += 1
        return counts

    def share(self, value: float) -> float:
        """Where the value stands in the range that is shown: 0 to 1."""
        low, high = self.shown
        return min(1.0, max(0.0, (value - low) / (high - low)))


@dataclass(frozen=True)
class Figures:
    """``figures`` that differ; how many are the ``same`` everywhere, how many were ``left_out``."""

    figures: list[Figure]
    same: int
    left_out: int


def figures_of(report: Mapping[str, Any]) -> Figures:
    """All figures of the report that differ between nodes or GPUs, those with outliers and criteria first."""
    judged = {(check["stage"], check["metric"]) for node in report["nodes"][:50] for check in node["checks"]}
    found, same = [], 0
    for key, values in _collected(report):
        if len({place[0] for _, place in values}) < MIN_NODES:
            continue
        numbers = [value for value, _ in values]
        if min(numbers) == max(numbers):
            same += 1
            continue
        found.append(_figure(key, values, (key[0], key[1]) in judged))
    found.sort(key=lambda one: (not (one.judged and one.outlier_count), not one.judged))
    kept = found[:MAX_FIGURES]
    order = {key: index for index, key in enumerate(dict.fromkeys((one.stage, one.metric) for one in found))}
    kept.sort(key=lambda one: (not (one.judged and one.outlier_count), order[one.stage, one.metric], one.sku))
    return Figures(kept, same, len(found) - len(kept))


def _collected(report: Mapping[str, Any]) -> Iterator[tuple[Key, list[tuple[float, Place]]]]:
    collected: dict[Key, list[tuple[float, Place]]] = defaultdict(list)
    for number, node in enumerate(report["nodes"]):
        sku = node.get("catalogue_sku") or node["accelerator"]
        for stage, metrics in node["metrics"].items():
            for metric in metrics:
                value, scope = metric["value"], metric["scope"]
                if type(value) not in (int, float) or not abs(value) < GREATEST:
                    continue
                kind = scope.partition(":")[0]
                if kind == "link":
                    continue
                collected[stage, metric["name"], kind, metric["unit"], sku].append((value, (number, scope)))
    yield from collected.items()


def _figure(key: Key, values: list[tuple[float, Place]], judged: bool) -> Figure:
    stage, metric, scope, unit, sku = key
    numbers = sorted(value for value, _ in values)
    median = statistics.median(numbers)
    spread = MAD_TO_DEVIATION * statistics.median(abs(value - median) for value in numbers)
    mean = math.fsum(numbers) / len(numbers)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in numbers) / max(1, len(numbers) - 1))
    most = max(DEVIATIONS * spread, LEAST_DIFFERENCE * abs(median))
    outliers = sorted((one for one in values if abs(one[0] - median) > most), key=lambda one: -abs(one[0] - median))
    return Figure(
        stage, metric, scope, unit, sku, judged, values, numbers[0], median, numbers[-1], mean, deviation,
        _percentile(numbers, 0.05), _percentile(numbers, 0.95), _shown_range(numbers, median, spread),
        outliers[:MAX_OUTLIERS], len(outliers),
    )  # fmt: skip


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _shown_range(ordered: Sequence[float], median: float, spread: float) -> tuple[float, float]:
    low, high = ordered[0], ordered[-1]
    if spread > 0:
        wide = max(SHOWN_DEVIATIONS * spread, 2 * LEAST_DIFFERENCE * abs(median))
        low, high = max(low, median - wide), min(high, median + wide)
    return (low, high) if high - low > 1 / GREATEST else (low, low + 1.0)


def as_data(figures: Sequence[Figure], nodes: int) -> list[dict[str, Any]]:
    """The values of each figure for the chart of all nodes: of GPUs the scopes in the order of the first node."""
    data = []
    for one in figures:
        scopes = list(dict.fromkeys(scope for _, (_, scope) in one.values))[:64]
        row_of = {scope: row for row, scope in enumerate(scopes)}
        rows: list[list[float | None]] = [[None] * nodes for _ in scopes]
        for value, (number, scope) in one.values:
            if scope in row_of:
                rows[row_of[scope]][number] = value
        low, high = one.shown
        data.append(
            {
                "l": short(float(low)),
                "h": short(float(high)),
                "m": short(float(one.median)),
                "u": one.unit,
                "r": {scope: pairs(row, low, high) for scope, row in zip(scopes, rows, strict=True)},
            }
        )
    return data
