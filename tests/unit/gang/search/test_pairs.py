"""Rounds are disjoint, no pair comes twice, and the first ones measure the gang's ring and what lies between racks."""

import itertools

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.topology import (
    Topology,
    count_pair_rounds,
    pair_rounds,
)


def line(count, rack=0):
    names = [f"node-{number}" for number in range(1, count + 1)]
    places = {name: {"rack": f"r{place // rack + 1}"} for place, name in enumerate(names)} if rack else {}
    topology = Topology.of_labels(places)
    return topology.line(reversed(names)), topology


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9, 16, 33, 64])
@pytest.mark.parametrize("rack", [0, 4])
def test_all_rounds_are_disjoint_and_have_each_pair_once(count, rack):
    names, topology = line(count, rack)
    rounds = pair_rounds(names, topology, 1000)
    assert len(rounds) == count_pair_rounds(count)
    for made in rounds:
        nodes = [node for pair in made for node in pair]
        assert len(nodes) == len(set(nodes)) == count - count % 2
    every = [frozenset(pair) for made in rounds for pair in made]
    assert len(every) == len(set(every)) == len(list(itertools.combinations(names, 2)))


@pytest.mark.parametrize("count", [4, 5, 8, 17, 64, 232])
def test_the_first_two_rounds_are_the_ring(count):
    names, topology = line(count, 8)
    found = {frozenset(pair) for made in pair_rounds(names, topology, 2) for pair in made}
    ring = {frozenset(pair) for pair in zip(names, [*names[1:], names[0]])}
    missing = ring - found
    assert not missing if count % 2 == 0 else missing == {frozenset((names[0], names[-1]))}


@pytest.mark.parametrize("count", [16, 64, 232, 256])
def test_the_next_rounds_cross_racks(count):
    names, topology = line(count, 8)
    rounds = pair_rounds(names, topology, 4)
    across = [sum(topology.place(a, "rack") != topology.place(b, "rack") for a, b in made) for made in rounds]
    assert across[0] == 0  # racks of an even size: neighbours
    assert min(across[2:]) == count // 2
    met = {frozenset(topology.place(node, "rack") for node in pair) for made in rounds[2:] for pair in made}
    assert {name for pair in met for name in pair} == {topology.place(node, "rack") for node in names}


def test_names_are_put_in_natural_order_by_rack():
    topology = Topology.of_labels(
        {"n10": {"rack": "r1"}, "n2": {"rack": "r1"}, "n1": {"rack": "r10"}, "n3": {"rack": "r2"}}
    )
    assert topology.line(["n1", "n10", "n3", "n2"]) == ["n2", "n10", "n3", "n1"]


def test_no_round_for_one_node():
    assert pair_rounds(["a"], Topology(), 4) == []
