"""The host checks of members together: what they put into results, what they say, and that they never stop anything."""

import json
import os
import resource
import shutil
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from gpuval_node.hardware.tree import Tree as Sysfs
from gpuval_node.network.routes import KernelRoute
from gpuval_workloads.common.result import WorkloadResult
from gpuval_workloads.gang.host import findings, local, mesh, pcie, rdma
from gpuval_workloads.gang.host.checks import HostChecks
from gpuval_workloads.gang.members import Gang, GangMember

from tests.kit.sysfs_tree import IB_GIDS, MLX5_COUNTERS, ROCE_GIDS, Tree

NIC = "0000:43:00.0"


def gang(index=0, count=3):
    members = tuple(GangMember(f"node-{i + 1}", f"127.0.0.{i + 1}", 1) for i in range(count))
    return Gang("all", members, index, 29500, 3022)


@pytest.fixture
def trees(tmp_path, monkeypatch):
    """Three hosts that are alike: a NIC of InfiniBand, at full speed."""
    monkeypatch.setattr(rdma, "locked_limit", lambda: None)  # that of the tests' own process
    made = []
    for index in range(3):
        tree = Tree(tmp_path / str(index))
        tree.pci("pci0000:40", "0000:40:01.0", **tree.link())
        tree.pci("pci0000:40", "0000:40:01.0", NIC, **tree.link())
        tree.rdma(pci=NIC)
        tree.port(gids=IB_GIDS)
        tree.write("class/net/lo/mtu", 65536)
        made.append(tree)
    return made


def together(trees, between=lambda: None, over_ssh=False):
    """Run the checks of all members; return their results."""
    checks = [HostChecks(gang(i, len(trees)), over_ssh, tree=Sysfs(tree.root)) for i, tree in enumerate(trees)]
    with ExitStack() as stack:
        brought = json.loads(json.dumps([each.begin(stack) for each in checks]))
        threads = [threading.Thread(target=each.ask, args=(brought,)) for each in checks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    between()
    results = []
    for each in checks:
        result = WorkloadResult(state="failure", message="it failed")
        each.end()
        each.add_to(result)
        results.append(WorkloadResult.from_json(result.to_json()))
    return results


def figures(result):
    return {m["name"] if m["scope"] == "node" else f"{m['name']} [{m['scope']}]": m["value"] for m in result.metrics}


def test_hosts_that_are_well(trees):
    results = together(trees)
    for result in results:
        assert result.message == "it failed"
        assert result.environment["host_checks"]["problems"] == []
        assert result.environment["host_checks"]["failed"] == {}
        found = figures(result)
        assert found["rdma_active_ports_count"] == 1 and found["rdma_rate_bytes_per_second [link:mlx5_0:1]"] == 50e9
        assert found["gang_nic_pcie_ratio [link:mlx5_0]"] == 1
        assert (found["rdma_link_error_count"], found["rdma_retransmission_count [link:mlx5_0:1]"]) == (0, 0)
        assert (found["gang_peers_count"], found["gang_peers_unreached_count"]) == (2, 0)
        assert found["gang_path_mtu_bytes"] == 65535 and found["gang_peers_narrow_count"] == 0
        assert found["gang_clock_skew_seconds"] < 10
    assert results[0].fingerprints == {
        "rdma_ports": "1 x InfiniBand ACTIVE 400 Gb/s",
        "rdma_firmware": "1 x SM_2001000001034 14.28.2006",
        "rdma_gids": "1 x IB",
        "gang_nic_pcie": "1 x 32 GT/s x16",
        "gang_mtu": "65536",
    }
    assert all(result.fingerprints == results[0].fingerprints for result in results)


def test_the_odd_one_is_named_by_all(trees):
    trees[2].port(state="1: DOWN", phys_state="2: Polling")
    for result in together(trees):
        assert "rdma_ports: node-3 has 1 x InfiniBand DOWN, the other 2 have 1 x InfiniBand ACTIVE" in result.message
    assert "no RDMA port is active: mlx5_0:1 is DOWN (Polling)" in result.message


def test_where_there_is_no_majority_all_are_reported(trees):
    trees[1].rdma(firmware="14.32.1010", interface=None, name="mlx5_0")
    [one, other] = together(trees[:2])
    said = "rdma_firmware: node-1 has 1 x SM_2001000001034 14.28.2006, node-2 has 1 x SM_2001000001034 14.32.1010"
    assert said in one.message and said in other.message


def test_errors_while_the_gang_worked_are_reported(trees):
    hardware = {**MLX5_COUNTERS["hw_counters"], "local_ack_timeout_err": 140}

    def dirt():
        trees[0].port(counters={"counters": {"symbol_error": 12}, "hw_counters": hardware})

    first, second, _ = together(trees, dirt)
    assert "errors on the link while the gang worked: mlx5_0:1 symbol_error +12" in first.message
    assert "local_ack_timeout_err +9" in first.message
    found = figures(first)
    assert (found["rdma_link_error_count [link:mlx5_0:1]"], found["rdma_retransmission_count"]) == (12, 9)
    assert first.environment["host_checks"]["counters"] == {
        "mlx5_0:1": {"local_ack_timeout_err": 9, "symbol_error": 12}
    }
    assert second.message == "it failed"


def test_a_driver_that_hangs_delays_no_other(trees):
    hanging = trees[1].sys / "class/infiniband/mlx5_0/ports/1/rate"
    hanging.unlink()
    os.mkfifo(hanging)  # reading it waits for ever, as reading from a driver that hangs
    begun = time.monotonic()
    _, second, third = together(trees)
    assert time.monotonic() - begun < 60
    assert "this host did not report rdma, pcie, acs, counters in time" in second.message
    assert "rdma_active_ports_count" not in figures(second) and "gang_nics_count" not in figures(second)
    assert figures(second)["gang_peers_unreached_count"] == 0
    assert "node-2 did not report rdma_ports, rdma_gids, gang_nic_pcie, rdma_firmware" in third.message


def test_a_member_that_cannot_be_reached_is_named(trees):
    checks = [HostChecks(gang(i), False, tree=Sysfs(tree.root)) for i, tree in enumerate(trees)]
    with ExitStack() as gone, ExitStack() as stack:
        brought = [each.begin(gone if i == 2 else stack) for i, each in enumerate(checks)]
        gone.close()
        checks[0].ask(brought)
    assert (
        checks[0]
        .explain("it failed")
        .startswith("it failed; host checks: node-1 reaches 1 of 2 others by TCP; not node-3 (127.0.0.3): refused")
    )


def test_nothing_that_others_bring_or_this_host_lacks_is_a_reason_to_fail(tmp_path, capsys):
    checks = HostChecks(gang(), True, True, Sysfs(tmp_path / "nothing"))
    with ExitStack() as stack:
        assert set(checks.begin(stack)) == {"port", "same"}
        checks.ask([None, {"port": "x", "same": [1]}, {"port": 10**9, "same": {"rdma_ports": 7}}])
        checks.ask([])
    result = WorkloadResult(message="fine")
    checks.end()
    checks.add_to(result)
    assert (result.state, result.message) == ("running", "fine")
    assert figures(result)["rdma_devices_count"] == figures(result)["rdma_link_error_count"] == 0
    assert result.fingerprints["rdma_firmware"] == result.fingerprints["gang_nic_pcie"] == "none"
    assert "host checks took" in capsys.readouterr().out


def test_what_a_member_claims_is_bounded(trees):
    checks = HostChecks(gang(count=2), False, tree=Sysfs(trees[0].root))
    with ExitStack() as stack:
        own = checks.begin(stack)
        checks.ask([own, {"same": {"gang_mtu": "x" * 10**6, "rdma_ports": "\x1b[2J", **dict.fromkeys("abc", "d")}}])
    said = " ".join(checks.problems())
    assert len(said) < 1500 and "\x1b" not in said and "gang_mtu: node-1 has 65536, node-2 has xxx" in said


def test_names_that_do_not_resolve_hide_no_device(trees, monkeypatch):
    monkeypatch.setattr(local, "ways", lambda *_: time.sleep(10))
    found = local.look(gang(), Sysfs(trees[0].root), 3)
    assert len(found.devices) == 1 and found.counters and set(found.unknown) == {"routes"}
    assert "names" in findings.of_unknown(found)[0]


def test_checks_that_never_began_add_nothing():
    result, checks = WorkloadResult(), HostChecks(gang(), False)
    checks.end()
    checks.add_to(result)
    assert result.metrics == [] and result.environment == {} and checks.explain("so") == "so"


def port(name="mlx5_0", state="ACTIVE", physical="LinkUp", layer="InfiniBand", gids=()):
    return rdma.Port(name, 1, state, physical, layer, 400e9, gids)


def host(*ports, **more):
    devices = [rdma.Device(p.device, "1", "b", "m", None, (), (p,)) for p in ports]
    return local.Local(devices=devices, looked={"rdma"}, **more)


def test_a_link_without_a_subnet_manager():
    [said] = findings.of_ports(host(port(), port("mlx5_1", "INIT")))
    assert said.startswith("mlx5_1:1 is INIT") and "subnet manager" in said


def test_ports_that_are_down_beside_active_ones_are_no_problem_in_themselves():
    assert findings.of_ports(host(port(), port("mlx5_1", "DOWN", "Disabled"))) == []


def test_roce_without_an_address():
    first = [rdma.Gid(i, *gid) for i, gid in enumerate([(ROCE_GIDS[0][0], "RoCE v1"), ROCE_GIDS[1]])]
    [said] = findings.of_ports(host(port(layer="Ethernet", gids=tuple(first))))
    assert "no address for RoCE v2" in said


def test_devices_that_a_container_was_not_given(tmp_path):
    tree = Tree(tmp_path / "sys")
    for place, name in enumerate(("mlx5_0", "mlx5_1")):
        tree.write(f"class/infiniband_verbs/uverbs{place}/ibdev", name)
    dev = tmp_path / "dev"
    dev.mkdir()
    assert rdma.closed_devices(Sysfs(tree.root), dev) == ["mlx5_0", "mlx5_1"]
    (dev / "uverbs1").touch()
    assert rdma.closed_devices(Sysfs(tree.root), dev) == ["mlx5_0"]
    both = host(port(), port("mlx5_1"))
    both.closed = ["mlx5_0"]
    assert findings.of_access(both, True) == []  # one is enough: a pod may have been given its own alone
    both.closed.append("mlx5_1")
    assert "no file here that opens mlx5_0, mlx5_1" in findings.of_access(both, True)[0]


def test_that_there_is_no_device_is_reported_where_it_is_counted_on():
    assert "no RDMA device" in findings.of_access(host(), True)[0]
    assert findings.of_access(host(), False) == []


def test_a_limit_of_locked_memory(tmp_path):
    status = tmp_path / "status"
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, before[1]))
        status.write_text("Name:\tx\nCapEff:\t00000000a80425fb\n")  # a container of Docker's, without privileges
        assert rdma.locked_limit(status) == 65536
        status.write_text("CapEff:\t000001ffffffffff\n")
        assert rdma.locked_limit(status) is None
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, before)
    assert "65536 bytes of memory may be locked" in findings.of_access(host(port(), locked_limit_bytes=65536), True)[0]


def test_a_slow_link_and_acs():
    link = pcie.Link(NIC, pcie.Lanes(8, 16.0), pcie.Lanes(16, 32.0))
    found = host(links={"mlx5_2": link}, acs=pcie.Acs(("a", "b"), ("a", "b"), ()))
    assert findings.of_pcie(found) == [f"mlx5_2 ({NIC}) runs at 16 GT/s x8 on PCIe, it and its slot can 32 GT/s x16"]
    assert "ACS) of a, b" in findings.of_acs(found)[0]


@pytest.mark.parametrize(
    ("offsets", "skew"),
    [([30.0, 30.0], -30.0), ([-30.0, 0.0], 0.0), ([0.001, -0.001], 0.0), ([30.0], -30.0), ([0, 0, 30.0], 0.0)],
)
def test_whose_clock_is_off(offsets, skew):
    answers = {
        i: mesh.PeerAnswer(mesh.OK, clock_offset_seconds=offset, clock_error_seconds=0.001)
        for i, offset in enumerate(offsets, 1)
    }
    assert findings.clock_skew(answers) == (pytest.approx(skew, abs=0.002), 0.001)
    said = findings.of_clock(gang(count=len(offsets) + 1), answers)
    assert bool(said) == (abs(skew) > 1)
    assert not said or "behind" in said[0]


def test_ways_that_are_unlike():
    ways = {
        "node-2": KernelRoute("eth0", 9000, source="10.0.0.1"),
        "node-3": KernelRoute("eth0", 9000, source="10.0.0.1"),
        "node-4": KernelRoute("eth1", 1500, gateway="10.9.0.1", source="10.9.0.7"),
        "node-5": KernelRoute(problem="Network is unreachable"),
    }
    found, us = local.Local(ways=ways), gang(count=5)
    answers = {i: mesh.PeerAnswer(mesh.OK, path_mtu_bytes=1500) for i in (1, 3)}
    narrow, none, other = findings.of_paths(us, found, answers)
    assert narrow == "packets of the interface's MTU do not get through to node-2 (1500 of 9000 bytes)"
    assert none == "no route to node-5: Network is unreachable"
    assert other == "most members are reached by eth0, node-4 by eth1"
    behind, source = findings.of_routes(us, found)
    assert behind.startswith("node-4 can be reached through a gateway only")
    assert source.startswith("node-1 sends from another address than 127.0.0.1: 10.0.0.1 to node-2")


def test_a_sentence_is_of_bounded_length():
    said = findings.sentence(["x" * 1000] * 20)
    assert len(said) < 800 and said.endswith("17 more in host_checks")
    assert findings.sentence([]) == ""


def test_a_gang_of_a_thousand_keeps_results_small(trees):
    us = gang(count=1000)
    answers = {i: mesh.PeerAnswer(mesh.OK if i % 2 else "refused", 0.1, 0.0, 0.1, 9000) for i in range(1, 1000)}
    found = local.Local(ways={m.node: KernelRoute("eth0", 9000) for m in us.members[1:]})
    result = WorkloadResult()
    findings.add_others(result, us, found, answers)
    assert len(result.metrics) < 20
    assert len(json.dumps(findings.described(us, found, answers))) < 20_000
    assert len(findings.sentence(findings.of_peers(us, answers))) < 400


def test_criteria_judge_what_is_reported_and_accuse_no_node(trees):
    fleet = Path(__file__).resolve().parents[3] / "collections" / "ansible_collections" / "gpuval" / "fleet"
    checks = yaml.safe_load((fleet / "roles" / "collective" / "files" / "criteria_host.yml").read_text())["checks"]
    result = together(trees)[0]
    told = set(figures(result)) | set(result.fingerprints)
    assert {check["metric"] for check in checks} <= told
    assert set(findings.ALIKE) == {check["metric"] for check in checks if check["kind"] == "same"}
    assert {check["severity"] for check in checks} == {"advisory"}
    paths = {path for check in checks for path in check.get("excused_by", ())}
    assert paths == {"host_checks.unknown.acs", "host_checks.unknown.counters"}


def test_why_a_figure_is_not_there_stands_where_its_criterion_looks(trees):
    trees[0].port(counters={"counters": {}})
    for group in ("counters", "hw_counters"):
        shutil.rmtree(trees[0].sys / "class/infiniband/mlx5_0/ports/1" / group)
    result = together(trees)[0]
    assert "rdma_link_error_count" not in figures(result)
    assert result.environment["host_checks"]["unknown"] == {"counters": "the drivers of these devices have none"}
    unreadable = findings.described(gang(), local.Local(acs=pcie.Acs(("a",), (), ("a",))), {})["unknown"]
    assert "CAP_SYS_ADMIN" in unreadable["acs"]
