"""Who asks whom: bounded, both ways, all zones, nobody left out."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.network.sampling import EXTRA, plan, uncovered


def names(count):
    return [f"node-{number:03}" for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 32])
def test_few_nodes_all_ask_each_other(count):
    nodes = names(count)
    assert plan(nodes, {}) == {name: [other for other in nodes if other != name] for name in nodes}


@pytest.mark.parametrize("count", [33, 34, 64, 100, 101, 500])
@pytest.mark.parametrize("degree", [4, 8])
def test_many_nodes_ask_a_bounded_number_and_are_asked_by_as_many(count, degree):
    peers = plan(names(count), {}, degree=degree)
    for name, others in peers.items():
        assert len(set(others)) == len(others) == degree
        assert name not in others
        assert all(name in peers[other] for other in others), "both directions of a link are measured"


@pytest.mark.parametrize("count", [33, 100, 500])
def test_the_links_hang_together_without_any_one_node(count):
    peers = plan(names(count), {})
    for gone in (names(count)[0], names(count)[count // 2]):
        start = next(name for name in peers if name != gone)
        reached, todo = {start}, [start]
        while todo:
            new = set(peers[todo.pop()]) - reached - {gone}
            reached |= new
            todo += new
        assert len(reached) == count - 1


def test_every_pair_of_zones_has_a_link_and_no_node_bears_it_all():
    nodes = names(100)
    zones = {name: f"rack-{place // 5:02}" for place, name in enumerate(nodes)}
    without = {tuple(sorted((zones[a], zones[b]))) for a, others in plan(nodes, {}).items() for b in others}
    assert len(without) < 20 * 21 / 2, "the circle alone would not do"
    peers = plan(nodes, zones)
    assert uncovered(peers, zones) == []
    assert max(map(len, peers.values())) <= 8 + EXTRA
    assert plan(nodes, zones) == peers, "the same nodes get the same plan"


def test_pairs_of_zones_beyond_the_bounds_are_reported():
    nodes = names(100)
    zones = {name: name for name in nodes}
    peers = plan(nodes, zones)
    assert max(map(len, peers.values())) <= 8 + EXTRA
    assert uncovered(peers, zones)
