"""The kinds of checks: one class each, found by its name in criteria."""

from __future__ import annotations

from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.kinds.against_baseline import AgainstBaseline
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.kinds.base import Context, Kind
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.kinds.limits import Equal, Max, Min, Within
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.kinds.outlier import Outlier
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.kinds.same import Same
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.kinds.trend import Trend

__all__ = ["KINDS", "Context", "Kind"]

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (Min(), Max(), Within(), Equal(), Trend(), Outlier(), Same(), AgainstBaseline())
}
