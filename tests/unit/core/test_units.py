from fractions import Fraction

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import units
from hypothesis import given
from hypothesis import strategies as st

UNITS = sorted(units._UNITS)


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (0.1, "seconds", "ms", 100),
        (34, "us", "s", Fraction(34, 10**6)),
        (16.07, "GB", "bytes", 16_070_000_000),
        (1, "GiB", "bytes", 2**30),
        (5.79, "Gbps", "bytes_per_second", 723_750_000),
        (1, "MB/s", "kbit/s", 8000),
        (1, "PFLOP/s", "TFLOP/s", 1000),
        (0.7, "kW", "watts", 700),
        (1.98, "GHz", "MHz", 1980),
        (8, "%", "ratio", Fraction(8, 100)),
        (85, "celsius", "celsius", 85),
        (3, "loss", "loss", 3),
    ],
)
def test_exact(value, source, target, expected):
    assert units.convert(value, source, target) == expected


@pytest.mark.parametrize(
    ("source", "target"), [("seconds", "bytes"), ("loss", "count"), ("Gbps", "GB"), ("celsius", "watts")]
)
def test_other_dimensions_are_refused(source, target):
    with pytest.raises(units.UnitError):
        units.convert(1, source, target)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_only_finite_numbers(value):
    with pytest.raises(units.UnitError):
        units.convert(value, "seconds", "ms")


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(), st.sampled_from(UNITS), st.sampled_from(UNITS))
def test_there_and_back_is_exact(value, source, target):
    if units.compatible(source, target):
        assert units.convert(units.convert(value, source, target), target, source) == units.exact(value)
    else:
        with pytest.raises(units.UnitError):
            units.convert(value, source, target)


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(UNITS))
def test_human_is_one_short_line(value, unit):
    text = units.human(value, unit)
    assert text
    assert "\n" not in text
    assert len(text) < 80


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (16_070_000_000, "bytes", "16.07 GB"),
        (723_750_000, "bytes_per_second", "723.75 MB/s (5.79 Gbps)"),
        (3.4e-5, "seconds", "34 us"),
        (0.2, "seconds", "200 ms"),
        (22.2, "seconds", "22.2 s"),
        (99.99, "seconds", "1 min 40 s"),
        (811.93, "seconds", "13 min 32 s"),
        (3900, "seconds", "1 h 05 min"),
        (449_900, "tokens_per_second", "449,900 tokens/s"),
        (740.26, "TFLOP/s", "740.3 TFLOP/s"),
        (8, "count", "8"),
        (None, "count", "not a number"),
        (2.5, "loss", "2.5 loss"),
        (1_980_000_000, "hertz", "1.98 GHz"),
    ],
)
def test_human(value, unit, text):
    assert units.human(value, unit) == text
