import math

import numpy as np
import pytest
from gpuval_workloads.common.stats import first_and_last, median, percentile, thinned


@pytest.mark.parametrize("percent", [0, 1, 50, 90, 99, 100])
@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_percentile_agrees_with_numpy(percent, size):
    values = list(np.random.default_rng(size).normal(size=size))
    assert math.isclose(percentile(values, percent), np.percentile(values, percent), rel_tol=1e-12, abs_tol=1e-12)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 101), ([1.0], -1)])
def test_percentile_refuses(values, percent):
    with pytest.raises(ValueError, match="percent"):
        percentile(values, percent)


def test_median_of_an_even_number():
    assert median([4, 1, 3, 2]) == 2.5


@pytest.mark.parametrize(
    ("count", "window"), [(1, 1), (2, 1), (5, 2), (6, 3), (30, 3), (100, 10), (200, 20), (5000, 20)]
)
def test_the_end_of_a_curve_is_a_tenth_within_bounds(count, window):
    values = list(range(count))
    assert first_and_last(values) == (0, sum(values[-window:]) / window)


def test_a_large_model_that_stands_still_after_five_steps_has_learnt():
    """Losses of a llama of 1.1 billion on an H200, a short run: the mean of the first steps would hide the fall."""
    losses = [10.78, 8.71, 7.05, 6.86, 8.47, 6.45, 5.96, 5.40, 5.12, 6.32, *[6.5] * 72]
    first, last = first_and_last(losses)
    assert (first, last) == (10.78, 6.5)


def test_thinned_keeps_the_mean_and_the_end():
    x, y = thinned(range(1, 1001), [float(v) for v in range(1000)], 100)
    assert (len(x), x[-1], y[0]) == (100, 1000, 4.5)
    assert thinned([1, 2], [3.0, 4.0], 100) == ([1, 2], [3.0, 4.0])
    x, y = thinned(range(1, 1004), [1.0] * 1003, 100)
    assert len(x) <= 100
    assert x[-1] == 1003
