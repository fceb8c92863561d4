"""The kinds of checks: one class each, found by its name in criteria."""

from __future__ import annotations

from .against_baseline import AgainstBaseline
from .base import Context, Kind
from .limits import Equal, Max, Min, Within
from .outlier import Outlier
from .same import Same
from .trend import Trend

__all__ = ["KINDS", "Context", "Kind"]

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (Min(), Max(), Within(), Equal(), Trend(), Outlier(), Same(), AgainstBaseline())
}
