"""Keep the metrics of records in little memory: a fleet has millions, and only the values differ between nodes."""

import functools
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload
from weakref import WeakValueDictionary

from ..core.grouping import values_by_key
from .documents import NodeMetric

#: Name, unit, scope and revision of a metric; the revision is None where the record has none.
MetricRow = tuple[str, str, str, "int | None"]


class MetricForm:
    """A list of metrics without their values. ``places``: ``{(name, kind of scope): indexes in rows}``."""

    def __init__(self, rows: tuple[MetricRow, ...]) -> None:
        self.rows = rows
        self.places = values_by_key(
            ((name, scope.partition(":")[0]), at) for at, (name, _, scope, _) in enumerate(rows)
        )


#: Integers up to this size are exact as floats.
MAX_EXACT = 1 << 53
#: The lists of metrics in use, so that nodes with equal lists share one object.
_forms: WeakValueDictionary[tuple[MetricRow, ...], MetricForm] = WeakValueDictionary()


@functools.lru_cache(maxsize=1 << 16)
def metric_row(*fields: Any) -> MetricRow:
    """The same object for equal rows, so that different lists of metrics share it."""
    return fields


@functools.lru_cache(maxsize=1 << 12)
def _shared(flags: bytes) -> bytes:
    """The same object for equal bytes, which saves memory."""
    return flags


class CompactMetrics(Sequence[NodeMetric]):
    """Metrics that cannot change. Each access makes the metric's dictionary anew."""

    __slots__ = ("_integers", "_numbers", "form")
    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __init__(self, rows: tuple[MetricRow, ...], values: Iterable[float | None]) -> None:
        form = _forms.get(rows)
        self.form = _forms.setdefault(rows, MetricForm(rows)) if form is None else form
        numbers = [math.nan if value is None else value for value in values]  # JSON has no other
        is_exact = all(abs(number) <= MAX_EXACT for number in numbers if type(number) is int)
        self._numbers: Sequence[float] = array("d", numbers) if is_exact else tuple(numbers)
        self._integers = _shared(bytes([type(number) is int for number in numbers]))

    @classmethod
    def of(cls, metrics: Sequence[NodeMetric]) -> "CompactMetrics":
        """The compact form of metrics; of compact ones themselves."""
        if isinstance(metrics, cls):
            return metrics
        rows = tuple([metric_row(one["name"], one["unit"], one["scope"], one.get("revision")) for one in metrics])
        return cls(rows, [one["value"] for one in metrics])

    @property
    def values(self) -> list[float | None]:
        return list(map(_value, self._numbers, self._integers))

    def named(self, name: str, kind: str) -> list[NodeMetric]:
        """The metrics of this name in one kind of scope: node, gpu, rank or link."""
        return [self[at] for at in self.form.places.get((name, kind), ())]

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> NodeMetric: ...
    @overload
    def __getitem__(self, index: slice) -> list[NodeMetric]: ...
    def __getitem__(self, index: int | slice) -> NodeMetric | list[NodeMetric]:
        if isinstance(index, slice):
            return list(self)[index]
        return _metric(self.form.rows[index], _value(self._numbers[index], self._integers[index]))

    def __iter__(self) -> Iterator[NodeMetric]:
        return map(_metric, self.form.rows, map(_value, self._numbers, self._integers))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __reduce__(self) -> tuple[Any, ...]:
        return CompactMetrics, (self.form.rows, self.values)


def _value(number: float, is_integer: int) -> float | None:
    """A metric's value with the type that its node wrote: 8 stays an integer, 8.0 a float, NaN becomes None."""
    if is_integer:
        return int(number)
    return None if math.isnan(number) else number


def _metric(row: MetricRow, value: float | None) -> NodeMetric:
    name, unit, scope, revision = row
    metric: NodeMetric = {"name": name, "value": value, "unit": unit, "scope": scope}
    if revision is not None:
        metric["revision"] = revision
    return metric
