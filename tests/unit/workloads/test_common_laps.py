"""Speeds of made-up laps: constant, noisy, with bursts, with a drift, and laps that depend on each other."""

import random

import pytest
from gpuval_workloads.common.laps import LapStatistics, LapSummary, correlation_time, uncertainty


def bursts(count, every, length, factor):
    """Laps of 1 ms of which ``length`` in every ``every`` take ``factor`` times as long."""
    return [1e-3 * (factor if number % every < length else 1) for number in range(count)]


def autocorrelated(draw, count, memory, sigma=0.01):
    value, laps = 0.0, []
    for _ in range(count):
        value = memory * value + (1 - memory**2) ** 0.5 * draw.gauss(0, sigma)
        laps.append(1e-3 * (1 + value))
    return laps


def test_constant_laps_lose_nothing():
    summary = LapStatistics([0.25] * 400, wall_seconds=125).summary()
    assert summary == LapSummary(0.25, 0.25, 0.0, 0.0, 1.0, 0.8, 0.0)


@pytest.mark.parametrize("count", [5_000, 60_000])
def test_what_is_lost_in_bursts_is_part_of_the_speed_whatever_the_median_says(count):
    summary = LapStatistics(bursts(count, every=100, length=5, factor=3)).summary()
    assert summary.median_seconds == 1e-3 and summary.spread_ratio == 0
    assert summary.seconds == pytest.approx(1.1e-3)
    assert summary.lost_ratio == pytest.approx(0.1 / 1.1)
    assert summary.slowest_hundredth_ratio == pytest.approx(1 / 3)


def test_sums_are_of_all_laps_and_the_sample_is_bounded():
    laps = LapStatistics()
    for _ in range(10):
        laps.extend(bursts(9_999, every=3_333, length=1, factor=1000))
    assert laps.count == 99_990
    assert laps.seconds == pytest.approx(1e-3 * (99_990 + 30 * 999))
    assert len(laps._sample.kept) <= 20_000


def test_a_few_laps_that_are_far_faster_lose_nothing():
    """As the first products of a cold H200, before its power limit slows it down."""
    assert LapStatistics([0.5] * 5 + [1.0] * 95).summary().lost_ratio == 0


@pytest.mark.parametrize(("count", "is_shown"), [(299, False), (300, True)])
def test_the_slowest_hundredth_needs_300_laps(count, is_shown):
    assert (LapStatistics([1.0] * count).summary().slowest_hundredth_ratio is not None) == is_shown


def test_an_error_needs_twenty_blocks_of_five_laps():
    draw = random.Random(1)
    assert LapStatistics(draw.gauss(1, 0.1) for _ in range(99)).summary().uncertainty_ratio is None
    assert uncertainty([1, 2] * 50) is not None
    assert uncertainty([]) is None and uncertainty([1.0]) is None


@pytest.mark.parametrize(("memory", "count"), [(0.0, 2_000), (0.9, 20_000), (0.98, 60_000)])
def test_the_error_is_that_of_means_of_laps_that_depend_on_each_other(memory, count):
    draw = random.Random(7)
    found = [LapStatistics(autocorrelated(draw, count, memory)).summary() for _ in range(40)]
    known = [summary for summary in found if summary.uncertainty_ratio is not None]
    assert len(known) >= 30
    off = sum(abs(summary.seconds / 1e-3 - 1) > 2 * summary.uncertainty_ratio for summary in known)
    assert off <= 5, "two standard errors hold 95 % of them"
    real = (0.01 / count**0.5) * ((1 + memory) / (1 - memory)) ** 0.5
    for summary in known:
        assert 0.4 * real < summary.uncertainty_ratio < 2 * real


def test_a_drift_leaves_too_few_independent_blocks():
    assert LapStatistics(1e-3 * (1 + number / 5_000) for number in range(5_000)).summary().uncertainty_ratio is None


def test_a_correlation_lasts_as_long_as_a_burst():
    values = [2.0 if number % 500 < 50 else 1.0 for number in range(10_000)]
    assert 20 < correlation_time(values) < 100
    assert correlation_time([1.0, 2.0] * 500) == 1


def test_the_mean_of_ranks_leaves_out_what_one_of_them_does_not_know():
    two = [LapStatistics([1.0] * 400).summary(), LapStatistics([3.0] * 50).summary()]
    mean = LapSummary.mean(two)
    assert (mean.seconds, mean.slowest_hundredth_ratio, mean.busy_ratio) == (2.0, None, None)


def test_a_speed_that_falls_is_no_sustained_speed():
    assert LapStatistics([1.0] * 6 + [1.25] * 3).sustained_ratio == pytest.approx(0.8)
    assert LapStatistics([1.0]).sustained_ratio == 1
