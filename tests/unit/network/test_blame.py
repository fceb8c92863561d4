"""One bad node is one finding; a bad link is not blamed on a node."""

import itertools

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.network import sampling
from ansible_collections.gpuval.fleet.plugins.plugin_utils.network.blame import ImplicatedNode, blame, both_ways


def mesh(count, bad):
    """All pairs of nodes a, b, c, ...; `bad` says which are."""
    return {pair: bad(*pair) for pair in itertools.permutations("abcdefghij"[:count], 2)}


def test_nothing_bad_blames_no_node():
    assert blame(mesh(4, lambda one, two: False)) == ([], [])
    assert blame({}) == ([], [])


@pytest.mark.parametrize("count", [3, 4, 10])
def test_a_node_that_is_unreachable(count):
    assert blame(mesh(count, lambda one, two: two == "b")) == ([ImplicatedNode("b", "to", count - 1, count - 1)], [])


@pytest.mark.parametrize("count", [3, 4, 10])
def test_a_node_that_reaches_no_other(count):
    assert blame(mesh(count, lambda one, two: one == "b")) == ([ImplicatedNode("b", "from", count - 1, count - 1)], [])


@pytest.mark.parametrize("count", [3, 4, 10])
def test_a_node_that_is_cut_off(count):
    tries = 2 * (count - 1)
    assert blame(mesh(count, lambda one, two: "b" in (one, two))) == ([ImplicatedNode("b", "both", tries, tries)], [])


def test_a_link_is_a_link():
    nodes, links = blame(mesh(4, lambda one, two: {one, two} == {"a", "c"}))
    assert (nodes, both_ways(links)) == ([], ([("a", "c")], []))
    nodes, links = blame(mesh(4, lambda one, two: (one, two) == ("a", "c")))
    assert (nodes, both_ways(links)) == ([], ([], [("a", "c")]))


def test_two_nodes_alone_cannot_be_distinguished():
    nodes, links = blame({("a", "b"): True, ("b", "a"): True})
    assert (nodes, both_ways(links)) == ([], ([("a", "b")], []))


def test_two_bad_nodes_and_a_bad_link():
    nodes, links = blame(mesh(10, lambda one, two: two in "bc" or {one, two} == {"e", "f"}))
    assert {(odd.node, odd.side) for odd in nodes} == {("b", "to"), ("c", "to")}
    assert both_ways(links) == ([("e", "f")], [])


@pytest.mark.parametrize("bad", ["node-000", "node-050", "node-099"])
def test_a_sampled_fleet_names_the_node_too(bad):
    peers = sampling.plan([f"node-{number:03}" for number in range(100)], {})
    tried = {(name, other): other == bad for name, others in peers.items() for other in others}
    assert blame(tried) == ([ImplicatedNode(bad, "to", 8, 8)], [])
