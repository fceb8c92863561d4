"""Compact and safe data in report.html: JSON for a script element, values as two characters each, shared texts."""

import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
#: Number of steps between min and max; one further code means no value.
STEPS = 4094
NOTHING = "__"
#: Bound for values in plots: squares stay finite, and no measured value is near.
GREATEST = 1e100
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]


class SharedValues:
    """Values that occur often in a page: each is stored once and referenced by its number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def all(self) -> list[Any]:
        return list(self._numbers)


def script_json(value: Any) -> str:
    """The value as JSON that can neither end an HTML script element nor start a comment in it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def pairs(values: Iterable[float | None], low: float, high: float) -> str:
    """Two characters for each value: its position from ``low`` to ``high`` in 4094 steps; values beyond are clipped."""
    scale = STEPS / (high - low) if high - low > 1 / GREATEST else 0.0
    return "".join(
        [NOTHING if value is None else _PAIRS[min(STEPS, max(0, round((value - low) * scale)))] for value in values]
    )


def short(value: float | int | None) -> float | int | None:
    """The value with about six significant digits: enough to read, and a third of repr's length."""
    if value is None or isinstance(value, int):
        return value if value is None or abs(value) < 1 << 53 else float(value)
    if not math.isfinite(value):
        return None
    number = float(f"{value:.6g}")
    return int(number) if number == int(number) and abs(number) < 1e15 else number


def mostly(values: Sequence[Any]) -> Any:
    """Values in short: ``{"all": value, "but": {index: other}}`` if at least half are equal, else the list."""
    keys = [repr(value) for value in values]  # repr tells 1 from True, and a list has no hash
    if not keys:
        return []
    common, count = Counter(keys).most_common(1)[0]
    if 2 * count < len(keys):
        return list(values)
    but = {index: value for index, value in enumerate(values) if keys[index] != common}
    return {"all": values[keys.index(common)]} | ({"but": but} if but else {})
