"""Pairs of nodes over loopback, each with ports and stand-ins of its own; and which end is named."""

import threading

import pytest
from gpuval_node.hardware.tree import Tree as Sysfs
from gpuval_workloads.common.result import WorkloadCrash, WorkloadResult
from gpuval_workloads.gang import membership
from gpuval_workloads.rdma import attribution, between, perftest
from gpuval_workloads.rdma.attribution import RailPair

from tests.kit import perftest as standin
from tests.kit.gang_channel import gang
from tests.kit.ports import free_port
from tests.kit.sysfs_tree import IB_GIDS, Tree

RAIL, LEAST = "mlx5_0:1", 0.8
GOOD, SLOW = pytest.approx(0.967, abs=0.001), pytest.approx(0.484, abs=0.001)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_every_node_meets_both_neighbours_and_one_at_a_time(count):
    members = [10 * place for place in range(count)]
    found = attribution.ring(members)
    for pairs in found:
        named = [member for pair in pairs for member in pair]
        assert len(named) == len(set(named))
    met = [frozenset(pair) for pairs in found for pair in pairs]
    assert len(met) == len(set(met)) == (1 if count == 2 else count)
    assert all(sum(member in pair for pair in met) == min(2, count - 1) for member in members)
    assert attribution.ring(members[:1]) == attribution.ring([]) == []


def measured(count, slow_nodes=(), slow_pairs=(), asleep=()):
    """The pairs of a ring and of the second look, as the program has them; and who is named."""

    def made(one, other):
        if {one, other} & set(asleep):
            return RailPair(one, RAIL, other, RAIL, None, "no memory", tested=False)
        slow = {one, other} & set(slow_nodes) or {one, other} in map(set, slow_pairs)
        return RailPair(one, RAIL, other, RAIL, None if slow else 0.97, "Failed status 12" if slow else "")

    pairs = [made(*pair) for pairs in attribution.ring(range(count)) for pair in pairs]
    more = attribution.second_look(pairs, LEAST)
    assert len(more) <= attribution.MAX_ROUNDS
    for each in more:
        assert len({node for pair in each for node in pair}) == 2 * len(each)
    found = attribution.attribute([*pairs, *(made(*pair) for each in more for pair in each)], LEAST)
    assert {node for node, _port in found.shared} == (set(slow_nodes) if len(slow_nodes) == 4 and count > 4 else set())
    return {node for node, _rail in found.bad}, {frozenset((one.client, one.server)) for one in found.unexplained}


@pytest.mark.parametrize(
    ("count", "slow", "named"),
    [
        (3, [1], [1]), (5, [0], [0]), (8, [2, 3], [2, 3]), (8, [1, 3], [1, 3]), (96, [0, 4, 5], [0, 4, 5]),
        (2, [1], []), (3, [0, 1], []), (4, [0, 1, 2, 3], []),
    ],
)  # fmt: skip
def test_a_slow_node_is_named_where_two_good_partners_tell(count, slow, named):
    bad, unexplained = measured(count, slow_nodes=slow)
    assert bad == set(named)
    assert bool(unexplained) == (named != slow)


def test_a_port_that_is_slow_on_many_nodes_is_a_matter_of_what_they_share():
    bad, unexplained = measured(9, slow_nodes=[0, 4, 5, 6])
    assert (bad, unexplained) == (set(), set())  # of the others


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_a_slow_way_between_two_nodes_accuses_neither(count):
    assert measured(count, slow_pairs=[(0, 1)]) == (set(), {frozenset((0, 1))})


def test_a_setup_that_fails_accuses_no_node_and_is_no_partner():
    assert measured(4, asleep=[1]) == (set(), set())
    assert measured(3, slow_nodes=[0], asleep=[1])[0] == set()


def test_rails_are_matched_by_name_and_absent_ones_named():
    assert attribution.matched(["a", "b", "c"], ["a", "c"]) == [("a", "a"), ("c", "c")]
    assert attribution.matched(["a", "b"], ["x", "y", "z"]) == [("a", "x"), ("b", "y")]
    assert attribution.absent({0: ["a", "b"], 2: ["a"]}, 2) == ["b"]
    assert attribution.absent({0: ["a", "b"], 1: ["a"], 2: ["a"]}, 2) == []  # one of no other node
    assert attribution.absent({0: ["a", "b"], 2: ["x"]}, 2) == []


def run(folder, monkeypatch, devices=None, ports=2, count=3, without=(), slack=30.0, asked=("*",)):
    """The results of all nodes, a member each in a thread; ``devices`` say what those of all do, by name."""
    monkeypatch.setenv("PATH", str(folder / "bin"))
    monkeypatch.setenv(membership.TOKEN_VARIABLE, "t" * 32)
    monkeypatch.setattr(perftest, "LEAST_SECONDS", 1)
    monkeypatch.setattr(perftest, "MARGIN_SECONDS", 0)
    options = between.parse_arguments(["--seconds", "1", "--join-seconds", "60", "--devices", *asked])
    found, port = [WorkloadResult() for _ in range(count)], free_port()
    if devices is not None:
        names = {f"{node}_{port}": {} for node in "abc" for port in range(ports)}
        standin.install(folder / "bin", {**names, **devices})

    def node(rank):
        tree = Tree(folder / "abc"[rank])
        for port in range(0 if rank in without else ports):
            tree.rdma(f"{'abc'[rank]}_{port}")
            tree.port(f"{'abc'[rank]}_{port}", gids=IB_GIDS)
        between.take_part(found[rank], options, gang(port_of_gang, rank, count), Sysfs(tree.root), slack)

    port_of_gang = port
    threads = [threading.Thread(target=node, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return found


def figures(result):
    return {one["name"][len("rdma_rails_") :]: one["value"] for one in result.metrics if one["scope"] == "node"}


def links(result, name):
    return {one["scope"][5:]: one["value"] for one in result.metrics if one["name"] == name}


def test_a_slow_rail_is_named_with_its_node_and_the_others_pass(tmp_path, monkeypatch):
    one, two, three = run(tmp_path, monkeypatch, {"b_1": {"share": 0.5}})
    counts = {"ports_count": 2, "bad_count": 0, "unexplained_count": 0, "measured_count": 4}
    assert figures(one) == figures(three) == counts
    assert figures(two) == {**counts, "bad_count": 1}
    assert two.message.startswith(
        "node-2 b_1:1 is slow with partners that are good with others (node-1>node-2 a_1:1>b_1:1: 48% of its rate; "
        "node-2>node-3 b_1:1>c_1:1: 48% of its rate)"
    )
    assert links(one, "rdma_rails_ratio") == {"a_0:1": GOOD, "a_1:1": GOOD}
    assert links(two, "rdma_rails_ratio") == {"b_0:1": GOOD, "b_1:1": SLOW}
    assert links(one, "rdma_rails_pair_ratio")["a_1:1>node-2"] == SLOW
    assert two.fingerprints == {"rdma_rails": "present"} and two.environment["gang"]["joined"]


def test_two_nodes_that_are_slow_are_not_told_apart_and_a_setup_that_fails_is_not_tested(tmp_path, monkeypatch):
    devices = {"b_0": {"fail": "Failed status 12: wr_id 0"}, "b_1": {"fail": "Couldn't allocate MR"}}
    for node, result in zip("ab", run(tmp_path, monkeypatch, devices, count=2), strict=True):
        assert figures(result) == {"ports_count": 2, "bad_count": 0, "unexplained_count": 1}
        assert "Failed status 12" in result.message and "too few good partners to tell which end" in result.message
        assert f"not tested: {node}_1:1: the client ended with exit code 1: Couldn't allocate MR" in result.message


def test_after_two_rails_that_hang_the_others_of_the_pair_are_not_tested(tmp_path, monkeypatch):
    devices = {"b_0": {"hang": True}, "a_1": {"hang": True}}
    for node, result in zip("ab", run(tmp_path, monkeypatch, devices, ports=3, count=2, slack=2.0), strict=True):
        assert figures(result) == {"ports_count": 3, "bad_count": 0, "unexplained_count": 2}
        assert "had not ended after" in result.message and f"not tested: {node}_2:1: {between.HUNG}" in result.message


def test_a_node_without_ports_is_not_tested_and_the_others_are(tmp_path, monkeypatch):
    one, two, three = run(tmp_path, monkeypatch, {}, without=(1,))
    assert figures(one)["measured_count"] == figures(three)["measured_count"] == 2
    assert "measured_count" not in figures(two)
    assert two.message == "not tested: all ports: this node has no RDMA device, and others of its gang have"


def test_without_any_port_and_without_perftest_nothing_is_tested(tmp_path, monkeypatch):
    for result in run(tmp_path / "none", monkeypatch, {}, without=(0, 1, 2)):
        assert result.fingerprints == {"rdma_rails": "none"}
        assert figures(result) == {"ports_count": 0, "bad_count": 0, "unexplained_count": 0}
        assert result.message == "not tested: no node of the gang has an RDMA device to test"
        assert result.environment["left_out"] == {"pairs of nodes": result.message}
    for result in run(tmp_path / "bare", monkeypatch):
        assert "measured_count" not in figures(result) and "ib_write_bw not found: install perftest" in result.message


def test_a_name_that_no_device_has_is_missing_evidence_on_every_node(tmp_path, monkeypatch):
    for result in run(tmp_path, monkeypatch, {}, count=2, asked=("mlx6_0",)):
        assert "measured_count" not in figures(result) and result.fingerprints == {"rdma_rails": "present"}
        assert "mlx6_0: no such RDMA device: correct rdma_devices" in result.message


def test_a_member_that_does_not_come_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv(membership.TOKEN_VARIABLE, "t" * 32)
    options, result = between.parse_arguments(["--join-seconds", "1"]), WorkloadResult()
    with pytest.raises(WorkloadCrash, match=r"node-2 \(127.0.0.2\) did not join"):
        between.take_part(result, options, gang(free_port(), 0, 2), Sysfs(Tree(tmp_path).root))
    assert result.environment["gang"]["stopped_by"] == "node-2"


@pytest.mark.parametrize(("host", "reached_at"), [("localhost", "127.0.0.2"), ("::1", "::1")])
def test_the_server_of_a_pair_listens_where_its_partner_reaches_it(host, reached_at):
    port, accepted = free_port(), []
    server = threading.Thread(target=lambda: accepted.append(between._connect(host, port, True)), daemon=True)
    server.start()
    with between._connect(reached_at, port, False):
        server.join(30)
    assert accepted
    accepted[0].close()
