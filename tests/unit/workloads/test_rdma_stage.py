"""The stage rdma with stand-ins of perftest's tools over a tree like /sys: what is healthy, and each fault."""

import shutil

import pytest
from gpuval_node.hardware.tree import Tree as Sysfs
from gpuval_workloads.common.result import WorkloadResult
from gpuval_workloads.rdma import node, perftest, program

from tests.kit import perftest as standin
from tests.kit.sysfs_tree import IB_GIDS, MLX5_COUNTERS, ROCE_GIDS, Tree

SLACK = 4.0


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(perftest, "LEAST_SECONDS", 1)
    monkeypatch.setattr(perftest, "MARGIN_SECONDS", 0)


class Machine:
    """A node with so many ports of InfiniBand, each with a GPU below its own PCIe switch."""

    def __init__(self, folder, monkeypatch, count=2):
        self.tree, self.bin = Tree(folder / "sys"), folder / "bin"
        self.devices, self.options = {}, ()
        monkeypatch.setenv("PATH", str(self.bin))
        for index in range(count):
            self.add(index)

    def add(self, index, **port):
        base = f"{0x40 + 0x10 * index:02x}"
        way = (f"pci0000:{base}", f"0000:{base}:01.0", f"0000:{base[0]}1:00.0")
        bus = base[0]
        self.tree.pci(*way, f"0000:{bus}2:00.0", f"0000:{bus}3:00.0", **{"class": "0x020700"}, **self.tree.link())
        gpu = {"class": "0x030200", "vendor": "0x10de"}
        self.tree.pci(*way, f"0000:{bus}2:01.0", f"0000:{bus}4:00.0", **gpu)
        self.tree.rdma(f"mlx5_{index}", pci=f"0000:{bus}3:00.0")
        self.tree.write(f"class/infiniband/mlx5_{index}/device/numa_node", index // 2)
        self.tree.write(f"bus/pci/devices/0000:{bus}3:00.0/infiniband/mlx5_{index}/dev", "")
        self.port(index, **port)
        self.devices[f"mlx5_{index}"] = {}

    def port(self, index, pkeys=("0xffff",), **port):
        self.tree.port(f"mlx5_{index}", **{"gids": IB_GIDS, **port})
        for place, key in enumerate((*pkeys, "0x0000")):
            self.tree.write(f"class/infiniband/mlx5_{index}/ports/1/pkeys/{place}", key)

    def measure(self, *arguments, install=True):
        if install:
            standin.install(self.bin, self.devices, options=self.options, sysfs=self.tree.sys)
        result = WorkloadResult()
        program.measure(result, program.parse_arguments(["--seconds", "1", *arguments]), Sysfs(self.tree.root), SLACK)
        return result


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Two ports, joined by one pair."""
    return Machine(tmp_path, monkeypatch)


def figures(result, name):
    return {m["scope"].removeprefix("link:"): m["value"] for m in result.metrics if m["name"] == name}


def test_a_healthy_node(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, count=3)
    machine.options = ("use_cuda=", "use_cuda_bus_id=")
    result = machine.measure("--ordered", "3")
    names = {f"mlx5_{index}:1" for index in range(3)}
    ring = {f"mlx5_{i}:1>mlx5_{(i + 1) % 3}:1" for i in range(3)}
    assert figures(result, "rdma_write_ratio") == dict.fromkeys(names, pytest.approx(392.8 / 400))
    assert figures(result, "rdma_gpu_write_bytes_per_second") == dict.fromkeys(names, pytest.approx(392.8e9 / 8))
    assert figures(result, "rdma_pair_ratio") == dict.fromkeys(ring, pytest.approx(392.8 * 1.97 / 800, rel=1e-4))
    assert figures(result, "rdma_read_latency_p50_seconds") == dict.fromkeys(names, pytest.approx(1.79e-6))
    assert set(figures(result, "rdma_write_latency_p999_seconds")) == names
    counted = {"rdma_failed_count": 0, "rdma_measured_count": 18, "rdma_link_error_count": 0, "rdma_ports_count": 3}
    assert {name: figures(result, name)["node"] for name in counted} == counted
    assert result.fingerprints["rdma_pkeys"] == "0xffff" and result.fingerprints["rdma"] == "present"
    place = result.environment["rdma"][2]
    assert (place["numa_node"], place["pcie"], place["gpu"]) == (1, "32 GT/s x16", "0000:64:00.0")
    assert result.message == "3 x InfiniBand ACTIVE 400 Gb/s: 18 tests, the slowest reached 97% of its maximum"


def test_a_rail_at_half_its_rate_is_slow_alone_and_in_both_of_its_pairs(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, count=3)
    machine.devices["mlx5_2"]["share"] = 0.5
    result = machine.measure()
    assert figures(result, "rdma_write_ratio")["mlx5_2:1"] == pytest.approx(392.8 / 800)
    slow = {name for name, ratio in figures(result, "rdma_pair_ratio").items() if ratio < 0.8}
    assert slow == {"mlx5_1:1>mlx5_2:1", "mlx5_2:1>mlx5_0:1"}
    assert "the slowest reached 48% of its maximum" in result.message


def test_a_device_that_hangs_fails_after_its_time_and_is_asked_no_more(machine):
    machine.devices["mlx5_1"]["hang"] = True
    result = machine.measure()
    failed, untested = result.environment["failed"], result.environment["untested"]
    assert list(failed) == ["ib_write_bw mlx5_1:1"] and "had not ended after" in failed["ib_write_bw mlx5_1:1"]
    assert untested["ib_send_bw mlx5_1:1"] == "not run, mlx5_1:1 hung" and len(untested) == 4
    assert figures(result, "rdma_failed_count") == {"node": 1} and not figures(result, "rdma_measured_count")
    assert result.message.startswith("failed: ib_write_bw mlx5_1:1: the client had not ended after ")
    assert set(figures(result, "rdma_write_ratio")) == {"mlx5_0:1"}


def test_a_device_that_fails_is_named_with_the_words_of_the_tool(machine):
    machine.devices["mlx5_0"]["fail"] = " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81"
    result = machine.measure()
    assert figures(result, "rdma_failed_count") == {"node": 5}  # four alone, and the pair
    assert "Failed status 12: wr_id 0 syndrom 0x81" in result.message


def test_errors_that_rise_are_counted_for_their_port(machine):
    machine.devices["mlx5_1"]["errors"] = {"counters/symbol_error": 2, "hw_counters/local_ack_timeout_err": 1}
    result = machine.measure()
    errors = figures(result, "rdma_link_error_count")
    assert errors["mlx5_1:1"] == errors["node"] > 0 and errors["mlx5_0:1"] == 0
    assert figures(result, "rdma_retransmission_count")["node"] > 0
    assert "counted: mlx5_1:1: symbol_error +" in result.message


def test_counters_that_a_driver_does_not_have_are_left_out_with_the_reason(machine):
    machine.add(2, counters={})
    result = machine.measure("--devices", "mlx5_2")
    assert result.environment["left_out"] == {"counters": "the driver of mlx5_2:1 has no error counters"}
    assert "node" not in figures(result, "rdma_link_error_count")


def test_a_port_without_counters_excuses_no_other_port(machine):
    machine.add(2, counters={})
    machine.devices["mlx5_1"]["errors"] = {"counters/symbol_error": 2}
    result = machine.measure("--without-pairs")
    assert result.environment["left_out"] == {"counters": "the driver of mlx5_2:1 has no error counters"}
    errors = figures(result, "rdma_link_error_count")
    assert errors["node"] == errors["mlx5_1:1"] > 0 and "mlx5_2:1" not in errors


def test_counters_that_are_gone_after_the_tests_are_missing_without_an_excuse(machine):
    ports = node.look(Sysfs(machine.tree.root), ["*"])
    before = {"mlx5_0:1": {"symbol_error": 0}, "mlx5_1:1": {"symbol_error": 0}}
    shutil.rmtree(machine.tree.sys / "class/infiniband/mlx5_1/ports/1")
    result = WorkloadResult()
    program._count_errors(result, Sysfs(machine.tree.root), ports, program.RdmaReport(), before)
    assert "left_out" not in result.environment and "node" not in figures(result, "rdma_link_error_count")


def test_a_port_without_a_link_is_named(machine):
    machine.port(1, state="1: DOWN", phys_state="2: Polling")
    result = machine.measure()
    assert figures(result, "rdma_ports_down_count") == figures(result, "rdma_ports_count") == {"node": 1}
    assert "no link: mlx5_1:1: DOWN (Polling)" in result.message


def test_a_missing_tool_is_missing_evidence_with_its_remedy(machine):
    result = machine.measure(install=False)
    assert not figures(result, "rdma_measured_count") and figures(result, "rdma_failed_count") == {"node": 0}
    assert "apt-get install perftest" in result.message and "ib_write_bw" in result.message


def test_devices_that_may_not_be_opened_are_missing_evidence_and_no_fault(machine):
    machine.devices.clear()  # the tools know of none, as in a container without /dev/infiniband
    result = machine.measure()
    assert not figures(result, "rdma_measured_count") and figures(result, "rdma_failed_count") == {"node": 0}
    assert "Unable to find the Infiniband/RoCE device" in result.message


@pytest.mark.parametrize(
    ("options", "fail", "why"),
    [
        ((), "", "built without CUDA and ROCm"),
        (("use_cuda=",), "Couldn't allocate MR\n Couldn't create IB resources", "Couldn't allocate MR"),
    ],
)
def test_memory_of_gpus_that_could_not_be_tested_is_told(machine, options, fail, why):
    machine.options = options
    for device in machine.devices.values():
        device["gpu_fail"] = fail
    result = machine.measure("--devices", "mlx5_0")
    assert figures(result, "rdma_gpu_untested_count") == {"node": 1} and figures(result, "rdma_measured_count")
    assert "GPU memory not tested: " in result.message and why in result.message


def test_rails_that_are_networks_of_their_own_lack_evidence_unless_declared(machine):
    for name, device in machine.devices.items():
        device["network"] = name
    result = machine.measure()
    assert "set rdma_pairs: false" in result.message and figures(result, "rdma_failed_count") == {"node": 0}
    assert not figures(result, "rdma_measured_count")
    assert figures(machine.measure("--without-pairs"), "rdma_measured_count")


def sorted_pairs(machine, broken, failed=()):
    """What becomes of pairs that break off, by the numbers of their ports; ports in ``failed`` fail alone, too."""
    rails = node.look(Sysfs(machine.tree.root), ["*"]).rails
    tests = [test for test in node.tests(rails, frozenset(), 60, pairs=True) if test.is_pair]
    names = {f"mlx5_{one}:1>mlx5_{other}:1" for one, other in broken}
    assert names <= {test.name for test in tests}
    report = program.RdmaReport(failed={f"ib_write_bw mlx5_{one}:1": "hung" for one in failed})
    problems = {test.title: "Failed status 12" for test in tests if test.name in names}
    program._sort_pairs(report, tests, problems)
    return {title.split()[-1] for title in report.failed if ">" in title}, " ".join(report.untested)


def test_ports_of_one_ring_without_a_way_are_no_fault_beside_another_ring_that_has_one(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, count=2)
    for index in (2, 3):  # storage, by two networks
        machine.add(index, link_layer="Ethernet", gids=ROCE_GIDS)
    assert sorted_pairs(machine, [(2, 3)]) == (set(), "pairs mlx5_2:1>mlx5_3:1")
    assert sorted_pairs(machine, [(2, 3)], failed=[3]) == ({"mlx5_2:1>mlx5_3:1"}, "")


@pytest.mark.parametrize(
    ("broken", "alone", "fails", "untested"),
    [
        ([(2, 3)], [], [(2, 3)], []),  # the other pairs join its ends
        ([(3, 4), (5, 0)], [], [], [(3, 4), (5, 0)]),  # 4 and 5 are storage at the rate of the others
        ([(1, 2), (2, 3), (4, 5), (5, 0)], [], [], [(1, 2), (2, 3), (4, 5), (5, 0)]),  # storage between the others
        ([(1, 2), (2, 3)], [], [], [(1, 2), (2, 3)]),  # a cable without use, or a port of another network
        ([(1, 2), (2, 3)], [2], [(1, 2), (2, 3)], []),
        ([(1, 2), (2, 3), (3, 4), (5, 0)], [2], [(1, 2), (2, 3)], [(3, 4), (5, 0)]),
    ],
)
def test_pairs_that_break_off_are_a_fault_where_their_ports_share_a_network(
    tmp_path, monkeypatch, broken, alone, fails, untested
):
    def names(pairs):
        return [f"mlx5_{one}:1>mlx5_{other}:1" for one, other in pairs]

    found = sorted_pairs(Machine(tmp_path, monkeypatch, count=6), broken, alone)
    assert found == (set(names(fails)), f"pairs {', '.join(names(untested))}" if untested else "")


def test_other_pkeys_are_told_by_port(machine):
    machine.port(1, pkeys=("0x8001", "0x7fff"))
    result = machine.measure("--without-pairs", install=False)
    assert result.fingerprints["rdma_pkeys"] == "0x8001 0x7fff, 0xffff"
    assert figures(result, "rdma_pkey_tables_count") == {"node": 2}
    assert "P_Keys: 1 x 0x8001 0x7fff, 1 x 0xffff" in result.message


def test_pkeys_are_those_of_infiniband_ports_with_a_link(machine):
    machine.port(1, state="1: DOWN", phys_state="2: Polling")
    result = machine.measure(install=False)
    assert (result.fingerprints["rdma_pkeys"], result.environment["infiniband"]) == ("0xffff", "present")
    machine.port(0, link_layer="Ethernet", gids=ROCE_GIDS)
    result = machine.measure(install=False)
    assert (result.fingerprints["rdma_pkeys"], result.environment["infiniband"]) == ("none", "none")


def test_a_node_without_devices_has_nothing_to_test(tmp_path, monkeypatch):
    result = Machine(tmp_path, monkeypatch, count=0).measure(install=False)
    assert figures(result, "rdma_measured_count") == {"node": 0} and result.fingerprints["rdma"] == "none"
    assert result.message == result.environment["left_out"]["rdma"] == "no RDMA device to test"


@pytest.mark.parametrize(
    ("patterns", "count", "absent"),
    [
        (("mlx5_0", "mlx5_1", "mlx5_2"), 2, ["mlx5_2"]),  # a NIC that is gone, or a name mistyped
        (("mlx6_*", "bnxt_re*"), 2, ["mlx6_*", "bnxt_re*"]),
        (("mlx5_*", "bnxt_re*"), 2, []),  # one list for nodes of two kinds
        (("mlx5_*",), 0, ["mlx5_*"]),
        (("*",), 0, []),
    ],
)
def test_names_that_no_device_has_lack_evidence(tmp_path, monkeypatch, patterns, count, absent):
    machine = Machine(tmp_path, monkeypatch, count=count)
    assert node.absent(Sysfs(machine.tree.root), patterns) == absent
    if absent and "mlx5_0" not in patterns:
        result = machine.measure("--devices", *patterns)
        assert not figures(result, "rdma_measured_count") and f"{absent[0]}" in result.message
        assert figures(machine.measure("--devices", *patterns, "--ordered", "0"), "rdma_measured_count") == {"node": 0}


def test_devices_without_any_link_lack_evidence_unless_none_was_ordered(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, count=0)
    machine.add(0, state="1: DOWN", phys_state="3: Disabled")
    result = machine.measure()
    assert not figures(result, "rdma_measured_count") and "declare gpuval_nic_count: 0" in result.message
    result = machine.measure("--ordered", "0")
    assert figures(result, "rdma_measured_count") == {"node": 0} and "no link" not in result.message


def test_ports_of_another_kind_are_named_and_not_measured(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, count=0)
    machine.add(0, link_layer="Unspecified")  # as EFA has it
    result = machine.measure()
    assert figures(result, "rdma_ports_other_count") == {"node": 1}
    assert "not testable by perftest: mlx5_0:1: Unspecified" in result.message
    assert not figures(result, "rdma_write_ratio")


def test_a_controller_without_a_driver_lacks_evidence(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, count=0)
    machine.tree.pci("pci0000:40", "0000:43:00.0", **{"class": "0x020700"})
    result = machine.measure()
    assert "0000:43:00.0: InfiniBand controller without a driver" in result.message
    assert not figures(result, "rdma_measured_count")


def test_a_slot_below_the_ports_rate_is_the_limit_but_a_link_below_its_slot_is_not(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, count=0)
    machine.add(0)
    device = "bus/pci/devices/0000:43:00.0"
    [rail] = node.look(Sysfs(machine.tree.root), ["*"]).rails
    assert rail.most_bytes_per_second == 50e9
    machine.tree.write(f"{device}/current_link_width", 8)
    [rail] = node.look(Sysfs(machine.tree.root), ["*"]).rails
    assert rail.most_bytes_per_second == 50e9
    for name in ("current_link_speed", "max_link_speed"):
        machine.tree.write(f"{device}/{name}", "16.0 GT/s PCIe")
    [rail] = node.look(Sysfs(machine.tree.root), ["*"]).rails
    assert rail.most_bytes_per_second == pytest.approx(0.9 * 31.5e9, rel=0.01)


def test_two_ports_of_one_card_share_its_slot(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, count=2)
    way = ("pci0000:40", "0000:40:01.0", "0000:41:00.0", "0000:42:00.0", "0000:43:00.1")
    machine.tree.pci(*way, **machine.tree.link())
    machine.tree.rdma("mlx5_2", pci="0000:43:00.1")
    machine.port(2)
    first, other, second = node.look(Sysfs(machine.tree.root), ["*"]).rails
    assert node.most_of(first, other, True) == 100e9 and node.most_of(first, first, False) == 50e9
    assert node.most_of(first, second, True) == pytest.approx(0.9 * 63e9, rel=0.01)  # PCIe 5.0 x16, each way


def test_roce_goes_by_its_address_and_is_in_no_ring_with_infiniband(tmp_path, monkeypatch):
    machine = Machine(tmp_path, monkeypatch, count=2)
    machine.add(2, link_layer="Ethernet", gids=ROCE_GIDS, counters=MLX5_COUNTERS)
    found = node.look(Sysfs(machine.tree.root), ["mlx5_*"])
    tests = node.tests(found.rails, frozenset(), 40, pairs=True)
    assert [test.name for test in tests if test.is_pair] == ["mlx5_0:1>mlx5_1:1"]
    assert {test.client.gid_index for test in tests if test.client.device == "mlx5_2"} == {3}
    assert {test.seconds for test in tests} == {5}
