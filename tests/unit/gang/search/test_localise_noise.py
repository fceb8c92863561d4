"""Noise accuses no node: what is seen of it raises the bar, and a slow node is still found.

A few gangs of each kind: how often each is right is measured by benchmarks/localisation.
"""

import itertools
import math
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.fault_search import FaultSearch
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.pair_noise import (
    GroupResult,
    PairNoise,
    deviation,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.search_limits import TUNING, SearchLimits
from gangs import USUAL, Fault, build, find, search
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[4]
EXPECTED = 0.03


@pytest.mark.parametrize("count", [3, 4, 5, 6, 8, 16])
def test_no_clean_gang_has_a_bad_or_suspect_node_at_the_noise_that_is_expected(count):
    for seed in range(20):
        finding = find(build(count, seed, noise=0.03))
        assert set(finding.nodes.values()) == {"healthy"}, (seed, finding)


@pytest.mark.parametrize("fall", [0.0, 0.02])
@pytest.mark.parametrize("floor", [None, USUAL])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 16, 64])
def test_no_node_is_accused_where_bigger_groups_are_slower_by_nature_or_two_nodes_reach_what_is_expected(
    count, floor, fall
):
    for seed in range(100 if count == 2 else 10 if count <= 16 else 3):
        gang = build(count, seed, noise=0.03)
        gang.fall = fall
        finding = find(gang, SearchLimits(floor_bytes_per_second=floor))
        assert finding.clean, (seed, finding)


def test_a_whole_gang_that_is_far_slower_than_its_pairs_is_reported_and_no_node_is_accused():
    gang = build(16, 1)
    gang.bad = {node: Fault("slow", 0.4, least=4) for node in gang.nodes}
    finding = find(gang, SearchLimits(floor_bytes_per_second=USUAL))
    assert set(finding.nodes.values()) == {"healthy"}
    assert not finding.clean
    (line,) = finding.gang
    assert re.fullmatch(r"the whole gang: is .* % slower in 2 of 2 rounds; each pair is fine", line)


@pytest.mark.parametrize("values", [(0.5, 0.5), (0.9, 0.2)])
def test_two_nodes_that_are_far_slower_than_is_expected_are_suspect_however_noisy(values):
    done = FaultSearch.start(["a", "b"], limits=SearchLimits(floor_bytes_per_second=USUAL))
    place = 0
    while (round_ := done.next_round()) is not None:
        done.add_results({round_[0].id: GroupResult("ok", USUAL * values[place % 2])}, 1.0)
        place += 1
    assert set(done.finding().nodes.values()) == {"suspect"}


@pytest.mark.parametrize("tail", [0.0, 0.01])
@pytest.mark.parametrize("count", [3, 4, 5, 6, 8, 16])
def test_at_twice_the_noise_no_good_node_is_bad_and_most_are_cleared(count, tail):
    findings = [find(build(count, seed, noise=0.06, tail=tail)) for seed in range(10)]
    assert not [finding for finding in findings if finding.of_class("bad")]
    assert sum(finding.clean for finding in findings) >= 8


@pytest.mark.parametrize("count", [3, 4, 5, 6, 8, 64])
def test_a_node_that_is_10_percent_slower_is_found(count):
    outcomes = Counter()
    for seed in range(10):
        gang = build(count, seed)
        slow = gang.nodes[seed % count]
        gang.bad = {slow: Fault("slow", 0.9)}
        finding = find(gang)
        outcomes[finding.nodes[slow]] += 1
        assert set(finding.of_class("bad")) <= {slow}
        assert finding.rounds <= 20
    assert outcomes["bad"] >= (9 if count == 3 else 10), outcomes


@pytest.mark.parametrize("fault", [Fault("slow", 0.7), Fault("slow", 0.1), Fault("wrong"), Fault("timeout")])
@pytest.mark.parametrize("count", [4, 6, 8])
def test_at_twice_the_noise_a_clear_fault_is_found(count, fault):
    for seed in range(4):
        gang = build(count, seed, noise=0.06)
        bad = gang.nodes[seed % count]
        gang.bad = {bad: fault}
        finding = find(gang)
        assert finding.nodes[bad] == "bad", (seed, finding)
        assert finding.of_class("bad") == [bad]


@pytest.mark.parametrize(
    ("fault", "noise", "count"),
    [
        *itertools.product([Fault("slow", 0.1), Fault("timeout")], [0.06, 0.1], [5, 6, 8]),
        *itertools.product([Fault("slow", 0.1)], [0.2], [5, 6, 8]),
        *itertools.product([Fault("slow", 0.1), Fault("timeout")], [0.06], [16]),
    ],
)
def test_a_link_that_is_far_slower_or_fails_is_named_however_noisy_and_no_node_is_bad_for_it(fault, noise, count):
    for seed in range(3):
        gang = build(count, seed, noise=noise)
        pair = gang.nodes[1:3]
        gang.links = {frozenset(pair): fault}
        finding = find(gang)
        assert finding.bad_links == [tuple(pair)], (seed, finding)
        assert not finding.of_class("bad")


@pytest.mark.parametrize("noise", [0.03, 0.1])
def test_a_slow_node_with_a_far_slower_link_is_bad_and_so_is_its_link(noise):
    for seed in range(10):
        gang = build(8, seed, noise=noise)
        gang.bad = {gang.nodes[1]: Fault("slow", 0.5)}
        gang.links = {frozenset(gang.nodes[1:3]): Fault("slow", 0.05)}
        finding = find(gang)
        assert finding.of_class("bad") == [gang.nodes[1]], (seed, finding)
        assert tuple(gang.nodes[1:3]) in finding.bad_links + finding.suspect_links


def found_by(count, seed, factor, **options):
    """What is found where each group has ``factor(round, nodes)`` of its speed."""
    gang = build(count, seed, **options)
    searching = FaultSearch.start(gang.nodes, gang.topology, SearchLimits())
    while (round_ := searching.next_round()) is not None:
        results, wall = gang.run(round_)
        for group in round_:
            value = results[group.id].bus_bytes_per_second * factor(len(searching.rounds), group.nodes)
            results[group.id] = GroupResult("ok", bus_bytes_per_second=value)
        searching.add_results(results, wall)
    return searching.finding()


@pytest.mark.parametrize("count", [8, 32])
def test_a_node_that_is_far_slower_with_other_racks_alone_is_not_mistaken_for_links(count):
    racks = build(count, 0, rack=4).topology

    def factor(_round, nodes):
        return 0.2 if "node-002" in nodes and len({racks.place(node, "rack") for node in nodes}) > 1 else 1.0

    for seed in range(4):
        finding = found_by(count, seed, factor, rack=4)
        assert finding.nodes["node-002"] in (("bad",) if count == 32 else ("bad", "suspect")), (seed, finding)
        assert not finding.bad_links


@pytest.mark.parametrize("count", [8, 16])
def test_a_node_that_becomes_slow_amid_the_search_is_not_mistaken_for_links(count):
    for seed in (2, 13, 14, 16):
        finding = found_by(count, seed, lambda number, nodes: 0.5 if "node-002" in nodes and number >= 5 else 1.0)
        assert finding.nodes["node-002"] in (("bad",) if count == 16 else ("bad", "suspect")), (seed, finding)
        assert not finding.bad_links + finding.suspect_links


@pytest.mark.parametrize("count", [6, 16])
def test_two_slow_nodes_are_slower_together_and_their_link_is_fine(count):
    slow = {"node-002", "node-003"}
    for seed in range(4):
        finding = found_by(count, seed, lambda _round, nodes: 0.5 ** len(slow & set(nodes)))
        assert set(finding.of_class("bad")) == slow, (seed, finding)
        assert not finding.bad_links + finding.suspect_links


@pytest.mark.parametrize("count", [4, 5])
def test_a_node_that_fails_most_times_is_bad_and_its_partners_are_not_suspect_for_it(count):
    for seed in range(10):
        gang = build(count, seed)
        gang.bad = {"node-002": Fault("crash", rate=0.8)}
        finding = find(gang)
        assert finding.nodes == dict.fromkeys(gang.nodes, "healthy") | {"node-002": "bad"}, (seed, finding)
        assert not finding.bad_links + finding.suspect_links


def test_a_slow_node_is_accused_by_more_rounds_where_few_nodes_are_measured():
    gang = build(4, 1)
    gang.bad = {"node-002": Fault("slow", 0.9)}
    done = search(gang)
    assert done.finding().of_class("bad") == ["node-002"]
    fresh = [group for round_ in done.rounds for group in round_ if group.tested == ("node-002",)]
    assert len(fresh) >= 6
    beside = [round_ for round_ in done.rounds for group in round_ if group.purpose == "control"]
    assert len(beside) >= 6  # each test has a good pair beside it: what is usual is noisy, too


def test_of_three_nodes_the_pairs_come_in_turn():
    gang = build(3, 1)
    gang.bad = {"node-002": Fault("slow", 0.9)}
    done = search(gang)
    assert done.finding().nodes == {"node-001": "healthy", "node-002": "bad", "node-003": "healthy"}
    ran = Counter(group.nodes for round_ in done.rounds for group in round_)
    assert min(ran.values()) >= 4
    assert ran["node-001", "node-003"] >= max(ran.values()) - 1  # the measure has as many as who is measured by it


def test_fresh_results_clear_a_node_that_was_low_by_chance():
    """Low in all the rounds of pairs, and right in all tests after that: it is not held against it."""
    names = [f"n{one}" for one in range(8)]
    drawn = random.Random(3)
    done = FaultSearch.start(names, limits=SearchLimits(climb=False))
    while (round_ := done.next_round()) is not None:
        first = round_[0].purpose == "pair"
        results = {}
        for group in round_:
            factor = 0.9 if first and "n3" in group.nodes else 1.0
            results[group.id] = GroupResult("ok", USUAL * factor * math.exp(drawn.gauss(0, 0.02)))
        done.add_results(results, 1.0)
    assert done.finding().nodes["n3"] == "healthy"


@given(st.floats(0.005, 0.3), st.integers(0, 500), st.floats(2.0, 6.0))
def test_the_bar_rises_with_noise_and_falls_with_what_is_known(sigma, known, deviations):
    bar = PairNoise(sigma, known, EXPECTED).bar(deviations)
    assert bar >= deviations
    assert PairNoise(sigma * 1.5, known, EXPECTED).bar(deviations) >= bar
    assert PairNoise(sigma, known + 10, EXPECTED).bar(deviations) < bar
    assert PairNoise(sigma, 10**6, EXPECTED).bar(deviations) == pytest.approx(deviations, rel=1e-3)


@pytest.mark.parametrize("count", [10, 20, 60, 150, 400])
@pytest.mark.parametrize("noise", [0.03, 0.06])
def test_noise_is_estimated_without_a_slant(count, noise):
    drawn = random.Random(count)
    seen = [deviation([drawn.gauss(0, noise) for _ in range(count)], EXPECTED) for _ in range(200)]
    assert noise * 0.95 < sum(seen) / len(seen) < noise * 1.2
    assert min(seen) >= EXPECTED


def test_one_result_that_is_far_off_is_no_noise():
    assert deviation([0.01, -0.01] * 6 + [-0.5], EXPECTED) == EXPECTED
    assert deviation([], EXPECTED) == deviation([0.2], EXPECTED) == EXPECTED
    assert deviation([0.3, -0.3] * TUNING.prior, EXPECTED) > 0.2


def test_of_many_results_explained_results_do_not_make_the_noise_smaller():
    drawn = random.Random(1)
    whole = [drawn.gauss(0, 0.06) for _ in range(2000)]
    assert deviation([value for value in whole if value > -0.06], EXPECTED) > 0.055


def test_the_next_round_is_the_same_in_every_process():
    """A controller that goes on with a saved search asks for the round that was begun."""
    script = (
        "from gangs import *\n"
        "gang = build(16, 3, noise=0.06)\n"
        "print([[group.nodes for group in round_] for round_ in search(gang).rounds])"
    )
    path = f"{ROOT / 'collections'}:{ROOT / 'benchmarks' / 'localisation'}"
    found = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("margin", [0.01, 0.3, 0.6, 0.95])
def test_any_margin_will_do(margin):
    gang = build(8, 1)
    gang.bad = {"node-003": Fault("timeout")}
    assert find(gang, SearchLimits(margin_ratio=margin)).nodes["node-003"] == "bad"


def test_of_two_good_nodes_the_pair_has_every_other_round_beside_a_slow_one_and_none_beside_one_that_hangs():
    def controls(fault):
        gang = build(4, 1)
        gang.bad = {"node-002": fault, "node-004": fault}
        done = search(gang)
        assert set(done.finding().of_class("bad")) <= set(gang.bad)
        return sum(group.purpose == "control" for round_ in done.rounds for group in round_)

    assert controls(Fault("slow", 0.7)) >= 2
    assert controls(Fault("timeout")) == 0
