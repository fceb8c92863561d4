"""How each figure is compared between nodes, by its name: the table ``skus/shared/comparisons.yml``."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from ..core.paths import COLLECTION
from ..core.text import pattern_of
from .criteria import read_document

COMPARISONS = COLLECTION / "skus/shared/comparisons.yml"


@dataclass(frozen=True)
class ComparisonRule:
    """A row of the table: how figures of some names are compared; not at all where ``worse`` is empty."""

    metrics: tuple[str, ...]
    worse: str = ""
    margin: float = 0.25
    offset: float = 0.0
    among: str = "setup"

    @property
    def least(self) -> float:
        """The margin as a logarithm: 0.25 is a rate of 3/4, or a time of 5/4."""
        return -math.log(1 - self.margin) if self.worse == "lower" else math.log(1 + self.margin)


@functools.cache
def comparison_rules() -> tuple[ComparisonRule, ...]:
    return tuple(ComparisonRule(**{**row, "metrics": tuple(row["metrics"])}) for row in read_document(COMPARISONS))


@functools.lru_cache(maxsize=8192)
def comparison_rule_of(metric: str) -> ComparisonRule:
    """The first rule that fits a name; the last one fits all."""
    return next(rule for rule in comparison_rules() if any(pattern_of(name).fullmatch(metric) for name in rule.metrics))
