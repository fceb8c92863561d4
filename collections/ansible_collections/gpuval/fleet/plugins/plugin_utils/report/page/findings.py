"""The analysis as the page shows it: groups that differ, statistics of every figure, what moves together. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core import units
from ...judge.analysis.fleet import by_group
from .encode import short
from .figures import judged_figures

MAX_GROUPS = 30
MAX_FIGURES_OF_A_GROUP = 12
MAX_NAMES = 12
MAX_STATISTICS = 250
MAX_PAIRS = 40
#: Columns of the table that are in the unit of the figure.
FIGURES = ("mean", "standard_deviation", "min", "p1", "p5", "p50", "p95", "p99", "max")


def shown(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Data for the template; None for a report without an analysis."""
    analysis = report["fleet"].get("analysis")
    if analysis is None:
        return None
    groups, counts = by_group(analysis), analysis["counts"]
    judged = judged_figures(report)
    differing = [one for one in analysis["statistics"] if one["min"] != one["max"]]
    # figures with a check come first; the order of the stages is kept
    differing.sort(key=lambda one: (one["stage"], one["metric"]) not in judged)
    return {
        "groups": [_group(its) for its in groups[:MAX_GROUPS]],
        "groups_left_out": max(0, len(groups) - MAX_GROUPS),
        "comparisons": counts["comparisons"],
        "compared_by": list(dict.fromkeys(one["by"] for one in analysis["groups"])),
        "statistics": [_row(one) for one in differing[:MAX_STATISTICS]],
        "statistics_left_out": max(0, len(differing) - MAX_STATISTICS) + counts["statistics_left_out"],
        "same": len(analysis["statistics"]) - len(differing),
        "pairs": [
            {**one, "text": f"{one['rho']:+.2f}", "places": places(one)} for one in analysis["correlations"][:MAX_PAIRS]
        ],
        "pairs_left_out": max(0, counts["correlations"] - MAX_PAIRS),
        "one_quantity": counts["one_quantity"],
    }


def _group(its: list[Mapping[str, Any]]) -> dict[str, Any]:
    first = its[0]
    return {
        "by": first["by"],
        "value": first["value"],
        "kind": first["kind"],
        "nodes": first["nodes"],
        "names": first["names"][:MAX_NAMES],
        "more": max(0, first["nodes"] - MAX_NAMES),
        "alike": [
            f"{'' if one['same'] else 'nearly '}the same nodes as {one['by']} {one['value']}" for one in first["alike"]
        ],
        "figures": [
            {
                "stage": one["stage"],
                "metric": one["metric"],
                "moved": one["moved"],
                "median": units.human(one["median"], one["unit"]),
                "others_median": units.human(one["others_median"], one["unit"]),
                "others": one["others"],
                "q": f"{one['q']:.1g}",
            }
            for one in its[:MAX_FIGURES_OF_A_GROUP]
        ],
        "figures_left_out": max(0, len(its) - MAX_FIGURES_OF_A_GROUP),
    }


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{key: one[key] for key in ("stage", "metric", "scope", "kind", "count", "missing", "not_finite")},
        "outliers": one["outlier_count"],
        "figures": [{"text": units.human(one[key], one["unit"]), "sort": short(float(one[key]))} for key in FIGURES],
        "variation": {"text": percent(one["coefficient_of_variation"]), "sort": one["coefficient_of_variation"]},
    }


def places(pair: Mapping[str, Any]) -> str:
    """The sample of a correlation: 23 nodes, or 184 gpus of 23 nodes."""
    parts = "" if pair["over"] == "node" else f"{pair['count']} {pair['over']}s of "
    return f"{parts}{pair['nodes']} nodes"


def percent(ratio: float | None) -> str:
    """As a percentage, if that is meaningful."""
    return f"{ratio:.2%}" if ratio is not None and ratio < 10 else ""
