"""The kinds of checks: one class each, found by its name in criteria."""

from .against_baseline import AgainstBaseline
from .base import CheckKind, JudgeContext
from .fleet_outliers import Outlier
from .limits import Equal, Max, Min, TrendCheck, Within
from .same import Same

__all__ = ["KINDS", "CheckKind", "JudgeContext"]

KINDS: dict[str, CheckKind] = {
    kind.name: kind for kind in (Min(), Max(), Within(), Equal(), TrendCheck(), Outlier(), Same(), AgainstBaseline())
}
