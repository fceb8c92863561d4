"""Measurements that two nodes have in common to the last digit: no two machines take the same time for everything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..core import units
from ..core.text import natural_order, some_of
from ..records.documents import Record
from ..records.evidence import RunEvidence
from .entries import Entry, own_entry
from .identity import Twins
from .subject import FACTS

#: So many figures, each of so many digits, make a coincidence impossible.
MIN_FIGURES, MIN_DIGITS = 3, 6
#: What a machine is, it has in common with others of its kind.
UNMEASURED = (FACTS, "image")


def find_copies(
    run: Mapping[str, Any], evidence: RunEvidence, twins: Mapping[str, Twins] = MappingProxyType({})
) -> dict[str, dict[str, list[str]]]:
    """By node and stage the other nodes that report the same measurements, but for those that copy its identity too."""
    owners: dict[tuple[str, Any], list[str]] = defaultdict(list)
    for name, expected in run["nodes"].items():
        for stage in sorted(set(expected["stages"]) - set(expected.get("gang_stages", ()))):  # members share figures
            record = evidence.records.get(name, {}).get(stage)
            figures = _figures(record) if record and stage not in UNMEASURED else ()
            if len(figures) >= MIN_FIGURES:
                owners[stage, figures].append(name)
    copies: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for (stage, _), names in owners.items():
        for name in names if len(names) > 1 else ():
            candidates = (other for other in names if other != name)
            copied = [other for other in candidates if other not in twins or name not in twins[other].claims]
            if copied:
                copies[name][stage] = copied
    return copies


def _figures(record: Record) -> tuple[tuple[str, str, float], ...]:
    return tuple(
        sorted(
            (metric["name"], metric["scope"], metric["value"])
            for metric in record["metrics"]
            if metric["value"] is not None and units.is_timed(metric["unit"]) and _digits(metric["value"]) >= MIN_DIGITS
        )
    )


def _digits(value: float) -> int:
    mantissa = repr(abs(value)).partition("e")[0]
    return len(mantissa.replace(".", "").strip("0"))


def copy_checks(copies: Mapping[str, list[str]]) -> list[Entry]:
    checks = []
    for stage, copied in copies.items():
        names = sorted(copied, key=natural_order)
        named = some_of(names)
        checks.append(
            own_entry(
                f"{stage}_figures", stage, "identity", "missing", value=named, expected="measurements of its own",
                reason=f"the same measurements to the last digit as {named}: one record is a copy",
                remedy="find out what wrote the records on these nodes, then validate them again under a new run id",
            )
        )  # fmt: skip
    return checks
