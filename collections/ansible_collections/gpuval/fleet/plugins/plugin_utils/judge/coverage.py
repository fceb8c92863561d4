"""Which metrics no criterion looks at, and which criteria look at what no node reports. Advice, never a verdict.

A metric is covered when a check of its stage judges it or needs it, when it is compared between nodes by default, or
when a list declares it informational, with a reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.text import pattern_of
from .check import Check, Informational
from .comparison_rules import comparison_rule_of
from .kinds import KINDS

ANY = "any"
MAX_SHOWN = 100


@dataclass(frozen=True)
class Coverage:
    """unjudged: ``stage/metric``. unreported: ``check (stage/metric)``. Both sorted."""

    unjudged: tuple[str, ...]
    unreported: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return not self.unjudged and not self.unreported

    def document(self) -> dict[str, list[str]]:
        """As the report holds it; names come from nodes, so there is a bound."""
        return {"unjudged": _bounded(self.unjudged), "unreported": _bounded(self.unreported)}


def compare(
    reported: Mapping[str, Iterable[str]], checks: Iterable[Check], informational: Iterable[Informational] = ()
) -> Coverage:
    """The gaps between what stages report (stage -> names of metrics and fingerprints) and what checks look at."""
    names_reported = {stage: set(names) for stage, names in reported.items()}
    checks = list(checks)
    looked_at: dict[str, set[str]] = defaultdict(set)
    for check in checks:
        looked_at[check.stage] |= needed(check)
    listed = tuple(informational)
    unjudged = {
        f"{stage}/{name}"
        for stage, names in names_reported.items()
        for name in names - looked_at[stage]
        if not comparison_rule_of(name).worse and not is_informational(stage, name, listed)
    }
    unreported = {
        f"{check.name} ({check.stage}/{name})"
        for check in checks
        for name in needed(check) - names_reported.get(check.stage, set())
    }
    return Coverage(tuple(sorted(unjudged)), tuple(sorted(unreported)))


def is_informational(stage: str, metric: str, listed: Iterable[Informational]) -> bool:
    """Whether a list declares the metric of the stage informational."""
    lists = (entry.metrics for entry in listed if entry.stage in (stage, ANY))
    return any(pattern_of(name).fullmatch(metric) for names in lists for name in names)


def of_report(
    nodes: Sequence[Mapping[str, Any]], checks: Iterable[Check], informational: Iterable[Informational] = ()
) -> Coverage:
    """The gaps of a run: of its nodes' reports (``metrics``, ``checks``, ``stages``).

    A check counts as unreported where it applied to a stage that ended well.
    """
    reported: dict[str, set[str]] = defaultdict(set)
    applied: set[str] = set()
    for node in nodes:
        ended_well = {stage["name"] for stage in node["stages"] if stage["state"] == "success"}
        for stage, metrics in node["metrics"].items():
            reported[stage] |= {metric["name"] for metric in metrics}
        applied |= {
            check["name"] for check in node["checks"] if check["verdict"] != "skipped" and check["stage"] in ended_well
        }
    checks = list(checks)
    gaps = compare(reported, checks, informational)
    counted = [check for check in checks if check.name in applied]
    return Coverage(gaps.unjudged, compare(reported, counted).unreported)


def needed(check: Check) -> set[str]:
    """The metrics that a check reads in the records of its stage; none where it reads the environment."""
    return KINDS[check.kind].metrics(check)


def _bounded(names: Sequence[str]) -> list[str]:
    more = len(names) - MAX_SHOWN
    return [*names[:MAX_SHOWN], *([f"and {more} more"] if more > 0 else [])]
