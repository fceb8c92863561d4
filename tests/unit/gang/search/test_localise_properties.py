"""The order of nodes does not matter; taking results away never makes a node healthy; no good node is accused."""

import random

from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.fault_search import FaultSearch
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.pair_noise import GroupResult
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.search_limits import SearchLimits
from gangs import Fault, build, search
from hypothesis import given, settings
from hypothesis import strategies as st

CLEAR = [Fault("slow", 0.5), Fault("slow", 0.1), Fault("wrong"), Fault("timeout"), Fault("crash")]
NOW_AND_THEN = [Fault("wrong", rate=0.5), Fault("timeout", rate=0.7)]


@st.composite
def gangs(draw, faults=tuple(CLEAR)):
    count = draw(st.sampled_from([6, 8, 11, 16, 24]))
    gang = build(count, draw(st.integers(0, 10_000)), rack=draw(st.sampled_from([0, 4])))
    bad = draw(st.lists(st.sampled_from(gang.nodes), max_size=max(1, count // 5), unique=True))
    gang.bad = {node: draw(st.sampled_from(faults)) for node in bad}
    return gang


@given(gangs(), st.integers(0, 1000))
@settings(max_examples=30)
def test_the_order_of_nodes_does_not_matter(gang, seed):
    def find(nodes):
        gang.random.seed(seed)
        found = FaultSearch.start(nodes, gang.topology)
        while (round_ := found.next_round()) is not None:
            found.add_results(*gang.run(round_))
        return found.finding()

    shuffled = random.Random(seed).sample(gang.nodes, len(gang.nodes))
    assert find(gang.nodes) == find(shuffled)


@given(gangs(faults=(*CLEAR, *NOW_AND_THEN)))
@settings(max_examples=80)
def test_no_good_node_is_called_bad(gang):
    assert set(search(gang).finding().of_class("bad")) <= set(gang.bad)


@given(gangs())
@settings(max_examples=80)
def test_every_bad_node_is_found(gang):
    finding = search(gang).finding()
    assert set(gang.bad) <= {*finding.of_class("bad"), *finding.of_class("suspect")}


@given(gangs(faults=(*CLEAR, *NOW_AND_THEN)), st.data())
@settings(max_examples=100)
def test_taking_results_away_makes_no_node_healthy(gang, data):
    done = search(gang, SearchLimits(climb=False))
    before = done.finding()
    names = [group.id for round_ in done.rounds for group in round_]
    gone = set(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=12, unique=True)))
    less = FaultSearch.start(gang.nodes, gang.topology, done.limits)
    less.rounds = done.rounds
    less.results = [
        {name: GroupResult("missing") if name in gone else result for name, result in (results or {}).items()}
        for results in done.results
    ]
    after = less.finding()
    healthy = set(after.of_class("healthy")) - set(before.of_class("healthy"))
    assert not healthy & {*before.of_class("bad"), *before.of_class("suspect")}


@given(gangs(), st.data())
@settings(max_examples=10)
def test_every_search_ends_whatever_comes(gang, data):
    states = st.sampled_from(["ok", "ok", "ok", "slow", "wrong", "timeout", "crash", "missing"])
    figures = st.one_of(st.none(), st.floats(1e6, 1e11))
    found = FaultSearch.start(gang.nodes, gang.topology, SearchLimits(rounds=30))
    while (round_ := found.next_round()) is not None:
        assert len(found.rounds) <= 30
        nodes = [node for group in round_ for node in group.nodes]
        assert len(nodes) == len(set(nodes))
        found.add_results({group.id: GroupResult(data.draw(states), data.draw(figures)) for group in round_})
        found.finding()
    assert set(found.finding().nodes) == set(gang.nodes)
