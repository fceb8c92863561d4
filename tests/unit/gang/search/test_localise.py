"""The bad node, link or boundary is found, no other is accused, and every search ends."""

import json
import math
import random
import statistics

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.fault_search import FaultSearch
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.pair_noise import GroupResult
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.search_limits import SearchLimits
from ansible_collections.gpuval.fleet.plugins.plugin_utils.gang.search.topology import Topology
from gangs import USUAL, Fault, build, find, search
from localisation_kinds import KINDS

FAULTS = [Fault("slow", 0.9), Fault("slow", 0.1), Fault("wrong"), Fault("timeout"), Fault("crash")]
SMALL = SearchLimits(climb=False)


def others(finding, *nodes):
    return {name: known for name, known in finding.nodes.items() if name not in nodes and known != "healthy"}


def run(search, answer):
    """Run a search; `answer(nodes)` is a GroupResult."""
    while (round_ := search.next_round()) is not None:
        search.add_results({group.id: answer(group.nodes) for group in round_}, 1.0)
    return search.finding()


def right(factor=1.0):
    return GroupResult("ok", bus_bytes_per_second=USUAL * factor)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9, 16, 33, 64, 232])
def test_no_node_of_a_clean_gang_is_accused(count):
    for seed in range(3):
        finding = find(build(count, seed))
        assert finding.clean, finding
        assert finding.rounds <= 20
        assert finding.stopped == ""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.state}-{fault.factor}")
@pytest.mark.parametrize("count", [3, 4, 5, 8, 16, 64, 232])
def test_a_bad_node_is_found_and_no_other(count, fault):
    may_stay_suspect = count == 3 and fault.factor == 0.9  # one pair at a time gives few results
    for seed in range(4) if count < 64 else [1]:
        gang = build(count, seed)
        bad = gang.nodes[(7 * seed + 2) % count]
        gang.bad = {bad: fault}
        finding = find(gang)
        assert finding.nodes[bad] in (("bad", "suspect") if may_stay_suspect else ("bad",)), (seed, finding)
        assert others(finding, bad) == {}
        assert (finding.bad_links, finding.bad_boundaries, finding.gang) == ([], [], [])
        assert finding.rounds <= 20


def test_the_evidence_names_rounds_partners_and_figures():
    gang = build(16, 1)
    gang.bad = {"node-003": Fault("slow", 0.1)}
    (sentence,) = find(gang).evidence["node-003"]
    assert "slower than good pairs with node-00" in sentence
    assert "in round 1, 2, 3, 4, 5, 6, known to be good" in sentence


def test_an_accusation_has_fresh_results_with_different_good_partners():
    gang = build(16, 1)
    gang.bad = {"node-003": Fault("wrong")}
    done = search(gang)
    tests = [group.nodes for round_ in done.rounds for group in round_ if group.tested == ("node-003",)]
    partners = {node for nodes in tests for node in nodes} - {"node-003"}
    assert len(partners) >= 2
    assert all(done.finding().nodes[partner] == "healthy" for partner in partners)


def test_three_nodes_tell_a_bad_one():
    finding = run(FaultSearch.start(["a", "b", "c"]), lambda nodes: GroupResult("timeout") if "b" in nodes else right())
    assert finding.nodes == {"a": "healthy", "b": "bad", "c": "healthy"}


@pytest.mark.parametrize("state", ["wrong", "timeout", "crash", "slow"])
def test_two_nodes_cannot_be_distinguished(state):
    finding = run(FaultSearch.start(["a", "b"]), lambda nodes: GroupResult(state))
    assert finding.nodes == {"a": "suspect", "b": "suspect"}
    assert finding.gang == ["no pair worked: check what all nodes share"]


def test_two_slow_nodes_are_suspect_by_the_expected_figure():
    limits = SearchLimits(floor_bytes_per_second=USUAL)
    finding = run(FaultSearch.start(["a", "b"], limits=limits), lambda nodes: right(0.5))
    assert finding.nodes == {"a": "suspect", "b": "suspect"}
    assert "50 % slower than expected" in finding.gang[0]
    assert run(FaultSearch.start(["a", "b"], limits=limits), lambda nodes: right()).clean


def test_one_node_or_none_is_untested():
    finding = run(FaultSearch.start(["a"]), lambda nodes: right())
    assert (finding.nodes, finding.clean) == ({"a": "untested"}, False)
    assert not run(FaultSearch.start([]), lambda nodes: right()).clean


def test_a_gang_that_is_slow_as_a_whole_accuses_no_node():
    limits = SearchLimits(floor_bytes_per_second=USUAL)
    finding = run(FaultSearch.start([f"n{one}" for one in range(8)], limits=limits), lambda nodes: right(0.6))
    assert finding.of_class("bad") == []
    assert set(finding.nodes.values()) == {"suspect"}
    assert "40 % slower" in finding.gang[0]


def test_a_gang_in_which_nothing_works_accuses_no_node():
    finding = run(FaultSearch.start([f"n{one}" for one in range(8)]), lambda nodes: GroupResult("timeout"))
    assert finding.of_class("bad") == []
    assert finding.of_class("healthy") == []
    assert finding.gang


@pytest.mark.parametrize("fault", [Fault("slow", 0.8), Fault("slow", 0.1), Fault("timeout"), Fault("wrong")])
@pytest.mark.parametrize("count", [4, 8, 64])
def test_a_bad_link_between_good_nodes(count, fault):
    for seed in range(3):
        gang = build(count, seed)
        pair = gang.nodes[1:3]
        gang.links = {frozenset(pair): fault}
        finding = find(gang)
        assert finding.bad_links == [tuple(pair)], (seed, finding)
        assert others(finding) == {}
        assert finding.evidence[" - ".join(pair)]


@pytest.mark.parametrize("fault", [Fault("slow", 0.8), Fault("slow", 0.2), Fault("timeout")])
@pytest.mark.parametrize(
    ("count", "names", "scope"), [(8, ("r1", "r2"), "between"), (16, ("r2",), "around"), (64, ("r2",), "around")]
)
def test_a_bad_switch_is_a_boundary_and_no_node(count, names, scope, fault):
    for seed in range(3):
        gang = build(count, seed)
        gang.racks = {"r2": fault}
        finding = find(gang)
        assert [(one.kind, one.names, one.scope) for one in finding.bad_boundaries] == [("rack", names, scope)], finding
        assert others(finding) == {}


def test_a_rack_that_is_bad_as_a_whole_is_seen_before_its_nodes():
    gang = build(32, 1)
    gang.bad = {node: Fault("slow", 0.5) for node in gang.nodes[8:16]}
    finding = find(gang)
    assert [(one.names, one.scope) for one in finding.bad_boundaries] == [(("r2",), "inside")]
    assert finding.of_class("suspect") == gang.nodes[8:16]
    assert others(finding, *gang.nodes[8:16]) == {}


def test_racks_that_are_slower_apart_by_design():
    gang = build(32, 1)
    places = gang.topology

    def answer(nodes):
        apart = len({places.place(node, "rack") for node in nodes}) > 1
        return right((0.5 if apart else 1.0) * (0.5 if "node-003" in nodes else 1.0) * gang.random.uniform(0.97, 1.03))

    report = run(FaultSearch.start(gang.nodes, places, SMALL), answer)
    assert [(one.scope, one in report.suspect_boundaries) for one in report.suspect_boundaries] == [("apart", True)]
    assert (report.of_class("bad"), others(report, "node-003")) == (["node-003"], {})
    tapered = run(FaultSearch.start(gang.nodes, places, SearchLimits(climb=False, tapered=True)), answer)
    assert (tapered.suspect_boundaries, tapered.of_class("bad")) == ([], ["node-003"])


def test_several_bad_nodes():
    for seed in range(5):
        gang = build(64, seed)
        gang.bad = {gang.nodes[place]: FAULTS[place % len(FAULTS)] for place in (0, 11, 12, 43, 63)}
        finding = find(gang)
        assert finding.of_class("bad") == sorted(gang.bad), (seed, finding)
        assert others(finding, *gang.bad) == {}


def test_a_node_that_fails_now_and_then_is_at_least_suspect():
    seen = 0
    for seed in range(20):
        gang = build(16, seed)
        gang.bad = {"node-005": Fault("wrong", rate=0.5)}
        finding = find(gang)
        seen += finding.nodes["node-005"] in ("bad", "suspect")
        assert set(finding.of_class("bad")) <= {"node-005"}
    assert seen >= 18  # of 20: one in 16 is right in all four rounds of pairs


def test_most_of_a_gang_slow_accuses_none_of_them():
    gang = build(16, 1)
    gang.bad = {node: Fault("slow", 0.5) for node in gang.nodes[:10]}
    finding = find(gang)
    assert finding.of_class("bad") == []
    assert finding.of_class("suspect") == gang.nodes[:10]
    assert not finding.clean


def test_most_of_a_gang_hanging_is_reported_by_the_few_that_work():
    gang = build(8, 1)
    gang.bad = {gang.nodes[place]: Fault("timeout") for place in (0, 2, 4, 5, 7)}
    finding = find(gang)
    assert finding.of_class("bad") == list(gang.bad)
    assert others(finding, *gang.bad) == {}


def test_a_node_that_never_answers_is_untested_and_its_partners_are_healthy():
    gang = build(16, 1)
    gang.silent = {"node-004"}
    finding = find(gang)
    assert finding.nodes["node-004"] == "untested"
    assert "silence is no evidence" in finding.evidence["node-004"][0]
    assert others(finding, "node-004") == {}


def test_a_missing_result_is_run_again_and_else_leaves_both_untested():
    lost = []

    def once(nodes):
        if set(nodes) == {"n1", "n2"} and not lost:
            lost.append(nodes)
            return GroupResult("missing")
        return right()

    names = [f"n{one}" for one in range(8)]
    assert run(FaultSearch.start(names, limits=SMALL), once).clean
    always = run(
        FaultSearch.start(names, limits=SMALL),
        lambda nodes: GroupResult("missing") if set(nodes) == {"n1", "n2"} else right(),
    )
    assert (always.nodes["n1"], always.nodes["n2"]) == ("untested", "untested")
    assert others(always, "n1", "n2") == {}


def test_right_without_a_figure_is_no_evidence_where_others_have_one():
    names = [f"n{one}" for one in range(8)]
    finding = run(FaultSearch.start(names), lambda nodes: GroupResult("ok") if "n3" in nodes else right())
    assert finding.nodes["n3"] == "untested"
    assert run(FaultSearch.start(names), lambda nodes: GroupResult("ok")).clean


@pytest.mark.parametrize("figure", [math.nan, math.inf, -1.0, 0, "9e9", True, None])
def test_figures_that_cannot_be_are_none(figure):
    assert GroupResult("ok", bus_bytes_per_second=figure).cleaned().bus_bytes_per_second is None


def test_latencies_are_compared_where_there_is_no_bandwidth():
    names = [f"n{one}" for one in range(8)]
    finding = run(
        FaultSearch.start(names, limits=SMALL),
        lambda nodes: GroupResult("ok", latency_seconds=9e-5 if "n3" in nodes else 2e-5),
    )
    assert finding.of_class("bad") == ["n3"]
    assert finding.centre_bytes_per_second is None


def test_what_a_run_tells_is_cleaned():
    taken = GroupResult("timeout", message="\x1b[31mno\nway" * 200).cleaned()
    assert "\x1b" not in taken.message
    assert len(taken.message) <= 300


@pytest.mark.parametrize("fault", [Fault("timeout", least=16), Fault("slow", 0.4, least=16)])
def test_a_fault_of_the_whole_gang_alone_is_reported_and_no_node_is_accused(fault):
    gang = build(16, 1)
    gang.bad = {"node-005": fault}
    finding = find(gang)
    assert finding.of_class("bad") == []
    assert not finding.clean
    assert finding.gang[0].startswith("the whole gang: ")


def test_a_whole_gang_that_fails_once_and_then_works_is_fine():
    gang = build(16, 1)
    searching, whole = FaultSearch.start(gang.nodes, gang.topology, SearchLimits()), 0
    while (round_ := searching.next_round()) is not None:
        results, wall = gang.run(round_)
        for group in round_:
            whole += len(group.nodes) == 16
            if len(group.nodes) == 16 and whole == 1:
                results[group.id] = GroupResult("timeout")
        searching.add_results(results, wall)
    assert whole == 2
    assert searching.finding().gang == ["the whole gang: timeout in 1 of 2 rounds; each pair is fine"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "1 bad link anywhere"])
@pytest.mark.parametrize("size", [16, 64])
def test_rounds_after_those_of_pairs_are_few(kind, size):
    """Noise may open a link more or less: the mean of five gangs is bounded."""
    confirming = []
    for seed in range(5, 10):
        gang = build(size, seed)
        for plant in KINDS[kind]:
            plant(gang, random.Random(seed))
        done = search(gang)
        confirming.append(sum(round_[0].purpose not in ("pair", "climb") for round_ in done.rounds))
        assert len(done.rounds) <= 20
    assert statistics.fmean(confirming) <= 4 + 2 * math.ceil(math.log2(size)), confirming


def test_every_round_is_disjoint_has_a_deadline_and_pairs_come_once_in_the_first_rounds():
    gang = build(33, 3)
    gang.bad = {"node-007": Fault("wrong", rate=0.5)}
    done = search(gang, SearchLimits(deadline_seconds=77))
    first = []
    assert {saved["deadline_seconds"] for saved in done.to_json()["rounds"]} == {77}
    for number, round_ in enumerate(done.rounds, 1):
        nodes = [node for group in round_ for node in group.nodes]
        assert len(nodes) == len(set(nodes))
        assert [group.id for group in round_] == [f"r{number:02}-g{index:03}" for index in range(1, len(round_) + 1)]
        first += [frozenset(group.nodes) for group in round_ if group.purpose == "pair"]
    assert len(first) == len(set(first))


def test_limits_of_rounds_and_wall_end_the_search_and_are_reported():
    gang = build(16, 1)
    gang.bad = {"node-003": Fault("timeout")}
    finding = find(gang, SearchLimits(rounds=4))
    assert (finding.rounds, finding.stopped) == (4, "the limit of 4 rounds")
    assert finding.nodes["node-003"] == "suspect"
    walled = find(gang, SearchLimits(deadline_seconds=120, wall_seconds=400))
    assert walled.seconds <= 400
    assert walled.stopped == "the limit of 400 s"


def test_a_search_goes_on_from_its_saved_state():
    def run_search(saved_between):
        gang = build(16, 4)
        gang.bad = {"node-003": Fault("slow", 0.9), "node-009": Fault("wrong", rate=0.5)}
        one = FaultSearch.start(gang.nodes, gang.topology)
        while one.next_round() is not None:
            if saved_between:
                one = FaultSearch.from_json(json.loads(json.dumps(one.to_json())))
            one.add_results(*gang.run(one.next_round()))
            if saved_between:
                one = FaultSearch.from_json(json.loads(json.dumps(one.to_json())))
        return one.finding()

    assert run_search(True) == run_search(False)


def test_a_saved_state_that_is_none_is_refused():
    one = FaultSearch.start(["a", "b", "c"], Topology.of_labels({"a": {"rack": "r1"}}))
    one.next_round()
    document = json.loads(json.dumps(one.to_json()))
    with pytest.raises(schemas.Invalid):
        FaultSearch.from_json({**document, "schema": "gpuval.localisation/9"})
    document["rounds"][0]["groups"][0]["purpose"] = "; rm -rf"
    with pytest.raises(schemas.Invalid):
        FaultSearch.from_json(document)


def test_the_same_round_is_returned_until_its_results_are_added():
    one = FaultSearch.start(["a", "b", "c", "d"])
    round_ = one.next_round()
    assert one.next_round() is round_
    one.add_results({group.id: right() for group in round_})
    assert one.next_round()[0].id == "r02-g001"


def test_a_finding_can_be_had_at_any_time():
    one = FaultSearch.start(["a", "b", "c", "d"])
    assert set(one.finding().nodes.values()) == {"untested"}
    one.next_round()
    assert set(one.finding().nodes.values()) == {"untested"}
    assert json.dumps(one.finding().to_json())
