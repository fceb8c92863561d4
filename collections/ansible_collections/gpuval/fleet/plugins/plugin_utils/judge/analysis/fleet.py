"""The analysis of a fleet as report.json keeps it (``fleet.analysis``): statistics, groups, findings, correlations."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.escape import one_line
from ...core.grouping import values_by_key
from . import correlation, groups
from .distribution import MIN_NODES, Distribution, FigureSample, Key, Samples, samples

MAX_STATISTICS = 4000
MAX_OUTLIERS = 50
MAX_FINDINGS = 500
MAX_GROUPS = 20_000
MAX_PAIRS = 200
MAX_NAMES = 64

Nodes = Sequence[Mapping[str, Any]]


def analyse(nodes: Nodes, properties: Sequence[Mapping[str, str]]) -> dict[str, Any] | None:
    """Spreads, groups and correlations of the figures of a report's nodes, as JSON; None below three nodes.
    ``properties``: for each node ``{property: value}``, such as its rack and driver."""
    if len(nodes) < MIN_NODES:
        return None
    reported = samples(nodes)
    described = {key: sample for key, sample in reported.figures.items() if len(sample.medians) >= MIN_NODES}
    if not described:
        return None
    reported = Samples(described, reported.asked)
    compared = groups.compare(reported, properties)
    correlated, of_one_quantity = correlation.correlate(reported)
    statistics = [_statistic(key, sample, reported, nodes) for key, sample in _most_reported(described, MAX_STATISTICS)]
    standings = [
        {
            **key._asdict(),
            "by": by,
            "groups": [
                {"value": of.group[1], "nodes": of.nodes, "median": of.median, "relative_difference": of.difference}
                for of in its
            ],
        }
        for (key, by), its in compared.standings.items()
    ]
    counts = itertools.accumulate(len(standing["groups"]) for standing in standings)
    groups_kept = standings[: sum(count <= MAX_GROUPS for count in counts)]
    return {
        "statistics": statistics,
        "groups": groups_kept,
        "findings": [_finding_document(one, nodes) for one in compared.findings[:MAX_FINDINGS]],
        "correlations": [_pair_document(one) for one in correlated[:MAX_PAIRS]],
        "counts": {
            "comparisons": compared.comparisons,
            "findings": len(compared.findings),
            "correlations": len(correlated),
            "one_quantity": of_one_quantity,
            "statistics_left_out": len(described) - len(statistics),
            "groups_left_out": len(standings) - len(groups_kept),
        },
    }


def _most_reported(described: Mapping[Key, FigureSample], most: int) -> list[tuple[Key, FigureSample]]:
    """The ``most`` figures that the most parts report, in the order of ``described``."""
    if len(described) <= most:
        return list(described.items())
    longest = set(sorted(described, key=lambda key: -len(described[key].numbers))[:most])
    return [(key, sample) for key, sample in described.items() if key in longest]


def _statistic(key: Key, sample: FigureSample, reported: Samples, nodes: Nodes) -> dict[str, Any]:
    """The analysis's entry of one figure: its spread, missing parts and outliers."""
    spread = Distribution(sample)
    return {
        **key._asdict(),
        **vars(spread),
        "missing": sample.missing(reported.asked[key.stage, key.kind]),
        "not_finite": len(sample.not_numbers),
        "coefficient_of_variation": spread.variation,
        "outlier_count": len(spread.outliers),
        "outliers": [
            {"node": nodes[number]["name"], "part": part, "value": value, "relative_difference": spread.change(value)}
            for value, (number, part) in spread.outliers[:MAX_OUTLIERS]
        ],
    }


def _finding_document(finding: groups.GroupFinding, nodes: Nodes) -> dict[str, Any]:
    """A group's finding in the form of report.json."""
    standing = finding.standing
    by, value = standing.group
    return {
        **finding.key._asdict(),
        "by": by,
        "value": value,
        "nodes": len(finding.nodes),
        "names": [nodes[number]["name"] for number in sorted(finding.nodes)[:MAX_NAMES]],
        **{key: getattr(standing, key) for key in ("others", "median", "others_median")},
        "relative_difference": standing.difference,
        "p": finding.probability,
        "q": finding.quality,
        "alike": [{"by": group[0], "value": group[1], "same": its == finding.nodes} for group, its in finding.alike],
        "moved": finding.moved,
        "text": one_line(finding.text, 600),
    }


def _pair_document(pair: correlation.FigurePair) -> dict[str, Any]:
    return {
        "stage": pair.one.stage,
        "kind": pair.one.kind,
        "one": {"metric": pair.one.metric, "scope": pair.one.scope},
        "other": {"metric": pair.other.metric, "scope": pair.other.scope},
        **{key: getattr(pair, key) for key in ("rho", "over", "count", "nodes")},
    }


def by_group(analysis: Mapping[str, Any]) -> list[list[Mapping[str, Any]]]:
    """The analysis's findings, a list for each group and kind of node; the group with the strongest one is first."""
    keyed = ((tuple(finding[key] for key in ("by", "value", "kind")), finding) for finding in analysis["findings"])
    return list(values_by_key(keyed).values())
