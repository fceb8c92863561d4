"""Whether figures are physically possible: by ``ranges`` of the traits of stages."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..core import extensions, units
from ..core.stage_traits import table_row
from ..records.documents import UNFINISHED, NodeMetric, Record
from . import sku_catalogue
from .criteria import data_sheet_figure
from .entries import Entry, gang_of, own_entry
from .sku_catalogue import Sku

MAX_NAMED = 8
_REMEDY = (
    "Check the tool's version, its unit and the node's clock, then validate again with --limit {node}. An implausible "
    "figure is a measurement error and proves nothing about the hardware"
)


@dataclass(frozen=True)
class Range:
    """The possible figures of some metrics. ``high_of``: a property of the SKU; ``times`` its value is the maximum."""

    metrics: Sequence[str]
    unit: str
    low: float = 0.0
    high: float | None = None
    high_of: str | None = None
    times: float = 1.0
    any_unit: bool = False
    #: The file that has the range, as a report names it.
    file: str = ""

    def highest(self, sku: Sku | None) -> float | None:
        """The greatest plausible figure on a node of that SKU; None without a limit."""
        peak = data_sheet_figure(vars(sku), self.high_of) if sku and self.high_of else None
        return self.high if peak is None else float(peak) * self.times


@extensions.cached
def range_of(metric: str) -> Range:
    """The first range that matches the metric's name; the last range matches all."""
    return Range(**table_row("ranges", metric))


def checks(node: str, stage: str, record: Record | None, sku: str | None, *, of_gang: bool = False) -> list[Entry]:
    """An entry for each physically impossible figure. ``of_gang``: figures of several nodes implicate no single one."""
    if record is None or record["state"] in UNFINISHED:
        return []
    known_sku = sku_catalogue.by_name(sku)
    implausible: dict[str, tuple[NodeMetric, str]] = {}
    for metric in record["metrics"]:
        value, name = metric["value"], metric["name"]
        if value is None or name in implausible:
            continue
        low, high = _bounds(name, metric["unit"], sku)
        if not low <= value <= high:
            implausible[name] = (metric, _problem(metric, too_small=value < low, sku=known_sku))
    entries = [
        own_entry(
            f"{stage}_plausible", stage, "plausible", "missing", metric=name,
            part=metric["scope"], value=metric["value"], unit=metric["unit"], expected="what is physically possible",
            reason=f"implausible: {name} {units.human(metric['value'], metric['unit'])}, {problem}",
            source=range_of(name).file, remedy=_REMEDY.format(node=node),
        )
        for name, (metric, problem) in list(implausible.items())[:MAX_NAMED]
    ]  # fmt: skip
    if len(implausible) > MAX_NAMED:
        entries[-1]["reason"] += f"; so are {len(implausible) - MAX_NAMED} more figures"
    for entry in entries if of_gang else ():
        entry["reason"] = f"{gang_of(record) or 'a gang'}: {entry['reason']}"
    return entries


@functools.lru_cache(maxsize=1 << 14)
def _bounds(name: str, unit: str, sku: str | None) -> tuple[float, float]:
    """The least and the greatest plausible figure of a metric in a unit; none for a wrong unit. Converts the limits
    instead of the figures: a fleet has millions of figures of a few thousand names."""
    allowed = range_of(name)
    highest = allowed.highest(sku_catalogue.by_name(sku))
    low, high = allowed.low, math.inf if highest is None else highest
    if unit == allowed.unit:
        return low, high
    if units.compatible(unit, allowed.unit):
        low, high = (
            one if math.isinf(one) else units.to_float(units.convert(one, allowed.unit, unit)) for one in (low, high)
        )
    elif not allowed.any_unit:
        return math.inf, -math.inf
    return low, high


def _problem(metric: NodeMetric, *, too_small: bool, sku: Sku | None) -> str:
    """Why the figure is impossible, as text."""
    allowed, unit = range_of(metric["name"]), metric["unit"]
    if not allowed.any_unit and not units.compatible(unit, allowed.unit):
        return f"in {unit or 'no unit'}, which is no unit of {allowed.unit}"
    if too_small:
        return f"under {units.human(allowed.low, allowed.unit)}"
    highest = allowed.highest(sku)
    of_sku = f", {allowed.times:g} times that of {sku.title}" if sku and allowed.highest(None) != highest else ""
    return f"over {units.human(highest, allowed.unit)}{of_sku}"
