"""Kinds ``min``, ``max``, ``within`` and ``equal``: a figure against fixed limits (``equal`` also a fingerprint); and
``trend``: a figure changed by enough, in the right direction, from an earlier one of the same stage."""

import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from ...core import units
from ...records.documents import NodeMetric, Record
from ..check import Check, Subject
from ..entries import Absent, PartResult
from .base import MetricKind, Metrics, Results, Target

Number = float | Fraction
Bounds = tuple[float | None, float | None]


class LimitKind(MetricKind):
    @abstractmethod
    def bounds(self, check: Check, target: float) -> Bounds:
        """The least and the greatest figure that pass; None for no limit on that side."""

    def judge_parts(self, check: Check, target: Target, metrics: Metrics, subject: Subject, record: Record) -> Results:
        # the schema allows text only for equal; within has no target
        limit = 0.0 if target is None or isinstance(target, str) else target
        bounds = self.bounds(check, limit)
        return [self._judge(check, limit, bounds, metric) for metric in metrics]

    def _judge(self, check: Check, target: float, bounds: Bounds, metric: NodeMetric) -> PartResult:
        part, value, unit = metric["scope"], metric["value"], metric["unit"]
        if metric["name"] != check.metric:  # the median that is reported beside a speed
            check = replace(check, metric=metric["name"])
        if value is None:
            return PartResult(part, False, None, unit, f"{check.metric} is not a number")
        number: Number = value
        low: Number | None
        high: Number | None
        low, high = bounds
        if check.unit and check.unit != unit:  # exact even if the figure is converted
            try:
                number = units.convert(value, unit, check.unit)
            except units.UnitError as error:
                return PartResult(part, None, value, unit, f"{check.metric}: {error}")
            low, high = (None if bound is None else units.exact(bound) for bound in bounds)
            value, unit = units.to_float(number), check.unit
        sides = [(number - low, low)] if low is not None else []
        sides += [(high - number, high)] if high is not None else []
        margin, limit = min(sides) if len(sides) > 1 else sides[0]
        order = (number > limit) - (number < limit)
        reason = functools.partial(self.reason, check, value, unit, target, order=order, passed=margin >= 0)
        return PartResult(part, margin >= 0, value, unit, reason, units.to_float(margin))

    def reason(self, check: Check, value: float, unit: str, target: float, *, order: int, passed: bool) -> str:
        """The figure beside its limit, as text. ``order``: -1, 0 or 1 for a figure under, at or over the limit."""
        text, limit = _texts(value, target, unit, order)
        relation = {-1: "under the limit of", 0: "at the limit of", 1: "over the limit of"}[order]
        return f"{check.metric} {text}, {relation} {limit}"


class Min(LimitKind):
    name = "min"

    def describe(self, check: Check, target: Target) -> str:
        return f"at least {_as_text(target, check)}"

    def bounds(self, check: Check, target: float) -> Bounds:
        return target, None


class Max(LimitKind):
    name = "max"

    def describe(self, check: Check, target: Target) -> str:
        if target is None:
            return f"at most {check.value_from} as declared"
        return f"at most {_as_text(target, check)}"

    def bounds(self, check: Check, target: float) -> Bounds:
        return None, target


class Within(LimitKind):
    name = "within"

    def problem(self, check: Check) -> str | None:
        low, high = self.bounds(check, 0.0)
        return f"low {low} is above high {high}" if low > high else None

    def describe(self, check: Check, target: Target) -> str:
        low, high = self.bounds(check, 0.0)
        return f"{_as_text(low, check)} to {_as_text(high, check)}"

    def bounds(self, check: Check, target: float) -> tuple[float, float]:
        """The low and the high limit, both of which the schema requires."""
        return (0.0 if check.low is None else check.low), (0.0 if check.high is None else check.high)

    def reason(self, check: Check, value: float, unit: str, target: float, *, order: int, passed: bool) -> str:
        text = units.human(value, unit)
        if passed:
            return f"{check.metric} {text}, in bounds"
        return f"{check.metric} {text} ({value!r}), {'under' if order < 0 else 'over'} {check.expected}"


class Equal(LimitKind):
    """A figure that must equal its target; for a target that is text, the fingerprint with the metric's name must."""

    name = "equal"

    def describe(self, check: Check, target: Target) -> str:
        if check.value_from is not None:
            return f"{check.value_from} as declared" + (f": {_as_text(target, check)}" if target is not None else "")
        return target if isinstance(target, str) else f"exactly {_as_text(target, check)}"

    def metrics(self, check: Check) -> set[str]:
        return set() if isinstance(check.value, str) else super().metrics(check)

    def bounds(self, check: Check, target: float) -> Bounds:
        return target, target

    def results(self, check: Check, target: Target, subject: Subject, record: Record) -> tuple[Results, Absent]:
        if not isinstance(target, str):
            return super().results(check, target, subject, record)
        reported = record["fingerprints"].get(check.metric)
        if reported is None:
            reason = f"{check.stage} reported no fingerprint {check.metric}"
            return [PartResult("node", None, None, "", reason)], None
        reason = f"{check.metric} is {reported}" + ("" if reported == target else f", not {target}")
        return [PartResult("node", reported == target, reported, "", reason)], None

    def reason(self, check: Check, value: float, unit: str, target: float, *, order: int, passed: bool) -> str:
        text, limit = _texts(value, target, unit, order)
        return f"{check.metric} is {text}" if passed else f"{check.metric} is {text}, not {limit}"


#: Cached, since all nodes of a fleet have the same limits.
_limit_text = functools.lru_cache(maxsize=4096)(units.human)


def _as_text(target: Target, check: Check) -> str:
    return target if isinstance(target, str) else units.human(target, check.unit or "")


def _texts(value: float, target: float, unit: str, order: int) -> tuple[str, str]:
    """Figure and limit as readable text, or in full where that would show no difference."""
    text, limit = units.human(value, unit), _limit_text(target, unit)
    if limit == text and order:
        return f"{value!r} {unit}".rstrip(), f"{target!r} {unit}".rstrip()
    return text, limit


class TrendCheck(MetricKind):
    name = "trend"

    def describe(self, check: Check, target: Target) -> str:
        change = f"{units.number_text((check.min_change or 0) * 100)} %"
        return f"{check.direction} by at least {change} from {check.baseline_metric}"

    def results(self, check: Check, target: Target, subject: Subject, record: Record) -> tuple[Results, Absent]:
        if record["state"] not in ("success", "failure"):
            return [], ("node", f"{check.stage} ended in {record['state']} before its last figure")
        return super().results(check, target, subject, record)

    def judge_parts(self, check: Check, target: Target, metrics: Metrics, subject: Subject, record: Record) -> Results:
        starts = subject.metrics(record, check.baseline_metric or "", check.scope)
        return [self._judge(check, metric, starts) for metric in metrics]

    def _judge(self, check: Check, metric: NodeMetric, starts: Sequence[NodeMetric]) -> PartResult:
        part, value, unit = metric["scope"], metric["value"], metric["unit"]
        if value is None:
            return PartResult(part, False, None, unit, f"{check.metric} is not a number")
        results = [self._change(check, metric, value, start) for start in starts if start["scope"] == part]
        if not results:
            return PartResult(part, None, value, unit, f"{check.stage} reported no {check.baseline_metric}")
        return min(results, key=lambda result: (result.passed is not False, result.passed is not None, result.margin))

    def _change(self, check: Check, metric: NodeMetric, value: float, start: NodeMetric) -> PartResult:
        part, unit = metric["scope"], metric["unit"]
        if start["value"] is None:
            return PartResult(part, False, value, unit, f"{check.baseline_metric} is not a number")
        try:
            end = units.convert(value, unit, start["unit"])
        except units.UnitError as error:
            return PartResult(part, None, value, unit, f"{check.metric}: {error}")
        first = units.exact(start["value"])
        if first == 0:
            return PartResult(part, None, value, unit, f"{check.baseline_metric} is 0: no relative change exists")
        change = (end - first) / abs(first)
        worsening = -change if check.direction == "falling" else change
        passed = worsening > 0 and worsening >= units.exact(check.min_change or 0)
        verb = "fell" if change < 0 else "rose"
        moved = f"{verb} by {units.number_text(abs(change) * 100)} %" if change else "did not change"
        reason = f"{check.metric} {moved} from {units.number_text(start['value'])} to {units.number_text(end)}"
        if not passed:
            reason += f", not {check.expected}"
        return PartResult(part, passed, value, unit, reason, units.to_float(worsening))
