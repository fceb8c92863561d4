"""Kind ``outlier``: parts beside the others of their node, or beside those of all nodes of a kind."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ...core import units
from ...records.documents import NodeMetric, Record
from ..check import Check
from ..entries import Entry, PartResult
from ..peer_groups import too_few_parts
from ..peer_statistics import FEW_PARTS, MIN_PARTS, Peers, widened
from ..subject import Subject
from . import fleet_outliers
from .base import JudgeContext, MetricKind, Metrics, Results, Target, allowance, deviation_text


class Outlier(MetricKind):
    name = "outlier"
    compares = True

    def problem(self, check: Check) -> str | None:
        if check.peers == "fleet":
            return None
        of_the_fleet = ("relative_to", "same_part", "spread_from", "alike", "group_by")
        return next((f"{key} is for peers: fleet" for key in of_the_fleet if getattr(check, key)), None)

    def describe(self, check: Check, target: Target) -> str:
        if check.peers == "node":
            return f"at most {allowance(check)} the median of its peers"
        among = "its neighbours, as on other nodes" if check.relative_to else "its peers in the fleet"
        deviations = units.number_text(check.deviations)
        return f"at most {allowance(check)} the median of {among}, or {deviations} deviations"

    def needs_peers(self, check: Check) -> bool:
        return check.peers == "fleet"

    def survey(self, check: Check, subjects: Sequence[Subject], context: JudgeContext) -> None:
        fleet_outliers.survey(check, subjects, context)

    def compare(self, check: Check, subjects: Sequence[Subject], context: JudgeContext) -> None:
        fleet_outliers.compare(check, context)

    def not_comparable(self, check: Check, subject: Subject) -> list[Entry]:
        return too_few_parts(check, subject)

    def judge_parts(self, check: Check, target: Target, metrics: Metrics, subject: Subject, record: Record) -> Results:
        """Every part against the median of all; a part that is no number fails, and is no peer."""
        units_seen = {metric["unit"] for metric in metrics if metric["value"] is not None}
        if len(units_seen) > 1:
            reason = f"{check.metric} has several units: {', '.join(sorted(units_seen))}"
            return [PartResult(metric["scope"], None, metric["value"], metric["unit"], reason) for metric in metrics]
        group = Peers.of([metric["value"] for metric in metrics if metric["value"] is not None])
        return [self._judge(check, metric, group) for metric in metrics]

    def _judge(self, check: Check, metric: NodeMetric, group: Peers | None) -> PartResult:
        part, value, unit = metric["scope"], metric["value"], metric["unit"]
        if value is None:
            return PartResult(part, False, None, unit, f"{check.metric} is not a number")
        if group is None:
            why = f"fewer than {MIN_PARTS} figures, or a median of 0, to compare"
            return PartResult(part, None, value, unit, why)
        deviations = widened(check.deviations, group.count, FEW_PARTS)
        passed = not group.is_outlier(value, check.max_below, check.max_above, deviations)
        reason = functools.partial(_reason, check, value, unit, group)
        return PartResult(part, passed, value, unit, reason, -group.badness(value, check.max_below, check.max_above))


def _reason(check: Check, value: float, unit: str, group: Peers) -> str:
    figure = f"{check.metric} {units.human(value, unit)}, {deviation_text(group.change(value))}"
    return f"{figure} the median {units.human(group.median, unit)} of {group.count}"
