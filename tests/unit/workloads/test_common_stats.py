import math

import numpy as np
import pytest
from gpuval_workloads.common.laps import StepCurve, ThinnedSample, percentile


@pytest.mark.parametrize("percent", [0, 1, 50, 90, 99, 100])
@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_percentile_agrees_with_numpy(percent, size):
    values = list(np.random.default_rng(size).normal(size=size))
    assert math.isclose(percentile(values, percent), np.percentile(values, percent), rel_tol=1e-12, abs_tol=1e-12)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 101), ([1.0], -1)])
def test_percentile_refuses(values, percent):
    with pytest.raises(ValueError, match="percent"):
        percentile(values, percent)


def curve_of(values, points=2000):
    curve = StepCurve(points)
    for start in range(0, len(values), 7):
        curve.extend(values[start : start + 7])
    return curve


@pytest.mark.parametrize(
    ("count", "window"), [(1, 1), (2, 1), (5, 2), (6, 3), (30, 3), (100, 10), (200, 20), (5000, 20)]
)
def test_the_end_of_a_curve_is_a_tenth_within_bounds(count, window):
    values = list(range(count))
    assert curve_of(values).first_and_last() == (0, sum(values[-window:]) / window)


def test_a_large_model_that_stands_still_after_five_steps_has_learnt():
    """Losses of a llama of 1.1 billion on an H200, a short run: the mean of the first steps would hide the fall."""
    losses = [10.78, 8.71, 7.05, 6.86, 8.47, 6.45, 5.96, 5.40, 5.12, 6.32, *[6.5] * 72]
    first, last = curve_of(losses).first_and_last()
    assert (first, last) == (10.78, 6.5)


def test_a_curve_keeps_the_means_and_the_end():
    x, y = curve_of([float(v) for v in range(1000)], 100).thinned()
    assert (len(x), x[0], x[-1], y[0]) == (63, 16, 1000, 7.5)
    assert y[-1] == sum(range(992, 1000)) / 8
    assert curve_of([3.0, 4.0], 100).thinned() == ([1, 2], [3.0, 4.0])
    x, y = curve_of([1.0] * 1003, 100).thinned()
    assert (x[-1], set(y)) == (1003, {1.0})
    assert len(curve_of([1.0] * 1003)) == 1003
    assert curve_of([5.0, 6.0]).last == 6.0


def test_an_empty_curve_has_no_end():
    assert not StepCurve(100)
    assert StepCurve(100).thinned() == ([], [])
    with pytest.raises(ValueError, match="empty"):
        StepCurve(100).first_and_last()


def test_a_long_curve_takes_bounded_room():
    curve = StepCurve(100)
    for _ in range(1000):
        curve.extend([1.0] * 1000)
    assert len(curve) == 1_000_000
    assert len(curve.thinned()[0]) <= 100
    assert len(curve._sums) + len(curve._latest) <= 120


def test_a_sample_is_spread_evenly_over_all():
    sample = ThinnedSample(100)
    sample.extend(range(100))
    assert sample.kept == list(range(100))
    for start in range(100, 100_000, 1000):
        sample.extend(range(start, start + 1000))
    assert sample.count == 100_100
    assert 50 <= len(sample.kept) <= 100
    steps = {b - a for a, b in zip(sample.kept, sample.kept[1:])}
    assert (sample.kept[0], len(steps)) == (0, 1)
    assert sample.kept[-1] + steps.pop() >= sample.count
