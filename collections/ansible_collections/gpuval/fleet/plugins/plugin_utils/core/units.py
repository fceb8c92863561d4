"""Exact conversion between units, and figures with units as text. 1 GB = 1e9 bytes everywhere."""

import math
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction

Number = int | float

_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}


def _table() -> dict[str, tuple[str, Fraction]]:
    """{unit: (dimension, factor to the dimension's base unit)}."""
    units: dict[str, tuple[str, Fraction]] = {}

    def add(dimension: str, factor: Fraction | int, *names: str) -> None:
        for name in names:
            units[name] = (dimension, Fraction(factor))

    add("time", 1, "seconds", "second", "s", "sec")
    add("time", Fraction(1, 10**3), "ms", "milliseconds")
    add("time", Fraction(1, 10**6), "us", "microseconds", "\u00b5s", "\u03bcs")
    add("time", Fraction(1, 10**9), "ns", "nanoseconds")
    add("time", 60, "minutes", "min")
    add("time", 3600, "hours", "h")
    add("size", 1, "bytes", "byte")
    add("rate", 1, "bytes/s", "bytes_per_second")
    add("power", 1, "watts")
    add("frequency", 1, "hertz")
    for prefix, power in _DECIMAL.items():
        factor = Fraction(10) ** power
        add("size", factor, f"{prefix}B")
        add("rate", factor, f"{prefix}B/s", f"{prefix}Bps")
        add("rate", factor / 8, f"{prefix}bit/s", f"{prefix}b/s", f"{prefix}bps")
        add("flops", factor, f"{prefix}FLOP/s", f"{prefix}FLOPS")
        add("power", factor, f"{prefix}W")
        add("frequency", factor, f"{prefix}Hz")
    for prefix, power in _BINARY.items():
        add("size", 2**power, f"{prefix}B")
        add("rate", 2**power, f"{prefix}B/s")
    add("flops", 10**12, "tflops")
    add("power", Fraction(1, 1000), "mW")
    add("temperature", 1, "celsius", "C", "\u00b0C")
    add("count", 1, "count")
    add("ratio", 1, "ratio")
    add("ratio", Fraction(1, 100), "%", "percent")
    for noun in ("tokens", "samples", "requests", "examples", "images"):
        add(f"{noun} rate", 1, f"{noun}/s", f"{noun}_per_second", f"{noun}/sec")
    return units


_UNITS = _table()
_FACTORS = {unit: float(factor) for unit, (_, factor) in _UNITS.items()}
_TIMED = frozenset(
    unit for unit, (dimension, _) in _UNITS.items() if dimension in ("time", "flops") or dimension.endswith("rate")
)
_NOTATIONS = {meaning: unit for unit, meaning in reversed(_UNITS.items())}


class UnitError(ValueError):
    """Two units measure different things, or a value is not a finite number."""


def exact(value: Number) -> Fraction:
    """The exact value of a number as JSON writes it: 0.1 is one tenth, not the nearest binary fraction."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UnitError(f"{value} is not a finite number")
    return Fraction(repr(value))


def compatible(unit: str, target: str) -> bool:
    """Whether a figure in one unit can be converted to the other; unknown units are compatible with themselves only."""
    if unit == target:
        return True
    return unit in _UNITS and target in _UNITS and _UNITS[unit][0] == _UNITS[target][0]


def notation(unit: str) -> str:
    """The usual notation of a unit: ``bytes/s`` for ``bytes_per_second``. An unknown unit is returned unchanged."""
    return _NOTATIONS[_UNITS[unit]] if unit in _UNITS else unit


def is_timed(unit: str) -> bool:
    """Whether a figure of this unit is measured with a clock: a time, or an amount by time."""
    return unit in _TIMED


def convert(value: Number | Fraction, source: str, target: str) -> Fraction:
    """``value`` in ``source`` converted to ``target``, exactly; raises UnitError when they measure different things."""
    number = value if isinstance(value, Fraction) else exact(value)
    if source == target:
        return number
    if not compatible(source, target):
        unknown = [unit for unit in (source, target) if unit not in _UNITS]
        why = f"{unknown[0]!r} is not a known unit" if unknown else "they measure different things"
        raise UnitError(f"{source!r} cannot be converted to {target!r}: {why}")
    return number * _UNITS[source][1] / _UNITS[target][1]


def to_float(value: Number | Fraction) -> float:
    """The nearest float of a number; a number beyond the range of floats becomes the largest float of its sign."""
    try:
        return float(value)
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max


def number_text(value: Number | Fraction) -> str:
    """A number with about four significant digits: 8, 0.0123, 811.9, 449,900."""
    number = to_float(value)
    if number == 0 or not math.isfinite(number):
        return "0" if number == 0 else str(number)
    size = abs(number)
    if size >= 1e15 or size < 1e-4:
        return f"{number:.3e}"
    if number == int(number):
        return f"{int(number):,}"
    decimals = max(0, 3 - math.floor(math.log10(size)))
    text = f"{number:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: Number) -> str:
    """Seconds as text in readable units: 34 us, 2.31 s, 13 min 32 s, 1 h 05 min."""
    size = abs(seconds)
    if size == 0:
        return "0 s"
    if size < 1e-3:
        return f"{number_text(seconds * 1e6)} us"
    if size < 1:
        return f"{number_text(seconds * 1e3)} ms"
    if size < 99.95 or size > 1e9:
        return f"{number_text(seconds)} s"
    sign = "-" if seconds < 0 else ""
    minutes, rest = divmod(round(size), 60)
    if minutes < 60:
        return f"{sign}{minutes} min {rest:02d} s"
    return f"{sign}{minutes // 60} h {minutes % 60:02d} min"


#: {dimension: function that turns a value in the base unit into readable text}
_READABLE: Mapping[str, Callable[[float], str]] = {
    "time": duration,
    "size": lambda base: _scaled(base, "B"),
    "rate": lambda base: f"{_scaled(base, 'B/s')} ({_scaled(base * 8, 'bps')})",
    "flops": lambda base: f"{number_text(base / 1e12)} TFLOP/s" if abs(base) >= 1e10 else _scaled(base, "FLOP/s"),
    "power": lambda base: f"{number_text(base)} W",
    "frequency": lambda base: _scaled(base, "Hz"),
    "temperature": lambda base: f"{number_text(base)} \u00b0C",
    "ratio": number_text,
    "count": number_text,
}


def human(value: Number | None, unit: str) -> str:
    """A value in ``unit`` as readable text in a suitable unit; "not a number" for None."""
    if value is None or not math.isfinite(value):
        return "not a number"
    if unit in ("%", "percent"):
        return f"{number_text(value * _FACTORS[unit] * 100)} %"
    dimension, base = _UNITS.get(unit, ("", 0))[0], value * _FACTORS.get(unit, 1.0)
    if dimension in _READABLE:
        return _READABLE[dimension](base)
    return f"{number_text(base)} {f'{dimension.split()[0]}/s' if dimension else unit}".rstrip()


def _scaled(value: float, unit: str) -> str:
    for prefix in ("P", "T", "G", "M", "k"):
        factor = 10 ** _DECIMAL[prefix]
        if factor <= abs(value) < 1e6 * factor:
            return f"{value / factor:.2f} {prefix}{unit}"
    return f"{number_text(value)} {unit}"
