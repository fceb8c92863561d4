"""Floors of storage (``storage_floors``, ``storage_shared_floors``): the figures that have one, and their values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..core.errors import SettingError
from ..core.text import meant

#: What the stage measures, as `node/gpuval_workloads/storage/table.py` and `program.py` have it.
TESTS = (
    *("sequential_write", "sequential_read", "random_read_128k", "random_read_single", "random_read", "random_write"),
    "mixed",
)
FIGURES = ("bytes_per_second", "requests_per_second", "p50_seconds", "p99_seconds", "p999_seconds")
NAMES = tuple(f"{test}_{figure}" for test in TESTS for figure in FIGURES)


def check(variable: str, floors: Mapping[str, Any]) -> None:
    """Raises SettingError for a name that no figure has, and a floor that is no number above 0."""
    for name, limit in floors.items():
        if name not in NAMES:
            near = meant(name, NAMES) or f"; they are TEST_FIGURE of {', '.join(TESTS)} and {', '.join(FIGURES)}"
            raise SettingError(f"{variable}: no figure {name}{near}")
        try:
            number = math.nan if isinstance(limit, bool) else float(limit)
        except (TypeError, ValueError):
            number = math.nan
        if not 0 < number < math.inf:
            raise SettingError(f"{variable}: {name} {limit}: must be a number above 0 in base units")
