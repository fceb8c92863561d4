"""What changed from one baseline to another, and how repeatable a baseline is, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core import units
from .baseline import Baseline
from .peer_statistics import MEDIAN_ERROR

#: Figures that moved by less, relatively, are left out.
LEAST = 0.005


@dataclass(frozen=True)
class Change:
    """One figure in two baselines; None where only one of them has it. ``clear`` is more than their own noise."""

    what: str
    unit: str
    before: float | None
    after: float | None
    clear: bool

    @property
    def text(self) -> str:
        if self.before is None or self.after is None:
            value = self.after if self.before is None else self.before
            return f"{'new' if self.before is None else 'gone'}: {self.what} ({units.human(value, self.unit)})"
        change = (self.after - self.before) / abs(self.before)
        way = "rose" if change > 0 else "fell"
        moved = f"{way} by {units.number_text(abs(change) * 100)} %"
        return f"{self.what} {moved}: {units.human(self.before, self.unit)} to {units.human(self.after, self.unit)}"


def diff(earlier: Baseline, later: Baseline) -> list[Change]:
    """What changed, gone and new ones first; figures that moved by less than LEAST, relatively, are left out.

    A change is clear when it is more than three standard errors of the two medians: those of as many nodes as they
    were made from, since parts of a node do not differ on their own.
    """
    old, new = (_by_identity(it) for it in (earlier, later))
    changes = []
    for key in sorted(old.keys() | new.keys()):
        one, other = old.get(key), new.get(key)
        figure, clear = one or other or {}, True
        if one and other:
            moved = abs(other["median"] - one["median"])
            if moved < LEAST * abs(one["median"]):
                continue
            clear = moved > 3 * _error(one, other)
        before, after = (each["median"] if each else None for each in (one, other))
        changes.append(Change(_title(figure), figure["unit"], before, after, clear))
    return sorted(changes, key=lambda one: (one.before is not None and one.after is not None, not one.clear, one.what))


def _by_identity(baseline: Baseline) -> dict[tuple[str, ...], Mapping[str, Any]]:
    """Of figures that differ by torch alone, the one with the most nodes."""
    ordered = sorted(baseline.document["figures"], key=lambda one: (one["nodes"], sorted(one["setup"].items())))
    return {_identity(one): one for one in ordered}


def _error(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The standard error of the difference of two medians."""
    variance: float = sum(figure["deviation"] ** 2 / figure["nodes"] for figure in (one, other))
    return MEDIAN_ERROR * math.sqrt(variance)


def _identity(figure: Mapping[str, Any]) -> tuple[str, ...]:
    """What a figure is; torch is left out, so that a new one shows."""
    setup = tuple(value for path, value in sorted(figure["setup"].items()) if path != "torch")
    keys = ("stage", "metric", "scope", "unit", "sku", "gpus", "workload")
    return (*(str(figure[key]) for key in keys), str(figure.get("revision", 1)), *setup)


def _title(figure: Mapping[str, Any]) -> str:
    kind = " ".join(str(figure[key]) for key in ("sku", "gpus", "revision") if figure.get(key) is not None)
    setup = figure["setup"].get("fingerprints.training_setup", "")
    return " ".join(f"{figure['stage']} {figure['metric']} per {figure['scope']} ({kind} {setup}".split()) + ")"


def lines(changes: Sequence[Change]) -> list[str]:
    """A line for each change; what is within the noise of both says so."""
    return [one.text + ("" if one.clear else " (within their noise)") for one in changes] or ["nothing moved by 0.5 %"]


def repeatability(document: Mapping[str, Any]) -> list[str]:
    """A line for each figure: its median, and the spread of nodes, of parts of a node and of repeats."""
    kinds = {
        "between_nodes_ratio": "nodes",
        "within_nodes_ratio": "parts of a node",
        "repeats_ratio": "repeats",
    }
    lines = []
    for one in document["figures"]:
        spreads = ", ".join(
            f"{what} {units.number_text(one[key] * 100)} %" for key, what in kinds.items() if one[key] is not None
        )
        far = f"; {one['far_off']} far off and left out" if one["far_off"] else ""
        lines.append(
            f"{_title(one)} {units.human(one['median'], one['unit'])}, {one['parts']} parts of {one['nodes']} nodes; "
            f"{'spread of ' + spreads if spreads else 'too few for a spread'}{far}"
        )
    return lines
