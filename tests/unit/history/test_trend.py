"""Drift: found where it is, seldom where it is not, and unmoved by one odd run."""

import random
import statistics

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.history.trend import (
    FALSE_ALARMS,
    MIN_RUNS,
    MIN_TOTAL,
    student,
    trend_of,
)
from hypothesis import given
from hypothesis import strategies as st

FIGURES = st.lists(st.floats(1, 1e6), min_size=MIN_RUNS, max_size=20)


def noise(kind, rng):
    if kind == "laplace":
        return rng.choice((-1, 1)) * rng.expovariate(1)
    if kind == "odd runs":
        return rng.gauss(0, 1) * (10 if rng.random() < 0.05 else 1)
    return rng.gauss(0, 1)


@pytest.mark.parametrize("kind", ["normal", "laplace", "odd runs"])
@pytest.mark.parametrize("runs", [4, 5, 8, 20])
@pytest.mark.parametrize("percent", [0.5, 5])
def test_flat_noise_seldom_drifts(kind, runs, percent):
    rng, series = random.Random(f"{kind} {runs} {percent}"), 1000
    alarms = sum(trend_of([100 + percent * noise(kind, rng) for _ in range(runs)]).drifts for _ in range(series))
    assert alarms < 0.01 * series


def test_with_sisters_flat_noise_hardly_ever_drifts():
    rng, series = random.Random(2), 5000
    alarms = sum(trend_of([100 + rng.gauss(0, 2) for _ in range(4)], floor=0.02).drifts for _ in range(series))
    assert alarms < 0.0005 * series


@pytest.mark.parametrize(("runs", "total", "percent"), [(5, 6, 0.2), (6, 6, 0.3), (8, 5, 0.5), (12, 3.5, 0.5)])
def test_drift_beyond_noise_is_found(runs, total, percent):
    rng = random.Random(f"{runs} {total}")
    found = 0
    for _ in range(500):
        line = [700 * (1 - total / 100 * run / (runs - 1)) for run in range(runs)]
        found += trend_of([value * (1 + percent / 100 * rng.gauss(0, 1)) for value in line]).drifts
    assert found > 0.9 * 500


def test_a_line_is_reported_as_it_is():
    trend = trend_of([100, 99, 98, 97, 96])
    assert trend.median == 98
    assert trend.per_run_ratio == pytest.approx(-1 / 98)
    assert trend.total_ratio == pytest.approx(-4 / 98)
    assert trend.drifts
    assert trend.low_ratio == pytest.approx(trend.high_ratio)


def test_one_odd_run_is_no_drift():
    assert not trend_of([100, 100.1, 99.9, 100, 100.1, 80]).drifts
    assert not trend_of([50, 100, 100.1, 99.9, 100, 100.1]).drifts


def test_a_drift_of_two_percent_or_less_is_none():
    values = [100 * (1 - 0.019 * run / 9) for run in range(10)]
    assert not trend_of(values).drifts
    assert abs(trend_of(values).total_ratio) < MIN_TOTAL


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0], [-1.0, -1.0, 1.0, 1.0]])
def test_too_few_runs_or_a_median_of_zero_have_no_trend(values):
    assert trend_of(values) is None


def test_students_quantiles_join_without_a_step():
    quantiles = [student(freedom) for freedom in range(2, 200)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert student(11) == pytest.approx(3.4966, abs=2e-3)
    assert student(30) == pytest.approx(3.0298, abs=1e-3)
    assert student(10**6) == pytest.approx(statistics.NormalDist().inv_cdf(1 - FALSE_ALARMS / 2), abs=1e-4)


@given(FIGURES, st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(values, factor):
    one, other = trend_of(values), trend_of([value * factor for value in values])
    assert other.per_run_ratio == pytest.approx(one.per_run_ratio, rel=1e-6, abs=1e-9)
    assert other.scatter_ratio == pytest.approx(one.scatter_ratio, rel=1e-6, abs=1e-9)


@given(FIGURES)
def test_the_other_way_round_it_is_the_opposite(values):
    one, other = trend_of(values), trend_of(values[::-1])
    assert other.total_ratio == pytest.approx(-one.total_ratio, abs=1e-9)
    assert one.low_ratio <= one.total_ratio <= one.high_ratio


@given(FIGURES, st.floats(0, 10), st.floats(0, 10))
def test_more_scatter_to_reckon_with_never_finds_a_drift(values, floor, more):
    if trend_of(values, floor=floor + more).drifts:
        assert trend_of(values, floor=floor).drifts
