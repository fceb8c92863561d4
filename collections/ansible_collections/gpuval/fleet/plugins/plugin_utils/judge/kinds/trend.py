"""Kind ``trend``: a figure changed by enough, in the right direction, from an earlier one of the same stage."""

from __future__ import annotations

from collections.abc import Sequence

from ...core import units
from ...records.documents import NodeMetric, Record
from ..check import Check
from ..entries import PartResult
from ..subject import Subject
from .base import MetricKind, Target


class TrendCheck(MetricKind):
    name = "trend"

    def describe(self, check: Check, target: Target) -> str:
        change = f"{units.number_text((check.min_change or 0) * 100)} %"
        return f"{check.direction} by at least {change} from {check.baseline_metric}"

    def results(
        self, check: Check, target: Target, subject: Subject, record: Record
    ) -> tuple[list[PartResult], tuple[str, str] | None]:
        if record["state"] not in ("success", "failure"):
            return [], ("node", f"{check.stage} ended in {record['state']} before its last figure")
        return super().results(check, target, subject, record)

    def judge_parts(
        self, check: Check, target: Target, metrics: Sequence[NodeMetric], subject: Subject, record: Record
    ) -> list[PartResult]:
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
            reason += f", not {self.expected(check)}"
        return PartResult(part, passed, value, unit, reason, units.to_float(worsening))
