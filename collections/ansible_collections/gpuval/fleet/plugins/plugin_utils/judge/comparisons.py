"""Compare each figure of a node with that of similar nodes, and warn of outliers in figures that no criterion compares.

A figure is compared as the logarithm of its ratio to the median of the same part (gpu:3 with gpu:3). A node is an
outlier if it is worse by more than the margin (``comparisons`` of the stage's traits) and by more spreads than healthy
nodes reach. How far these reach is learned from figures better than the median, which a slow node does not change.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core import extensions, units
from ..core.extensions import short_path
from ..core.grouping import values_by_key
from ..core.stage_traits import OF_ALL, table_row
from ..core.text import natural_order, some_of
from ..records import environment
from .check import FACTS, Informational, Subject, is_informational, revision_of
from .entries import Entry, gang_of, own_entry
from .peer_groups import revision_words
from .peer_statistics import deviation_text

#: Fewer nodes than this are not compared: they would not show which of them is right.
MIN_NODES = 4
#: In a fleet without faults, so many figures are expected to be flagged as outliers by chance.
EXPECTED_FALSE = 0.01
#: The tails of a distribution of figures begin at ``TAIL`` spreads. Until a fleet shows its own tails, they are assumed
#: to fall as a power law with ``EXPONENT``. ``PRIOR``: how many figures this assumption counts as.
TAIL, EXPONENT, PRIOR = 3.0, 9.0, 5
#: Cap on how much one figure lengthens the estimated tails: a figure far too good (a cached model) is no evidence.
MAX_EXCESS = math.log(4)
#: The spread is that of values without an eighth at each end. Normal noise cut so keeps this share of its deviation.
TRIMMED, TRIMMED_DEVIATION = 8, 0.6
#: Weight, in nodes, of the usual spread of similar figures when it is averaged with a figure's own spread.
USUAL_NODES = 8
#: The ratio that stands for a figure of 0, whose logarithm does not exist.
LEAST_RATIO = 1e-6
_REMEDY = (
    "Compare the part, its settings and its load with those of other nodes, and measure again: --limit {node}. If the "
    "difference is intended, list the metric as informational in a file of gpuval_criteria"
)


class FigureKey(NamedTuple):
    """A figure that nodes are compared by. ``kind``: what these nodes share, SKU first. ``scope``: node, gpu, ..."""

    kind: tuple[str, ...]
    stage: str
    metric: str
    scope: str
    unit: str


class PartValues(NamedTuple):
    """The values of one figure and part (gpu:3) on all nodes. ``nodes``: for each value the index of its node."""

    nodes: list[int]
    values: list[float]


class Deviation(NamedTuple):
    """How much worse a part is than its median over all nodes (``usual``). ``size``: logarithm of the values' ratio."""

    size: float
    part: str
    value: float
    usual: float


class ComparedFigure:
    """One figure on all nodes of a kind. ``best``: for each node index the lead of its best part over the median, as a
    logarithm. ``far``: for each node index its parts that are worse by more than the margin."""

    def __init__(self, rule: "ComparisonRule", parts: Mapping[str, PartValues]) -> None:
        self.rule, self.parts = rule, len(parts)
        self.nodes = len({number for column in parts.values() for number in column.nodes})
        together = [value for column in parts.values() for value in column.values]
        self.count, self.spread = len(together), 0.0
        self.best: dict[int, float] = {}
        self.far: dict[int, list[Deviation]] = defaultdict(list)
        if self.nodes >= MIN_NODES and min(together) != max(together):
            self._compare(parts, statistics.median(together))

    def _compare(self, parts: Mapping[str, PartValues], all_parts: float) -> None:
        rule, sizes = self.rule, list[float]()
        sign = -1 if rule.worse == "lower" else 1
        for part, column in parts.items():
            usual = statistics.median(column.values) if len(column.values) >= MIN_NODES else all_parts
            base = usual + rule.offset
            for number, value in zip(column.nodes, column.values, strict=True) if base > 0 else ():
                size = sign * math.log(max(LEAST_RATIO, (value + rule.offset) / base))
                sizes.append(size)
                worse = abs(size) if rule.worse == "either" else size
                if worse > rule.least:
                    self.far[number].append(Deviation(worse, part, value, usual))
                elif worse < 0:
                    self.best[number] = max(-worse, self.best.get(number, 0.0))
        cut = len(sizes) // TRIMMED
        middle = sorted(sizes)[cut : len(sizes) - cut]
        if middle and middle[0] != middle[-1]:
            self.spread = statistics.pstdev(middle) / TRIMMED_DEVIATION


def compare(
    subjects: Sequence[Subject], informational: Iterable[Informational] = ()
) -> tuple[dict[str, list[Entry]], list[Entry]]:
    """Compare each figure with other nodes. Returns the warnings of each outlier, ``{node: entries}``, and for the
    fleet one entry per SKU. Metrics in ``informational`` are not compared."""
    figures: dict[FigureKey, ComparedFigure] = {}
    for key, parts in _collected(subjects, tuple(informational)).items():
        figure = ComparedFigure(comparison_rule_of(key.metric), parts)
        if figure.nodes >= MIN_NODES:
            figures[key] = figure
    _moderate(figures)
    of_nodes: dict[str, list[Entry]] = defaultdict(list)
    of_fleet = []
    for sku in sorted({key.kind[0] for key in figures}):
        of_sku = {key: figures[key] for key in sorted(figures) if key.kind[0] == sku}
        limit = _limit(of_sku.values())
        named = [pair for key, figure in of_sku.items() for pair in _entries(key, figure, limit, subjects)]
        for node, entry in named:
            of_nodes[node].append(entry)
        count = sum(figure.count for figure in of_sku.values())
        names: list[str] = sorted({node for node, _ in named}, key=natural_order)
        far = f"far off: {some_of(names)}" if names else "none is far off"
        reason = (
            f"{sku}: {count:,} comparisons of {len(of_sku):,} figures between nodes; a healthy node is within "
            f"{units.number_text(limit)} spreads; {far}"
        )
        verdict = "warn" if names else "pass"
        of_fleet.append(
            _advisory_entry("figures_of_peers", FACTS, verdict, reason, part="fleet", source=short_path(OF_ALL))
        )
    return of_nodes, of_fleet


def _collected(
    subjects: Sequence[Subject], informational: tuple[Informational, ...]
) -> dict[FigureKey, dict[str, PartValues]]:
    """``{figure: {part: values of all nodes}}``, without stages that failed or ran beside other work on the GPUs."""
    figures: dict[FigureKey, dict[str, PartValues]] = defaultdict(dict)
    scopes: dict[str, str] = {}
    compared: dict[tuple[str, str], str] = {}
    for number, subject in enumerate(subjects):
        facts = subject.records[FACTS]["environment"] if FACTS in subject.records else {}
        machine = (environment.texts(facts, path) for path in ("firmware.product_name", "cpu.model"))
        model = (subject.kind, *map(", ".join, machine))
        for stage, record in subject.records.items():
            if record["state"] != "success" or environment.accelerator_users(record["environment"]):
                continue
            shape = record["fingerprints"].get("gang_shape", "")
            setup = (*model, f"{subject.gpus} GPUs", record["workload"], shape)
            course = next((text for name, text in record["fingerprints"].items() if name.endswith("_course")), "")
            kinds = {"model": model, "setup": setup, "course": (*setup, course)}
            for metric in record["metrics"]:
                name, part, value = metric["name"], metric["scope"], metric["value"]
                among = compared.get((stage, name))
                if among is None:
                    rule = comparison_rule_of(name)
                    skipped = not rule.worse or is_informational(stage, name, informational)
                    among = compared[stage, name] = "" if skipped else rule.among
                if not among or value is None:
                    continue
                scope = scopes.get(part) or scopes.setdefault(part, part.partition(":")[0])
                kind = (*kinds[among], *revision_words(revision_of(metric)))
                parts = figures[FigureKey(kind, stage, name, scope, metric["unit"])]
                column = parts.get(part) or parts.setdefault(part, PartValues([], []))
                column.nodes.append(number)
                column.values.append(value)
    return figures


def _moderate(figures: Mapping[FigureKey, ComparedFigure]) -> None:
    """Draw each figure's spread to that of similar figures: of few nodes it is often small by chance (Smyth 2004)."""
    spread = ((key, figure) for key, figure in figures.items() if figure.spread)
    similar = values_by_key(((key.kind, key.stage, *figure.rule.metrics), figure) for key, figure in spread)
    for alike in similar.values():
        usual = statistics.median(figure.spread for figure in alike)
        for figure in alike:
            squares = USUAL_NODES * usual**2 + figure.nodes * figure.spread**2
            figure.spread = math.sqrt(squares / (USUAL_NODES + figure.nodes))


def _limit(figures: Iterable[ComparedFigure]) -> float:
    """The most spreads by which healthy nodes differ from the median, from the tails of good figures (Hill 1975)."""
    spreads = [size / figure.spread for figure in figures if figure.spread for size in figure.best.values()]
    excesses = [min(MAX_EXCESS, math.log(size / TAIL)) for size in spreads if size > TAIL]
    exponent = (len(excesses) + PRIOR) / (math.fsum(excesses) + PRIOR / EXPONENT)
    return float(TAIL * math.pow((len(excesses) + 1) / EXPECTED_FALSE, 1 / exponent))


def _entries(
    key: FigureKey, figure: ComparedFigure, limit: float, subjects: Sequence[Subject]
) -> Iterator[tuple[str, Entry]]:
    """(node name, warning) for each node with parts that are worse by more than ``limit`` spreads. The warning is about
    the worst part, or about the node if most of its parts are worse."""
    for number, parts in figure.far.items():
        far = [deviation for deviation in parts if deviation.size > limit * figure.spread]
        if not far:
            continue
        worst, subject = max(far), subjects[number]
        beside = deviation_text((worst.value - worst.usual) / worst.usual) if worst.usual > 0 else "beside"
        reason = (
            f"{key.metric} {units.human(worst.value, key.unit)}, {beside} {units.human(worst.usual, key.unit)}, "
            f"the median of {figure.nodes} nodes ({' '.join(filter(None, key.kind))}; spread "
            f"{units.number_text(100 * figure.spread)} %)"
        )
        if len(far) > 1:
            reason = f"{len(far)} of {figure.parts} {key.scope}s, most {worst.part}: {reason}"
        gang = gang_of(subject.records[key.stage])
        name = f"{key.metric if key.metric.startswith(key.stage) else f'{key.stage}_{key.metric}'}_peers"
        yield subject.name, _advisory_entry(
            name, key.stage, "warn", f"{gang}: {reason}" if gang else reason, metric=key.metric,
            part="node" if len(far) > 1 and 2 * len(far) > figure.parts else worst.part,
            value=worst.value, unit=key.unit, remedy=_REMEDY.format(node=subject.name),
            source=figure.rule.file,
            expected=f"within {units.number_text(100 * figure.rule.margin)} % of the other nodes of its kind",
        )  # fmt: skip


def _advisory_entry(name: str, stage: str, verdict: str, reason: str, **fields: Any) -> Entry:
    return own_entry(name, stage, "outlier", verdict, reason, severity="advisory", **fields)


def add_unjudged(checks: list[Entry], of_figures: Sequence[Entry]) -> list[Entry]:
    """A node's checks, and its outliers among other nodes (``of_figures``) that no criterion failed or warned about."""
    faulty = {(check["stage"], check["metric"]) for check in checks if check["verdict"] in ("fail", "warn")}
    return [*checks, *(entry for entry in of_figures if (entry["stage"], entry["metric"]) not in faulty)]


@dataclass(frozen=True)
class ComparisonRule:
    """How nodes are compared by some metrics: a row of ``comparisons`` in a stage's traits. ``worse``: which side is
    bad (lower, higher, either); if empty, the metrics are not compared. ``margin`` is relative."""

    metrics: Sequence[str]
    worse: str = ""
    margin: float = 0.25
    offset: float = 0.0
    among: str = "setup"
    #: The file that has the rule, as a report names it.
    file: str = ""

    @property
    def least(self) -> float:
        """The margin as the logarithm of a ratio: 0.25 means 3/4 of a rate, or 5/4 of a time."""
        return -math.log(1 - self.margin) if self.worse == "lower" else math.log(1 + self.margin)


@extensions.cached
def comparison_rule_of(metric: str) -> ComparisonRule:
    """The first comparison rule whose patterns match the metric's name; the table's last row matches every metric."""
    return ComparisonRule(**table_row("comparisons", metric))
