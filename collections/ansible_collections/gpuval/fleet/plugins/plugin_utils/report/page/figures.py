"""The figures of a fleet as report.html shows them: each with its plot, its outliers, and the values of every node.
Outliers guide the eye; only checks decide. Pure functions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...core import units
from ...judge.analysis.distribution import LEAST_DIFFERENCE, MIN_NODES, Distribution, FigureSample, Key, Value, samples
from .encode import GREATEST, pairs, short

MAX_FIGURES = 120
MAX_OUTLIERS = 12
#: Maximum number of values beyond a plot's range that the page stores exactly.
MAX_BEYOND = 300
BINS = 48
#: Range of a plot to each side of the median, in robust deviations; values beyond are drawn at the plot's edge.
SHOWN_DEVIATIONS = 14.0


class PlottedFigure:
    """A figure of the fleet with its plot. ``values`` are in the order of nodes; ``shown``: (low, high) of the plot."""

    def __init__(self, key: Key, sample: FigureSample, *, judged: bool) -> None:
        self.key, self.judged, self.values = key, judged, list(sample.values)
        self.spread = Distribution(sample)
        self.shown = _shown_range(self.spread)

    @property
    def metric(self) -> str:
        return self.key.metric

    @property
    def outliers(self) -> list[Value]:
        return self.spread.outliers[:MAX_OUTLIERS]

    def human(self, value: float) -> str:
        return units.human(value, self.key.unit)

    def x(self, value: float) -> float:
        """The horizontal position of a value in a plot that is 200 units wide."""
        return round(self.share(value) * 200, 1)

    def path(self) -> str:
        """The SVG path of the histogram, 28 high: number of values in each of ``BINS`` steps of the shown range."""
        counts, wide = Counter(min(BINS - 1, int(self.share(value) * BINS)) for value, _ in self.values), 200 / BINS
        most = max(counts.values())
        bars = [(index, round(26 * count / most, 1) or 0.6) for index, count in sorted(counts.items())]
        return "".join(f"M{round(index * wide, 1)} 28v-{height}h{wide - 0.6:.1f}v{height}z" for index, height in bars)

    def share(self, value: float) -> float:
        """Position of a value in the plot's range, from 0 to 1."""
        low, high = self.shown
        return min(1.0, max(0.0, (value - low) / (high - low)))


class PlottedFigures:
    """The figures of a report that differ between nodes or GPUs, those with outliers and criteria first. ``same``:
    number of figures equal everywhere; ``left_out``: number beyond the limit."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        judged = judged_figures(report)
        plotted, self.same = list[PlottedFigure](), 0
        for key, sample in samples(report["nodes"]).figures.items():
            if key.scope == "link" or len({place[0] for place in sample.places}) < MIN_NODES:
                continue
            if min(sample.numbers) == max(sample.numbers):
                self.same += 1
                continue
            plotted.append(PlottedFigure(key, sample, judged=(key.stage, key.metric) in judged))
        plotted.sort(key=lambda plot: (not (plot.judged and plot.outliers), not plot.judged))
        order = {key: index for index, key in enumerate(dict.fromkeys(plot.key[:2] for plot in plotted))}
        self.left_out = max(0, len(plotted) - MAX_FIGURES)
        self.figures = sorted(
            plotted[:MAX_FIGURES],
            key=lambda plot: (not (plot.judged and plot.outliers), order[plot.key[:2]], plot.key.kind),
        )


def judged_figures(report: Mapping[str, Any]) -> set[tuple[str, str | None]]:
    """(stage, metric) of each figure that a check of a node judges."""
    return {(check["stage"], check["metric"]) for node in report["nodes"] for check in node["checks"]}


def _shown_range(spread: Distribution) -> tuple[float, float]:
    low, high = spread.min, spread.max
    if spread.robust_deviation > 0:
        wide = max(SHOWN_DEVIATIONS * spread.robust_deviation, 2 * LEAST_DIFFERENCE * abs(spread.p50))
        low, high = max(low, spread.p50 - wide), min(high, spread.p50 + wide)
    return (low, high) if high - low > 1 / GREATEST else (low, low + 1.0)


def as_data(figures: Sequence[PlottedFigure], node_count: int) -> list[dict[str, Any]]:
    """Each figure as the page's script reads it, with ``node_count`` values for each scope (node, gpu:0...)."""
    data = []
    for plot in figures:
        scopes = list(dict.fromkeys(scope for _, (_, scope) in plot.values))[:64]
        row_of = {scope: row for row, scope in enumerate(scopes)}
        rows: list[list[float | None]] = [[None] * node_count for _ in scopes]
        for value, (number, scope) in plot.values:
            if scope in row_of:
                rows[row_of[scope]][number] = value
        low, high = plot.shown
        beyond = [value for value in plot.spread.outliers if not low <= value[0] <= high and value[1][1] in row_of]
        data.append(
            {
                "n": [plot.key.stage, plot.metric, plot.key.scope, plot.key.kind],
                "d": short(float(plot.spread.robust_deviation)),
                "o": [[number, row_of[scope], short(value)] for value, (number, scope) in beyond[:MAX_BEYOND]],
                "l": short(float(low)), "h": short(float(high)), "m": short(float(plot.spread.p50)), "u": plot.key.unit,
                "r": {scope: pairs(row, low, high) for scope, row in zip(scopes, rows, strict=True)},
            }
        )  # fmt: skip
    return data
