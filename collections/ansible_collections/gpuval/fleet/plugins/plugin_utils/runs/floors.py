"""Floors of storage (``storage_floors``, ``storage_shared_floors``): the figures that have one, and their values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuval.fleet.node.gpuval_workloads.storage import table

from ..core.errors import SettingError
from ..core.text import meant


def check(variable: str, floors: Mapping[str, Any]) -> None:
    """Raises SettingError for a name that no figure has, and a floor that is no number above 0."""
    for name, limit in floors.items():
        if name not in table.FIGURES:
            tests = ", ".join(test.name for test in table.TESTS)
            near = meant(name, table.FIGURES) or f"; they are TEST_FIGURE of {tests} and {', '.join(table.MEASURES)}"
            raise SettingError(f"{variable}: no figure {name}{near}")
        try:
            number = math.nan if isinstance(limit, bool) else float(limit)
        except (TypeError, ValueError):
            number = math.nan
        if not 0 < number < math.inf:
            raise SettingError(f"{variable}: {name} {limit}: must be a number above 0 in base units")
