"""Pairs of nodes over loopback, each with ports and stand-ins of its own; and the job that runs them."""

import json
import threading
from types import SimpleNamespace

import pytest
from gpuval_workloads.gang.host.sysfs import Sysfs
from gpuval_workloads.rdma import between, perftest

from tests.kit import jobs
from tests.kit import perftest as standin
from tests.kit.gang_channel import free_port
from tests.kit.gang_jobs import Members
from tests.kit.sysfs_tree import IB_GIDS, Tree

HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_every_node_meets_both_neighbours_and_one_at_a_time(count):
    found = between.rounds(count)
    for pairs in found:
        members = [member for pair in pairs for member in pair]
        assert len(members) == len(set(members))
    met = [frozenset(pair) for pairs in found for pair in pairs]
    assert len(met) == len(set(met)) == (1 if count == 2 else count)
    assert all(sum(member in pair for pair in met) == min(2, count - 1) for member in range(count))


def measured(folder, monkeypatch, devices, ports=2):
    """What each of three nodes found; ``devices`` say what those of all do, by name."""
    monkeypatch.setenv("PATH", str(folder / "bin"))
    monkeypatch.setattr(perftest, "LEAST_SECONDS", 1)
    monkeypatch.setattr(perftest, "MARGIN_SECONDS", 0)
    options, found = SimpleNamespace(devices=["*"], seconds=1, port=free_port()), {}
    names = {f"{node}_{port}": {} for node in "abc" for port in range(ports)}
    standin.install(folder / "bin", {**names, **devices})

    def node(rank):
        tree = Tree(folder / "abc"[rank])
        for port in range(ports - (rank == 2 and ports > 2)):
            tree.rdma(f"{'abc'[rank]}_{port}")
            tree.port(f"{'abc'[rank]}_{port}", gids=IB_GIDS)
        found[rank] = between.measure(HOSTS, rank, options, Sysfs(tree.root), 5.0)

    threads = [threading.Thread(target=node, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return [found[rank] for rank in range(3)]


def test_a_slow_rail_of_a_node_is_slow_in_both_of_its_pairs_and_its_nodes_fail(tmp_path, monkeypatch, capsys):
    one, two, three = measured(tmp_path, monkeypatch, {"b_1": {"share": 0.5}})
    good, slow = pytest.approx(0.967, abs=0.001), pytest.approx(0.484, abs=0.001)
    assert one == {
        "127.0.0.1>127.0.0.2 b_0:1": good, "127.0.0.1>127.0.0.2 b_1:1": slow,
        "127.0.0.3>127.0.0.1 a_0:1": good, "127.0.0.3>127.0.0.1 a_1:1": good,
    }  # fmt: skip
    assert two["127.0.0.2>127.0.0.3 c_1:1"] == three["127.0.0.2>127.0.0.3 c_1:1"] == slow
    assert [between.judge(each, 0.8) for each in (one, two, three)] == [1, 1, 1]
    assert between.judge({"a>b mlx5_0:1": 0.97}, 0.8) == 0
    assert "127.0.0.1>127.0.0.2 b_1:1: 48% of its rate, below the minimum of 80%" in capsys.readouterr().out


def test_a_rail_that_breaks_off_or_is_missing_is_no_figure_and_fails(tmp_path, monkeypatch):
    broken = " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81"
    one, two, _three = measured(tmp_path, monkeypatch, {"a_0": {"fail": broken}}, ports=3)
    assert "Failed status 12" in one["127.0.0.1>127.0.0.2 b_0:1"] and "Failed" in two["127.0.0.1>127.0.0.2 b_0:1"]
    assert two["127.0.0.2>127.0.0.3 b_2:1"] == "the other node has fewer ports with a link"
    assert between.judge(one, 0.8) == between.judge(two, 0.8) == 1


def test_no_figure_at_all_fails():
    assert between.judge({}, 0.8) == 1


@pytest.mark.slow
def test_the_job_reaches_the_program_on_every_member_and_names_what_is_missing(tmp_path):
    (tmp_path / "keys").mkdir()
    path = jobs.SHIPPED / "rdma_pairs.yml"
    with Members(tmp_path, free_port(), path, PATH="/usr/bin:/bin") as members:
        (code, log, result), _second = members.end()
    assert code and "no RDMA port has a link here" in log
    assert "measure" in json.dumps(result)
