"""Statistics on ranks, held against counting and against known values."""

import itertools
import math
import random

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.analysis import distribution
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.lists(st.integers(-5, 5) | st.floats(-1e6, 1e6), min_size=1, max_size=30)


@given(NUMBERS)
def test_midranks_share_what_is_equal(values):
    told = distribution.midranks(values)
    assert sum(told) == len(values) * (len(values) + 1) / 2
    for (one, rank), (other, other_rank) in itertools.combinations(zip(values, told, strict=True), 2):
        assert (one < other) == (rank < other_rank)


@pytest.mark.parametrize(("few", "many"), [(1, 5), (3, 4), (4, 4), (3, 7), (5, 5)])
def test_mann_whitney_is_the_share_of_all_choices(few, many):
    total = few + many
    sums = [sum(choice) for choice in itertools.combinations(range(1, total + 1), few)]
    middle = few * (total + 1) / 2
    for rank_sum in set(sums):
        counted = sum(abs(one - middle) >= abs(rank_sum - middle) for one in sums) / len(sums)
        assert distribution.mann_whitney(rank_sum, few, total) == pytest.approx(min(1, counted))


def test_the_approximation_goes_on_where_counting_ends(monkeypatch):
    rank_sum = 8 * 101 / 2 - 210
    exact = distribution.mann_whitney(rank_sum, 8, 100)
    monkeypatch.setattr(distribution, "_EXACT_GROUP", 0)
    assert exact <= distribution.mann_whitney(rank_sum, 8, 100) <= 1.5 * exact


def test_a_group_beyond_all_others_has_the_least_p():
    assert distribution.mann_whitney(36, 8, 100) == distribution.least_p(8, 100) == 2 / math.comb(100, 8)


def test_ties_never_make_it_less_probable_than_it_is():
    """Of two values that occur often, every choice is counted."""
    values = [0] * 6 + [1] * 4
    told = distribution.midranks(values)
    sums = [sum(told[at] for at in choice) for choice in itertools.combinations(range(10), 3)]
    middle = 3 * 11 / 2
    for rank_sum in set(sums):
        counted = sum(abs(one - middle) >= abs(rank_sum - middle) for one in sums) / len(sums)
        assert distribution.mann_whitney(rank_sum, 3, 10) >= counted - 1e-12


def test_chance_is_as_frequent_as_it_says():
    draw = random.Random(5)
    told = []
    for _ in range(2000):
        rank = distribution.midranks([draw.random() for _ in range(40)])
        told.append(distribution.mann_whitney(sum(rank[:8]), 8, 40))
    for level in (0.01, 0.05, 0.2):
        assert sum(one <= level for one in told) / len(told) == pytest.approx(level, abs=0.015)


def test_spearman():
    one = distribution.centred([1, 2, 3, 4, 5])
    assert distribution.spearman(one, distribution.centred([10, 100, 1000, 1e4, 1e9])) == pytest.approx(1)
    assert distribution.spearman(one, distribution.centred([5, 6, 7, 8, 7])) == pytest.approx(0.8207826816681233)
    assert distribution.centred([3, 3, 3]) is None
    assert distribution.spearman_p(1.0, 20) == 0
    assert 0.03 < distribution.spearman_p(0.7, 8) < 0.08


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_benjamini_hochberg(probabilities):
    told = distribution.benjamini_hochberg(probabilities)
    for level in (0.01, 0.2, 0.5):
        ordered = sorted(probabilities)
        passing = [p for at, p in enumerate(ordered, 1) if p <= level * at / len(ordered)]
        most = max(passing, default=-1)
        for probability, quality in zip(probabilities, told, strict=True):
            if abs(quality - level) > 1e-9:
                assert (quality <= level) == (probability <= most)
